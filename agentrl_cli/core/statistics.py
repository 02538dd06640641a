"""Intervals over tasks: episodes of one task are not independent, so tasks are resampled. Intervals
over several runs (seeds) are in `report.seeds`, which resamples in the same way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
EQUAL = 1e-12  # resampled means that differ by less are the same but for rounding
Z = 1.959964  # standard deviations of a normal distribution that hold 95 % of it
Array = np.ndarray


def mean(values: Iterable[float]) -> float:
    """The mean, 0 of nothing."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0


@dataclass(frozen=True)
class Interval:
    """A figure and its 95 % interval."""

    mean: float
    low: float
    high: float


def cluster_bootstrap(
    values: Sequence[Sequence[float]], seed: int = 0, *, least: float = 0.0
) -> Interval:
    """Mean and 95 % percentile bootstrap interval, resampling tasks: a list of values between
    `least` and 1 for each. The cluster bootstrap of Davison and Hinkley 1997, section 3.8. Raises
    ValueError without values."""
    sums = np.array([[sum(row) for row in values]], dtype=float)
    counts = np.array([[len(row) for row in values]], dtype=float)
    return bootstrap_runs_and_tasks(sums, counts, seed, least=least)


def bootstrap_runs_and_tasks(
    sums: Array, counts: Array, seed: int, *, least: float = 0.0
) -> Interval:
    """The mean of values, given as their sums and counts by run and task (both [runs, tasks]), with
    its interval: runs and tasks are drawn, a task in all runs at once. A single run takes no draw,
    so its interval is the same wherever it is computed. Raises ValueError without values."""
    if not counts.sum():
        raise ValueError("an interval needs at least one value")
    rng = np.random.default_rng(seed)
    by_run = resample_counts(rng, sums.shape[0])  # [resamples, runs]
    by_task = resample_counts(rng, sums.shape[1])  # [resamples, tasks]
    mean = float(sums.sum() / counts.sum())
    draws = resampled_means(sums, counts, by_run, by_task)
    return interval_over_tasks(mean, draws, int(counts.any(0).sum()), least)


def resample_counts(rng: np.random.Generator, size: int) -> Array:
    """How often each of `size` things is drawn in every resample, [RESAMPLES, size]."""
    picks = rng.integers(0, size, (RESAMPLES, size)) + size * np.arange(RESAMPLES)[:, None]
    counts = np.bincount(picks.ravel(), minlength=RESAMPLES * size)  # row by row, offset by size
    return counts.reshape(RESAMPLES, size).astype(float)


def resampled_means(sums: Array, counts: Array, by_run: Array, by_task: Array) -> Array:
    """The mean of each resample, [resamples]; NaN where it drew no value."""
    total = np.einsum("dt,dt->d", by_run @ sums, by_task)
    count = np.einsum("dt,dt->d", by_run @ counts, by_task)
    return total / np.where(count, count, np.nan)


def interval_over_tasks(mean: float, draws: Array, tasks: int, least: float) -> Interval:
    """`percentile_interval`, but where all `tasks` have the same share, or the same end or no
    difference, `interval_of_equals`: there resampling knows of no other one."""
    may_be_equal = least == 0.0 or mean in (least, 0.0, 1.0)
    if may_be_equal and np.nanmax(draws) - np.nanmin(draws) < EQUAL:
        return interval_of_equals(mean, tasks, least)
    return percentile_interval(mean, draws)


def interval_of_equals(value: float, tasks: int, least: float = 0.0) -> Interval:
    """The 95 % interval of a mean over tasks whose values, between `least` and 1, are all `value`.
    As none of n is otherwise, up to the share z²/(n + z²) of all tasks may be (Wilson 1927, for no
    success of n trials), each as far off as can be; of 0 and of 1 this is Wilson's interval."""
    others = Z**2 / (tasks + Z**2)
    return Interval(value, value - others * (value - least), value + others * (1.0 - value))


def percentile_interval(mean: float, draws: Array) -> Interval:
    """A figure with the range in which 95 % of the resamples lie."""
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return Interval(mean, float(low), float(high))


def pass_at_k(correct: int, n: int, k: int) -> float:
    """An unbiased estimate, from n episodes of one task, of the chance that one of k succeeds:
    1 - C(n - c, k) / C(n, k) for c successes (Chen et al. 2021, arXiv 2107.03374, equation 1).
    Raises ValueError where k is not between 1 and n or `correct` not between 0 and n."""
    if not 1 <= k <= n or not 0 <= correct <= n:
        raise ValueError(f"pass@{k} of {correct} successes in {n} episodes does not exist")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_hat_k(successes: Sequence[bool], k: int) -> float:
    """An unbiased estimate, from one task's episodes, of the chance that k of them all succeed.
    C(c, k) / C(n, k) for c successes of n episodes (Yao et al. 2024, τ-bench, section 3); a mean
    over tasks is pass^k. Raises ValueError where k is not between 1 and n."""
    if not 1 <= k <= len(successes):
        raise ValueError(f"pass^{k} needs at least {max(1, k)} episodes, not {len(successes)}")
    return math.comb(sum(map(bool, successes)), k) / math.comb(len(successes), k)
