"""Makes README's pictures in docs/images/: learning curves, and an episode with its critiques.

Run as `make pictures`; trains three seeds of three algorithms on Twenty Questions first, which
takes about an hour on two cores. A run under runs/pictures that is done is not repeated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.algos.nlac.prompts import outcome
from agentrl_cli.cli.report import gather
from agentrl_cli.core.types import Episode, Turn
from agentrl_cli.report import figures
from agentrl_cli.runs import episode_files

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "runs" / "pictures"
IMAGES = ROOT / "docs" / "images"
ALGOS, SEEDS = ("nlac", "grpo", "rft"), (0, 1, 2)
SHOWN = "nlac"  # whose episode is drawn
TURNS = range(4, 9)  # of an episode that is worth a picture
SETTINGS = ("eval_every=6", "eval.splits=[test]", "eval.greedy=false")
INK, PALE, GOOD, BAD, MIND = "#22303c", "#6b7780", "#00795a", "#b3430a", "#0060a0"
WIDTH, LINE, LETTERS = 860, 18, 90  # pixels; letters of a line
NUMBERS, LABELS, TEXTS = 20, 44, 124  # pixels from the left
Line = tuple[str, str, str]  # a label, a text and its colour


def train(run: Path, algo: str, seed: int) -> None:
    """Train one run unless it is done. Raises SystemExit where it was left half-way."""
    if is_done(run):
        return
    if run.exists():
        raise SystemExit(f"{run} is there but not done; remove it, or agentrl resume it")
    chosen = [
        f"experiment=twentyq_{algo}",
        f"seed={seed}",
        f"runs={run.parent}",
        f"name={run.name}",
    ]
    command = [sys.executable, "-m", "agentrl_cli.cli", "train", *chosen, *SETTINGS]
    subprocess.run(command, check=True, cwd=ROOT)


def is_done(run: Path) -> bool:
    """Whether a run has finished."""
    meta = run / "meta.json"
    return meta.exists() and json.loads(meta.read_text())["status"] == "done"


def curves(runs: list[Path]) -> str:
    """Test success of the runs against episodes, as SVG."""
    (world,) = gather([str(run) for run in runs]).worlds
    return figures.svg(figures.learning_curve(world))


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


def _turn(turn: Turn, answer: str) -> Iterator[Line]:
    """What the agent does, what its critic foresees, what it says of it and would rather do, and
    the world's answer."""
    said: dict[str, Any] = turn.info["critic"]
    forecasts: list[str] = said["forecasts"]
    hopeful = sum(bool(outcome(text)) for text in forecasts)
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
    """Train what is missing, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=RUNS, help="where the runs are")
    parser.add_argument("--no-train", action="store_true", help="draw what is done")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    asked = parser.parse_args()
    folder = asked.runs.resolve()
    plans = {folder / f"{algo}-s{seed}": (algo, seed) for seed in SEEDS for algo in ALGOS}
    if not asked.no_train:
        with ThreadPoolExecutor(asked.jobs) as pool:
            list(pool.map(lambda run: train(run, *plans[run]), plans))
    done = [run for run in plans if is_done(run)]
    IMAGES.mkdir(parents=True, exist_ok=True)
    (IMAGES / "curves.svg").write_text(curves(done))
    run = next(run for run in done if plans[run][0] == SHOWN)
    episode = picture(pick(run), f"{SHOWN}, seed {plans[run][1]}")
    (IMAGES / "episode.svg").write_text(episode)
    print(f"docs/images: {', '.join(run.name for run in done)}; the episode is of {run.name}")


if __name__ == "__main__":
    main()
