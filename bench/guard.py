"""Whether NLAC's guard keeps a spoiled critic from doing harm: `python bench/guard.py --env
twentyq` (each world once).

NLAC trains with `algo.improvement_check` and a critic that is spoiled on purpose, by shuffled
outcomes, by
empty critiques and by critiques of other actions, three seeds each. `guard_low_CONTROL_WORLD` in
docs/results/critics.json is the lower end of the 95 % interval of test success after training, less
before, tasks and seeds resampled, over at least 4,000 episodes on each side; `guard_open_…` the
share of updates in which the guard let the policy learn. Runs that are done, under runs/guard/ENV,
are not repeated."""

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
    """One run."""

    env: str
    control: str
    seed: int
    episodes_per_task: int

    @property
    def name(self) -> str:
        """The run's folder: shuffled_outcomes-s1."""
        return f"{self.control}-s{self.seed}"

    @property
    def start(self) -> None:
        """Each starts from the base."""

    def settings(self) -> list[str]:
        """The overrides of the run."""
        evaluation = ["eval.splits=[test]", f"eval.episodes_per_task={self.episodes_per_task}"]
        return [
            *(f"recipe={self.env}", "algo=nlac", f"ablation={self.control}"),
            GUARD,
            *evaluation,
            f"seed={self.seed}",
        ]


def figures(env: str, control: str, runs: dict[int, Run]) -> dict[str, float]:
    """What the runs of a control, by seed, lost or gained."""
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
