"""Statistics over runs of one configuration that differ only in their seeds. Intervals resample
runs and tasks, so they hold for new seeds and new tasks; of two or three runs they are too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentrl_cli.core import statistics
from agentrl_cli.core.statistics import Array, Interval, resample_counts

Outcomes = Mapping[str, Sequence[float]]  # the values of each task of one run
# 97.5 % quantiles of Student's t with 1, 2, … degrees of freedom
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Noise:
    """The spread of scores between seeds: pooled standard deviation and degrees of freedom."""

    deviation: float
    freedom: int

    @property
    def least_difference(self) -> float:
        """The difference of two single runs that is significant at 95 % by Student's t."""
        quantile = STUDENT[min(self.freedom, len(STUDENT)) - 1]
        return quantile * math.sqrt(2) * self.deviation


def crossed_bootstrap(runs: Sequence[Outcomes], seed: int = 0) -> Interval:
    """Return the mean success over runs and tasks, with both resampled: the product bootstrap of
    Owen 2007 ("The pigeonhole bootstrap"). For one run it equals `cluster_bootstrap`. Raises
    ValueError without values."""
    tasks = list(dict.fromkeys(task for run in runs for task in run))
    return statistics.bootstrap_runs_and_tasks(*_sums_and_counts(runs, tasks), seed)


def paired_difference(
    ours: Mapping[Any, Outcomes], theirs: Mapping[Any, Outcomes], seed: int = 0
) -> Interval | None:
    """Return the mean difference (ours - theirs) over the tasks that both sides played, or None if
    no task is common. Runs are given by seed. Tasks are resampled together on both sides, and so
    are runs if both sides have the same seeds."""
    our_tasks = {task for run in ours.values() for task in run}
    their_tasks = {task for run in theirs.values() for task in run}
    tasks = sorted(our_tasks & their_tasks)
    if not tasks:
        return None
    left = _sums_and_counts([ours[key] for key in sorted(ours)], tasks)
    right = _sums_and_counts([theirs[key] for key in sorted(theirs)], tasks)
    rng = np.random.default_rng(seed)
    by_task, by_our_run = resample_counts(rng, len(tasks)), resample_counts(rng, len(ours))
    has_same_seeds = set(ours) == set(theirs)
    by_their_run = by_our_run if has_same_seeds else resample_counts(rng, len(theirs))
    draws = statistics.resampled_means(*left, by_our_run, by_task)
    draws -= statistics.resampled_means(*right, by_their_run, by_task)
    mean = left[0].sum() / left[1].sum() - right[0].sum() / right[1].sum()
    return statistics.interval_over_tasks(float(mean), draws, len(tasks), least=-1.0)


def seed_noise(groups: Sequence[Sequence[float]]) -> Noise | None:
    """Return the noise between seeds from the scores of each configuration, or None if no
    configuration has two scores."""
    several = [np.asarray(group, dtype=float) for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in several)
    if not freedom:
        return None
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in several)
    return Noise(math.sqrt(squares / freedom), freedom)


def moving_average(values: Sequence[float], width: int) -> list[float]:
    """Return the mean of each value and up to `width - 1` values before it."""
    return [float(np.mean(values[max(0, end - width) : end])) for end in range(1, len(values) + 1)]


def bootstrap_band(rows: Array, seed: int = 0) -> tuple[Array, Array]:
    """Return the 95 % interval of the mean of curves [runs, points], with runs resampled."""
    draws = resample_counts(np.random.default_rng(seed), len(rows)) @ rows / len(rows)
    low, high = np.percentile(draws, [2.5, 97.5], axis=0)
    return low, high


def _sums_and_counts(runs: Sequence[Outcomes], tasks: Sequence[str]) -> tuple[Array, Array]:
    """Return sums and numbers of values, both [runs, tasks]."""
    sums = [[float(sum(run.get(task, ()))) for task in tasks] for run in runs]
    counts = [[float(len(run.get(task, ()))) for task in tasks] for run in runs]
    return np.array(sums), np.array(counts)
