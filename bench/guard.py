"""Measure whether NLAC's improvement check prevents damage by a broken critic: `python
bench/guard.py --env twentyq`, once for each environment.

NLAC trains with `algo.improvement_check` and a critic that is broken on purpose: it learns outcomes
of other episodes, or its critiques are empty or those of other actions. Three seeds each.

The results go to docs/results/critics.json. `guard_change_CONTROL_ENV` is test success after
training minus before, over at least 4,000 episodes each; `guard_low` and `guard_high` are its 95 %
interval, for new tasks and new seeds. `guard_open` is the share of updates in which the policy
learned. Runs that are done, in runs/guard/ENV, are not repeated.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.report.records import read_record
from agentrl_cli.report.seeds import paired_difference
from agentrl_cli.runs.run import Run
from bench.critics import store
from bench.results import ROOT, TASKS, train_all

CONTROLS = ("shuffled_outcomes", "empty_critiques", "shuffled_critiques")
EPISODES = 4000  # on each side, at least
# as conf/algo/nlac.yaml says
GUARD = "algo.improvement_check={every: 2, num_targets: 48, num_rollouts: 4, window: 3}"


class Plan(NamedTuple):
    """A run."""

    env: str
    control: str
    seed: int
    episodes_per_task: int

    @property
    def name(self) -> str:
        """The name of the run's folder, such as shuffled_outcomes-s1."""
        return f"{self.control}-s{self.seed}"

    @property
    def start(self) -> None:
        """The run that it starts from; None: the initial model."""

    def settings(self) -> list[str]:
        """Return the overrides of the run."""
        evaluation = ["eval.splits=[test]", f"eval.episodes_per_task={self.episodes_per_task}"]
        return [
            *(f"recipe={self.env}", "algo=nlac", f"ablation={self.control}"),
            GUARD,
            *evaluation,
            f"seed={self.seed}",
        ]


def figures(env: str, control: str, runs: dict[int, Run]) -> dict[str, float]:
    """Return the figures of a control from its runs by seed."""
    records = {seed: read_record(run) for seed, run in runs.items()}
    before = {seed: record.outcomes(0) or {} for seed, record in records.items()}
    after = {seed: record.outcomes(record.last_step) or {} for seed, record in records.items()}
    change = paired_difference(after, before)
    assert change is not None
    opened = [
        row["improvement_check/open"]
        for run in runs.values()
        for row in run.metrics()
        if "improvement_check/open" in row
    ]
    found = {"guard_low": change.low, "guard_change": change.mean, "guard_high": change.high}
    found["guard_open"] = fmean(opened)
    return {f"{name}_{control}_{env}": value for name, value in found.items()}


def main() -> None:
    """Run what is not done and store the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="twentyq", choices=TASKS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="of the runs; runs/guard/ENV by default")
    asked = parser.parse_args()
    folder = (asked.folder or ROOT / "runs" / "guard" / asked.env).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    size = math.ceil(EPISODES / (TASKS[asked.env]["test"] * len(asked.seeds)))
    work = [Plan(asked.env, control, s, size) for control in CONTROLS for s in asked.seeds]
    train_all(work, folder, asked.jobs)
    for control in CONTROLS:
        runs = {plan.seed: Run(folder / plan.name) for plan in work if plan.control == control}
        store(figures(asked.env, control, runs))


if __name__ == "__main__":
    main()
