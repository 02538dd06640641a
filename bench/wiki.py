"""Measure the cost of the wiki: an expert episode, and a folder with many pages.

Run as `python bench/wiki.py`, which prints a JSON object. `--record` writes it to
docs/results/wiki_cost.json. Times are CPU seconds of one process. The pages have 300 words each and
are in a temporary folder.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.envs.wiki.env import Wiki
from agentrl_cli.envs.wiki.user_data import read_folder
from tests.builders.wiki import wiki

RESULT = Path(__file__).parents[1] / "docs" / "results" / "wiki_cost.json"
REPEATS = 5
SEARCHES = 200
WORDS_A_PAGE, VOCABULARY = 300, 20_000
Value = TypeVar("Value")


def seconds(action: Callable[[], Value]) -> tuple[float, Value]:
    """Return the CPU seconds of a call and its result."""
    begin = process_time()
    value = action()
    return process_time() - begin, value


def expert_milliseconds(env: Wiki) -> float:
    """Return the milliseconds of environment time of an expert episode: the mean over all
    tasks, the best of several passes."""
    tasks = env.tasks("train") + env.tasks("test")
    return 1000 * min(fmean(episode_seconds(env, task) for task in tasks) for _ in range(REPEATS))


def episode_seconds(env: Wiki, task: object) -> float:
    """Return the seconds in `reset` and `step` of an episode."""
    env = copy.copy(env)
    spent = seconds(lambda: env.reset(task, 0))[0]  # pyright: ignore[reportArgumentType]
    for action in env.expert(task):  # pyright: ignore[reportArgumentType]
        spent += seconds(lambda action=action: env.step(action))[0]
    return spent


def write_pages(folder: Path, count: int, rng: random.Random) -> None:
    """Write pages of random words with links, at the frequencies of words in English."""
    words = [f"{rng.choice('bdfgklmnprst')}{i:x}" for i in range(VOCABULARY)]
    common = [1 / (rank + 1) for rank in range(VOCABULARY)]
    for i in range(count):
        text = rng.choices(words, common, k=WORDS_A_PAGE)
        lines = [" ".join(text[at : at + 12]) for at in range(0, WORDS_A_PAGE, 12)]
        link = f"See [page {rng.randrange(count)}](page{rng.randrange(count)}.md)."
        (folder / f"page{i}.md").write_text("\n".join([f"# Page {i}", *lines, link]))


def folder_figures(count: int) -> dict[str, float]:
    """Return the seconds until this many pages can be searched, and the milliseconds of a
    search."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        write_pages(Path(name), count, rng)
        load, (pages, _) = seconds(lambda: read_folder(Path(name)))
        index = seconds(lambda: pages.index)[0]
    words = [word for page in list(pages.pages.values())[:50] for word in page.lines[0].split()]
    spent = [
        seconds(lambda: pages.search(" ".join(rng.choices(words, k=4))))[0] for _ in range(SEARCHES)
    ]
    return {
        f"load_{count}_pages_seconds": load + index,
        f"search_{count}_pages_ms": 1000 * fmean(spent),
        f"search_{count}_pages_ms_slowest": 1000 * max(spent),
    }


def main() -> None:
    """Measure and print; write the result if `--record` is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="Write the figures to docs/results.")
    parser.add_argument("--pages", type=int, default=10_000)
    args = parser.parse_args()
    figures = {
        "expert_episode_small_ms": expert_milliseconds(wiki()),
        "expert_episode_full_ms": expert_milliseconds(wiki("wiki_full")),
        **folder_figures(args.pages),
    }
    figures = {name: round(value, 4) for name, value in figures.items()}
    print(json.dumps(figures, indent=1))
    if args.record:
        RESULT.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
