"""What several runs of one configuration say together, and against those of another.

Runs differ by their seed; all play the same tasks. An interval here resamples runs and tasks, so it
holds for new seeds and new tasks; with two or three runs it is still too narrow, since so few runs
cannot show how far a fourth would fall. IQM and probability of improvement are those of Agarwal et
al. 2021 (rliable). No figure is ever that of the best run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentrl_cli.report.statistics import DRAWS, Interval

Array = np.ndarray
Outcomes = Mapping[str, Sequence[float]]  # the values of each task of one run


@dataclass(frozen=True)
class Noise:
    """How far runs that differ in their seed alone lie apart: the pooled standard deviation of
    their scores, and the degrees of freedom it rests on."""

    deviation: float
    freedom: int

    @property
    def least_difference(self) -> float:
        """What the difference of two single runs must exceed to be no play of seeds at 95 %."""
        return 1.96 * math.sqrt(2) * self.deviation


def crossed(runs: Sequence[Outcomes], seed: int = 0) -> Interval:
    """Mean success over runs and tasks; both are resampled, a task in all runs at once.

    The product bootstrap of Owen 2007 ("The pigeonhole bootstrap"); of one run it is the cluster
    bootstrap. Raises ValueError without values.
    """
    tasks = sorted({task for run in runs for task in run})
    sums, counts = _table(runs, tasks)
    if not counts.sum():
        raise ValueError("an interval needs at least one value")
    rng = np.random.default_rng(seed)
    by_run, by_task = _weights(rng, len(runs)), _weights(rng, len(tasks))
    return _interval(float(sums.sum() / counts.sum()), _means(sums, counts, by_run, by_task))


def paired(ours: Mapping[Any, Outcomes], theirs: Mapping[Any, Outcomes], seed: int = 0) -> Interval:
    """Mean difference (ours - theirs) over the tasks that both played; runs are given by seed.

    Tasks are resampled together on both sides, and so are runs where both have the same seeds.
    Raises ValueError where no task is common.
    """
    mine = {task for run in ours.values() for task in run}
    tasks = sorted(mine & {task for run in theirs.values() for task in run})
    if not tasks:
        raise ValueError("runs that played no common task cannot be compared in pairs")
    left = _table([ours[s] for s in sorted(ours)], tasks)
    right = _table([theirs[s] for s in sorted(theirs)], tasks)
    rng = np.random.default_rng(seed)
    by_task, by_run = _weights(rng, len(tasks)), _weights(rng, len(ours))
    by_other = by_run if set(ours) == set(theirs) else _weights(rng, len(theirs))
    draws = _means(*left, by_run, by_task) - _means(*right, by_other, by_task)
    mean = left[0].sum() / left[1].sum() - right[0].sum() / right[1].sum()
    return _interval(float(mean), draws)


def iqm(scores: Sequence[float], seed: int = 0) -> Interval:
    """Interquartile mean of the runs' scores: the mean without the lowest and the highest quarter
    (of fewer than four: without none), runs resampled. Agarwal et al. 2021, section 4."""
    values = np.asarray(scores, dtype=float)
    picks = np.random.default_rng(seed).integers(0, len(values), (DRAWS, len(values)))
    return _interval(float(_trimmed(values)), _trimmed(values[picks]))


def improvement(ours: Sequence[float], theirs: Sequence[float], seed: int = 0) -> Interval:
    """The probability that one of our runs scores above one of theirs, ties counting half (the
    Mann-Whitney statistic); runs of both sides are resampled. Agarwal et al. 2021, section 4.2."""
    x, y = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    above = (x[:, None] > y) + 0.5 * (x[:, None] == y)
    rng = np.random.default_rng(seed)
    by_x, by_y = _weights(rng, len(x)), _weights(rng, len(y))
    draws = np.einsum("dx,xy,dy->d", by_x, above, by_y) / (len(x) * len(y))
    return _interval(float(above.mean()), draws)


def noise(groups: Sequence[Sequence[float]]) -> Noise | None:
    """The noise floor from the scores of each configuration's runs; None where no configuration
    has two."""
    several = [np.asarray(group, dtype=float) for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in several)
    if not freedom:
        return None
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in several)
    return Noise(math.sqrt(squares / freedom), freedom)


def reached(xs: Sequence[float], ys: Sequence[float], threshold: float) -> float | None:
    """The first x whose y is at least the threshold; None where it is never reached."""
    return next((x for x, y in zip(xs, ys, strict=True) if y >= threshold), None)


def trailing(values: Sequence[float], width: int) -> list[float]:
    """The mean of each value and the `width - 1` before it (of those there are)."""
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=float))])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    return list(map(float, (sums[ends] - sums[starts]) / (ends - starts)))


def band(rows: Array, seed: int = 0) -> tuple[Array, Array]:
    """Low and high of the mean of curves (runs x points): the 95 % bootstrap interval over runs."""
    means = _weights(np.random.default_rng(seed), len(rows)) @ rows / len(rows)
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    return low, high


def _table(runs: Sequence[Outcomes], tasks: Sequence[str]) -> tuple[Array, Array]:
    """Sums and numbers of values, runs x tasks."""
    sums = [[float(sum(run.get(task, ()))) for task in tasks] for run in runs]
    counts = [[float(len(run.get(task, ()))) for task in tasks] for run in runs]
    return np.array(sums), np.array(counts)


def _weights(rng: np.random.Generator, size: int) -> Array:
    """How often each of `size` things is drawn, in every one of DRAWS resamples."""
    return rng.multinomial(size, np.full(size, 1 / size), DRAWS).astype(float)


def _means(sums: Array, counts: Array, by_run: Array, by_task: Array) -> Array:
    """The mean of each resample; NaN where it drew no value."""
    total = np.einsum("dt,dt->d", by_run @ sums, by_task)
    count = np.einsum("dt,dt->d", by_run @ counts, by_task)
    return total / np.where(count, count, np.nan)


def _trimmed(values: Array) -> Array:
    cut = values.shape[-1] // 4
    return np.sort(values, -1)[..., cut : values.shape[-1] - cut].mean(-1)


def _interval(mean: float, draws: Array) -> Interval:
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return Interval(mean, float(low), float(high))
