"""Draws the pictures in docs/images/ from the records in docs/results: how success rises with the
episodes and the seconds of play and training, for README in all worlds, for docs/results.md in
each. `make pictures`; with `--episode RUN` README's episode with its critiques is drawn, too, from
a finished run of NLAC on Twenty Questions.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.algos.nlac.parse import strict_outcome
from agentrl_cli.core.types import Episode, Turn
from agentrl_cli.report import figures
from agentrl_cli.report.figures import Line, Panel
from agentrl_cli.runs import episode_files
from bench.results import PLAYERS
from tools.results_page import WORLDS, load
from tools.results_tables import Row

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SPENT = ("episodes", "seconds")  # what success is drawn against
TURNS = range(4, 9)  # of an episode that is worth a picture
INK, PALE, GOOD, BAD, MIND = "#22303c", "#6b7780", "#00795a", "#b3430a", "#0060a0"
WIDTH, LINE, LETTERS = 860, 18, 90  # pixels; letters of a line
NUMBERS, LABELS, TEXTS = 20, 44, 124  # pixels from the left
Said = tuple[str, str, str]  # a label, a text and its colour


def panel(rows: Sequence[Row], title: str, axis: str) -> Panel:
    """Success of what was played, every seed of each algorithm, against what had been spent."""
    curves = {
        algo: [Line(np.array(row[axis], float), np.array(row["success"])) for row in rows
               if row["algo"] == algo]
        for algo in PLAYERS
    }  # fmt: skip
    return Panel(title, f"{axis} of play and training", curves, is_logarithmic=axis == "seconds")


def curves() -> dict[str, str]:
    """The pictures by their files' names, as SVG: README's, and one for each world."""
    found = {name: load(f"{world}_curves") for world, name in WORLDS.items()}
    drawn = {"curves": [panel(rows, name, "episodes") for name, rows in found.items()]}
    for world, name in WORLDS.items():
        drawn[f"curves_{world}"] = [panel(found[name], "", axis) for axis in SPENT]
    success = "success, train tasks"
    return {
        name: figures.svg(figures.learning_curves(panels, 2, success))
        for name, panels in drawn.items()
    }


def pick(run: Path) -> Episode:
    """The first episode of the run's last evaluation that was won, has a critique at every turn and
    both kinds of them. Raises SystemExit where there is none."""
    file = max(run.glob("episodes/eval-*.jsonl"))
    for entry in episode_files.search(file):
        if entry.success and entry.annotated and entry.turns in TURNS:
            episode = episode_files.read(file, entry)
            critics = [turn.info.get("critic") for turn in episode.turns]
            if all(critics) and {said["verdict"] for said in critics if said} == {True, False}:
                return episode
    raise SystemExit(f"{file} has no episode that is worth a picture")


def picture(episode: Episode, source: str) -> str:
    """The episode as SVG: a block of lines for each turn."""
    said = [*(message.content for turn in episode.turns[1:] for message in turn.observation[-1:])]
    said += [message.content for message in episode.closing[-1:]]
    blocks = [_turn(turn, answer) for turn, answer in zip(episode.turns, said, strict=True)]
    hidden = episode.task.data["object"]
    title = f"Find the hidden object (it is: {hidden}). {source}, a test game, won."
    y, drawn = 28, [_text(NUMBERS, 28, title, INK, bold=True)]
    for number, block in enumerate(blocks, start=1):
        y += LINE // 2
        drawn.append(_text(NUMBERS, y + LINE, str(number), INK, bold=True))
        for label, text, colour in block:
            drawn.append(_text(LABELS, y + LINE, label, PALE))
            for part in textwrap.wrap(text, LETTERS):
                y += LINE
                drawn.append(_text(TEXTS, y, part, colour))
    height = y + LINE
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        f' width="{WIDTH}" height="{height}" font-family="monospace" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff" stroke="#d9dee3"/>',
        *drawn, "</svg>\n",
    ])  # fmt: skip


def _turn(turn: Turn, answer: str) -> Iterator[Said]:
    """What the agent does, what its critic foresees, what it says of it and would rather do, and
    the world's answer."""
    said: dict[str, Any] = turn.info["critic"]
    forecasts: list[str] = said["forecasts"]
    hopeful = sum(bool(strict_outcome(text)) for text in forecasts)
    ((common, _),) = Counter(forecasts).most_common(1)
    yield "agent", " ".join(turn.action.split("\n")), INK
    often = f"{hopeful} of {len(forecasts)} end in success; most often: {common}"
    yield "forecast", often, MIND
    yield "critique", said["critique"], GOOD if said["verdict"] else BAD
    if said.get("refined") and not said["verdict"]:
        yield "refined", " ".join(said["refined"].split("\n")), GOOD
    yield "world", answer, PALE


def _text(x: int, y: int, text: str, colour: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" fill="{colour}"{weight}>{escape(text)}</text>'


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episode", type=Path, metavar="RUN", help="a run of NLAC to show one of")
    run: Path | None = parser.parse_args().episode
    drawn = curves() | ({"episode": picture(pick(run), run.name)} if run else {})
    for name, text in drawn.items():
        (IMAGES / f"{name}.svg").write_text(text)
    print("docs/images:", ", ".join(drawn))


if __name__ == "__main__":
    main()
