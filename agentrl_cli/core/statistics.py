"""Confidence intervals. Episodes of one task are not independent, so tasks are resampled.
Intervals over several runs are in `report.seeds`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
EQUAL = 1e-12  # difference of resampled means that is only rounding
Z = 1.959964  # 97.5 % quantile of the standard normal distribution
Array = np.ndarray


def mean(values: Iterable[float]) -> float:
    """Return the mean, 0 without values."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def cluster_bootstrap(
    values: Sequence[Sequence[float]], seed: int = 0, *, least: float = 0.0
) -> Interval:
    """Return the mean of the values of all tasks with its 95 % percentile bootstrap interval.

    `values` has one list per task, of values between `least` and 1. Tasks are resampled: the
    cluster bootstrap of Davison and Hinkley 1997, section 3.8. Raises ValueError without values.
    """
    sums = np.array([[sum(row) for row in values]], dtype=float)
    counts = np.array([[len(row) for row in values]], dtype=float)
    return bootstrap_runs_and_tasks(sums, counts, seed, least=least)


def bootstrap_runs_and_tasks(
    sums: Array, counts: Array, seed: int, *, least: float = 0.0
) -> Interval:
    """Return the mean and its interval from the sums and counts of values by run and task.

    Both arrays have the shape [runs, tasks]. Runs and tasks are resampled, a task in all runs at
    once. A single run consumes no random numbers. Raises ValueError without values.
    """
    if not counts.sum():
        raise ValueError("an interval needs at least one value")
    rng = np.random.default_rng(seed)
    by_run = resample_counts(rng, sums.shape[0])  # [resamples, runs]
    by_task = resample_counts(rng, sums.shape[1])  # [resamples, tasks]
    mean = float(sums.sum() / counts.sum())
    draws = resampled_means(sums, counts, by_run, by_task)
    return interval_over_tasks(mean, draws, int(counts.any(0).sum()), least)


def resample_counts(rng: np.random.Generator, size: int) -> Array:
    """Return how often each of `size` items occurs in every resample, [RESAMPLES, size]."""
    picks = rng.integers(0, size, (RESAMPLES, size)) + size * np.arange(RESAMPLES)[:, None]
    counts = np.bincount(picks.ravel(), minlength=RESAMPLES * size)  # row by row, offset by size
    return counts.reshape(RESAMPLES, size).astype(float)


def resampled_means(sums: Array, counts: Array, by_run: Array, by_task: Array) -> Array:
    """Return the mean of each resample, [resamples]; NaN for a resample without values."""
    total = np.einsum("dt,dt->d", by_run @ sums, by_task)
    count = np.einsum("dt,dt->d", by_run @ counts, by_task)
    return total / np.where(count, count, np.nan)


def interval_over_tasks(mean: float, draws: Array, tasks: int, least: float) -> Interval:
    """Return the percentile interval of the resampled means, or `interval_of_equals` if they are
    all equal, since resampling then has no spread."""
    may_be_equal = least == 0.0 or mean in (least, 0.0, 1.0)
    if may_be_equal and np.nanmax(draws) - np.nanmin(draws) < EQUAL:
        return interval_of_equals(mean, tasks, least)
    return percentile_interval(mean, draws)


def interval_of_equals(value: float, tasks: int, least: float = 0.0) -> Interval:
    """Return the 95 % interval of a mean over tasks that all have the same value.

    Up to the share z²/(n + z²) of all tasks may have another value between `least` and 1 (Wilson
    1927, no success in n trials). For the values 0 and 1 this is Wilson's interval.
    """
    others = Z**2 / (tasks + Z**2)
    return Interval(value, value - others * (value - least), value + others * (1.0 - value))


def percentile_interval(mean: float, draws: Array) -> Interval:
    """Return the mean with the central 95 % of the resamples."""
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return Interval(mean, float(low), float(high))


def pass_at_k(correct: int, n: int, k: int) -> float:
    """Return an unbiased estimate of the probability that one of k episodes of a task succeeds.

    1 - C(n - c, k) / C(n, k) for c successes of n episodes (Chen et al. 2021, arXiv 2107.03374,
    equation 1). Raises ValueError unless 1 <= k <= n and 0 <= correct <= n.
    """
    if not 1 <= k <= n or not 0 <= correct <= n:
        raise ValueError(f"pass@{k} is undefined for {correct} successes in {n} episodes")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_hat_k(successes: Sequence[bool], k: int) -> float:
    """Return an unbiased estimate of the probability that k episodes of a task all succeed.

    C(c, k) / C(n, k) for c successes of n episodes (Yao et al. 2024, τ-bench, section 3). Raises
    ValueError unless 1 <= k <= n.
    """
    if not 1 <= k <= len(successes):
        raise ValueError(f"pass^{k} needs at least {max(1, k)} episodes, not {len(successes)}")
    return math.comb(sum(map(bool, successes)), k) / math.comb(len(successes), k)
