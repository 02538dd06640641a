"""Statistics over runs of one configuration that differ only in their seeds. Intervals of several
runs hold for new seeds and new tasks, those of one run only for new tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentrl_cli.core import statistics
from agentrl_cli.core.statistics import Array, Interval

Outcomes = Mapping[str, Sequence[float]]  # the values of each task of one run


@dataclass(frozen=True)
class Noise:
    """The spread of scores between seeds: pooled standard deviation and degrees of freedom."""

    deviation: float
    freedom: int

    @property
    def least_difference(self) -> float:
        """The difference of two single runs that is significant at 95 % by Student's t."""
        return statistics.student(self.freedom) * math.sqrt(2) * self.deviation


def mean_success(runs: Sequence[Outcomes]) -> Interval:
    """Return the mean success over runs and tasks with its interval. Raises ValueError without
    values."""
    tasks = list(dict.fromkeys(task for run in runs for task in run))
    average, errors = statistics.errors_of_mean(*_sums_and_counts(runs, tasks))
    return statistics.crossed_interval(average, [errors])


def paired_difference(
    ours: Mapping[Any, Outcomes], theirs: Mapping[Any, Outcomes]
) -> Interval | None:
    """Return the mean difference (ours - theirs) over the tasks that both sides played, with its
    interval, or None if no task is common. Runs are given by seed. Tasks are paired, and so are
    runs if both sides have the same seeds."""
    found = paired_errors(ours, theirs)
    return found and statistics.crossed_interval(*found, least=-1.0)


def paired_errors(
    ours: Mapping[Any, Outcomes], theirs: Mapping[Any, Outcomes]
) -> tuple[float, list[Array]] | None:
    """Return the mean difference of `paired_difference`, and the errors of its groups of runs."""
    our_tasks = {task for run in ours.values() for task in run}
    their_tasks = {task for run in theirs.values() for task in run}
    tasks = sorted(our_tasks & their_tasks)
    if not tasks:
        return None
    (our_mean, left), (their_mean, right) = (
        statistics.errors_of_mean(*_sums_and_counts([side[key] for key in sorted(side)], tasks))
        for side in (ours, theirs)
    )
    groups = [left - right] if set(ours) == set(theirs) else [left, -right]
    return our_mean - their_mean, groups


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


def band(rows: Array) -> tuple[Array, Array]:
    """Return the 95 % interval of the mean of curves [runs, points], at each point."""
    half = statistics.student(len(rows) - 1) * rows.std(0, ddof=1) / math.sqrt(len(rows))
    return rows.mean(0) - half, rows.mean(0) + half


def _sums_and_counts(runs: Sequence[Outcomes], tasks: Sequence[str]) -> tuple[Array, Array]:
    """Return sums and numbers of values, both [runs, tasks]."""
    sums = [[float(sum(run.get(task, ()))) for task in tasks] for run in runs]
    counts = [[float(len(run.get(task, ()))) for task in tasks] for run in runs]
    return np.array(sums), np.array(counts)
