"""Measure what more demonstrations and more passes gain on Twenty Questions: `python
bench/stepagent.py`.

SFT, and StepAgent from it, learn from fewer and from more expert episodes than in the comparison,
with the settings of the recipe. The smaller sets are the beginnings of the larger ones. `longer`
continues the same SFT, to measure what more passes alone gain. Writes docs/results/stepagent.json.
A run that is done is not repeated.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.results import (
    ROOT,
    STUDENTS,
    Rows,
    by_split,
    cost,
    is_done,
    read,
    train_all,
    write,
)

SIZES = (32, 128, 512)
SFT, *LATER = STUDENTS[:3]
LONGER = "longer"


class Plan(NamedTuple):
    """A run: its algorithm or `longer`, seed, and number of demonstrations."""

    what: str
    seed: int
    demos: int

    @property
    def name(self) -> str:
        """The name of the run's folder, such as sft-d32-s0."""
        return f"{self.what}-d{self.demos}-s{self.seed}"

    @property
    def start(self) -> Plan | None:
        """The SFT that it starts from; None: the initial model."""
        return None if self.what == SFT else self._replace(what=SFT)

    def settings(self) -> list[str]:
        """Return the overrides of the run."""
        own = ["algo=sft", "steps=8"] if self.what == LONGER else [f"algo={self.what}"]
        return ["recipe=twentyq", *own, f"data.demos=expert:{self.demos}", f"seed={self.seed}"]


def records(plan: Plan, folder: Path) -> Rows:
    """Return one record per split, in the form of results.py."""
    meta, evaluations, updates = read(folder / plan.name)
    longer = plan.what == LONGER
    common = {
        "algo": SFT if longer else plan.what,
        "variant": plan.what if longer else "",
        "seed": plan.seed,
        "env": "twentyq",
        "model": "tiny",
        "init": plan.start.what if plan.start else "base",
        "demos": plan.demos,
    }
    return by_split(common | cost(meta, updates), evaluations[0], evaluations[-1])


def main() -> None:
    """Train what is not done, and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--write-only", action="store_true", help="of runs that are done; train nothing"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "stepagent")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    what = (SFT, LONGER, *LATER)
    work = [Plan(one, seed, size) for one in what for size in SIZES for seed in asked.seeds]
    if not asked.write_only:
        train_all(work, folder, asked.jobs)
    rows = [row for plan in work if is_done(folder / plan.name) for row in records(plan, folder)]
    write("stepagent.json", rows)


if __name__ == "__main__":
    main()
