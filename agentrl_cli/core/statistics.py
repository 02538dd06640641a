"""Confidence intervals. Episodes of one task are not independent, nor are those of one run, so
tasks and runs are the units. Intervals over several runs are in `report.seeds`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

Z = 1.959964  # 97.5 % quantile of the standard normal distribution
STUDENT = (  # 97.5 % quantiles of Student's t with 1, 2, … degrees of freedom
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
ROUNDING = 1e-24  # a variance that is only rounding
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

    def metrics(self, name: str) -> dict[str, float]:
        """Return the mean as `name` and the ends as `name`_low and `name`_high."""
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}


def interval_over_tasks(values: Sequence[Sequence[float]], *, least: float = 0.0) -> Interval:
    """Return the mean of the values of all tasks with its 95 % interval for new tasks.

    `values` has one list per task, of values between `least` and 1. Raises ValueError without
    values.
    """
    rows = [row for row in values if row]
    sums, counts = np.array([[sum(row) for row in rows]]), np.array([[len(row) for row in rows]])
    average, errors = errors_of_mean(sums, counts)
    return crossed_interval(average, [errors], least=least)


def errors_of_mean(sums: Array, counts: Array) -> tuple[float, Array]:
    """Return the mean of all values, and what each run and task adds to its error.

    The arguments are the sums and the numbers of values. All arrays have the shape [runs, tasks].
    The errors sum to 0. Raises ValueError without values.
    """
    if not counts.sum():
        raise ValueError("an interval needs at least one value")
    average = float(sums.sum() / counts.sum())
    return average, (sums - average * counts) / counts.sum()


def crossed_interval(value: float, groups: Sequence[Array], *, least: float = 0.0) -> Interval:
    """Return the 95 % interval of a mean, or of a difference of means, for new runs and new tasks.

    `groups` has the `errors_of_mean` [runs, tasks] of one or more sets of independent runs on the
    same tasks. The quantile is that of Student's t. The ends are between `least` and 1. With one
    run per group the interval is only for new tasks. If the standard error is 0, it is
    `interval_of_equals`.
    """
    error, freedom = standard_error(groups)
    if not error:
        return interval_of_equals(value, groups[0].shape[1], least)
    half = student(freedom) * error
    return Interval(value, max(least, value - half), min(1.0, value + half))


def standard_error(groups: Sequence[Array]) -> tuple[float, float]:
    """Return the standard error of a mean, or of a difference of means, and its degrees of freedom.

    `groups` is as for `crossed_interval`. The variance, V = V_runs + V_tasks - V_rest, is that of a
    two-way analysis of variance with random runs and tasks (Searle, Casella and McCulloch 1992). It
    is at least the larger of V_runs and V_tasks. The degrees of freedom are those of Satterthwaite
    1946, infinite if V is 0.
    """
    by_task = np.sum([group.sum(0) for group in groups], axis=0)
    parts = [(_spread(by_task), len(by_task) - 1), *_spread_of_runs(groups)]
    total = sum(part for part, _ in parts)
    variance = max(total - sum(map(_rest, groups)), parts[0][0], total - parts[0][0])
    if variance < ROUNDING:
        return 0.0, math.inf
    return math.sqrt(variance), variance**2 / sum(part**2 / count for part, count in parts if count)


def student(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t, interpolated between degrees of freedom."""
    inverse = [0.0, *(1.0 / n for n in range(len(STUDENT), 0, -1))]
    return float(np.interp(1.0 / freedom, inverse, [Z, *reversed(STUDENT)]))


def _spread_of_runs(groups: Sequence[Array]) -> list[tuple[float, int]]:
    """Return the variance that the runs of each group add, with its degrees of freedom. A single
    run beside several is assumed to vary as much as each of these."""
    found = [(_spread(group.sum(1)), len(group) - 1) for group in groups]
    freedom = sum(count for _, count in found)
    if not freedom:
        return found
    of_one = sum(spread * (count + 1) * count for spread, count in found) / freedom
    return [part if part[1] else (of_one, freedom) for part in found]


def _spread(errors: Array) -> float:
    """Return the variance of the sum of independent errors whose sum is 0."""
    n = len(errors)
    return n / (n - 1) * float((errors**2).sum()) if n > 1 else 0.0


def _rest(errors: Array) -> float:
    """Return what neither runs nor tasks explain of the variance of the sum of errors [runs,
    tasks], which the variances of runs and of tasks both contain."""
    runs, tasks = errors.shape
    if runs == 1 or tasks == 1:
        return 0.0
    own = errors - errors.mean(0) - errors.mean(1, keepdims=True)
    return runs * tasks / ((runs - 1) * (tasks - 1)) * float((own**2).sum())


def interval_of_equals(value: float, tasks: int, least: float = 0.0) -> Interval:
    """Return the 95 % interval of a mean over tasks that all have the same value.

    Up to the share z²/(n + z²) of all tasks may have another value between `least` and 1 (Wilson
    1927, no success in n trials). For the values 0 and 1 this is Wilson's interval.
    """
    others = Z**2 / (tasks + Z**2)
    return Interval(value, value - others * (value - least), value + others * (1.0 - value))


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
