"""Draw the figures in docs/images/ from the records in docs/results (`make pictures`).

`gains` shows the gain in test success of each method, `curves*` success against episodes and
seconds. `--episode RUN` also draws an episode with its critiques from a run of NLAC.
"""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.algos.nlac.parse import strict_outcome
from agentrl_cli.core.statistics import student
from agentrl_cli.core.types import Episode, Turn
from agentrl_cli.report.figures import GREY, Line, Panel, draw, svg
from agentrl_cli.runs import episode_files
from bench.results import PLAYERS
from tools.results_page import ENVIRONMENTS, Row, configurations, gains, load

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMAGES = Path(__file__).parents[1] / "docs" / "images"
TURNS = range(4, 9)  # of a suitable episode
INK, PALE, GOOD, BAD, CRITIC = "#22303c", "#6b7780", "#00795a", "#b3430a", "#0060a0"
WIDTH, LINE, CHARACTERS = 860, 18, 90  # pixels; characters of a line
NUMBERS, LABELS, TEXTS = 20, 44, 124  # pixels from the left
METHODS = {  # algorithm and variant: label and colour in `gains`, from bottom to top
    ("nlac", "nlac_paper"): ("NLAC, paper's rule", PALE),
    ("archer", ""): ("ArCHer", PALE),
    ("grpo", ""): ("GRPO", PALE),
    ("ppo", ""): ("PPO", PALE),
    ("rft", ""): ("RFT", PALE),
    ("self_ac", ""): ("Self-AC", GOOD),
    ("nlac", ""): ("NLAC", CRITIC),
}


def panel(rows: Sequence[Row], title: str, axis: str) -> Panel:
    """Return the training success of every seed of each algorithm against `axis`."""
    curves = {
        algo: [
            Line(np.array(row[axis], float), np.array(row["success"]))
            for row in rows
            if row["algo"] == algo
        ]
        for algo in PLAYERS
    }
    label = f"{axis} of play and training"
    return Panel(title, curves, label, "success, train tasks", axis == "seconds")


def figures() -> dict[str, str]:
    """Return the figures as SVG by name: gains, curves of all environments and of each."""
    found = {name: load(f"{env}_curves") for env, name in ENVIRONMENTS.items()}
    drawn = {"curves": [panel(rows, name, "episodes") for name, rows in found.items()]}
    for env, name in ENVIRONMENTS.items():
        axes = ("episodes", "seconds")
        drawn[f"curves_{env}"] = [panel(found[name], "", axis) for axis in axes]
    curves = {name: svg(draw, panels, 2, (3.6, 2.6)) for name, panels in drawn.items()}
    learning = {name: load(env) for env, name in ENVIRONMENTS.items()}
    return curves | {"gains": svg(draw_gains, learning)}


def draw_gains(environments: dict[str, list[Row]]) -> Figure:
    """Draw the mean gain of each method with its 95 % interval by Student's t over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2, 7.6), layout="constrained")
    axes = list(figure.subplots(len(environments), 1, sharex=True).flat)
    for axis, (title, rows) in zip(axes, environments.items(), strict=True):
        found = {(runs[0]["algo"], runs[0]["variant"]): runs for runs in configurations(rows)}
        for y, (method, (_, colour)) in enumerate(METHODS.items()):
            points = [100 * gain for gain in gains(found[method])]
            error = student(len(points) - 1) * stdev(points) / math.sqrt(len(points))
            axis.errorbar(fmean(points), y, xerr=error, fmt="o", ms=5, color=colour, lw=1.6)
        axis.set_yticks(range(len(METHODS)), [label for label, _ in METHODS.values()])
        axis.set_title(title, loc="left", fontweight="bold")
        axis.axvline(0, color=GREY, lw=0.8)
        axis.spines["left"].set_visible(False)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="y", visible=False)
    count = len(gains(found["nlac", ""]))
    axes[-1].set_xlabel(f"gain in test success, points\n(mean of {count} seeds, 95 % interval)")
    return figure


def pick(run: Path) -> Episode:
    """Return the first won episode with a critique at every turn and both verdicts.

    Raises SystemExit if the last evaluation has none.
    """
    file = max(run.glob("episodes/eval-*.jsonl"))
    for entry in episode_files.search(file):
        if entry.success and entry.annotated and entry.turns in TURNS:
            episode = episode_files.read(file, entry)
            critics = [turn.info.get("critic") for turn in episode.turns]
            if all(critics) and {critic["verdict"] for critic in critics if critic} == {
                True,
                False,
            }:
                return episode
    raise SystemExit(f"{file} has no episode that is suitable for a picture")


def picture(episode: Episode, source: str) -> str:
    """Return the episode as SVG, with a block of lines for each turn."""
    answers = [message.content for turn in episode.turns[1:] for message in turn.observation[-1:]]
    answers += [message.content for message in episode.final_observation[-1:]]
    hidden = episode.task.data["object"]
    title = f"Find the hidden object (it is: {hidden}). {source}, a test episode, won."
    y, lines = 28, [(NUMBERS, 28, INK, "bold", title)]
    for number, (turn, answer) in enumerate(zip(episode.turns, answers, strict=True), start=1):
        y += LINE // 2
        lines.append((NUMBERS, y + LINE, INK, "bold", str(number)))
        for label, text, colour in _turn(turn, answer):
            lines.append((LABELS, y + LINE, PALE, "normal", label))
            for part in textwrap.wrap(text, CHARACTERS):
                y += LINE
                lines.append((TEXTS, y, colour, "normal", part))
    drawn = [
        f'<text x="{x}" y="{at}" fill="{colour}" font-weight="{weight}">{escape(text)}</text>'
        for x, at, colour, weight, text in lines
    ]
    height = y + LINE
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        f' width="{WIDTH}" height="{height}" font-family="monospace" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff" stroke="#d9dee3"/>',
        *drawn, "</svg>\n",
    ])  # fmt: skip


def _turn(turn: Turn, answer: str) -> Iterator[tuple[str, str, str]]:
    """Yield label, text and colour of the action, the critic's texts and the answer."""
    critic = turn.info["critic"]
    forecasts: list[str] = critic["forecasts"]
    successes = sum(bool(strict_outcome(text)) for text in forecasts)
    ((common, _),) = Counter(forecasts).most_common(1)
    yield "agent", " ".join(turn.action.split("\n")), INK
    count = f"{successes} of {len(forecasts)} end in success; most often: {common}"
    yield "forecast", count, CRITIC
    yield "critique", critic["critique"], GOOD if critic["verdict"] else BAD
    if critic.get("refined") and not critic["verdict"]:
        yield "refined", " ".join(critic["refined"].split("\n")), GOOD
    yield "answer", answer, PALE


def main() -> None:
    """Draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episode", type=Path, metavar="RUN", help="a run of NLAC")
    run: Path | None = parser.parse_args().episode
    drawn = figures() | ({"episode": picture(pick(run), run.name)} if run else {})
    for name, text in drawn.items():
        (IMAGES / f"{name}.svg").write_text(text)
    print("docs/images:", ", ".join(drawn))


if __name__ == "__main__":
    main()
