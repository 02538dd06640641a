"""Intervals over tasks: episodes of one task are not independent, so tasks are resampled.

What is said of several runs (seeds) is in `seeds`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 2000


@dataclass(frozen=True)
class Interval:
    """A figure and its 95 % interval."""

    mean: float
    low: float
    high: float


def clustered(values: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """Mean and 95 % percentile bootstrap interval, resampling tasks: a list of values for each.

    The cluster bootstrap of Davison and Hinkley 1997, section 3.8. Raises ValueError without
    values.
    """
    sums = np.array([sum(row) for row in values], dtype=float)
    counts = np.array([len(row) for row in values], dtype=float)
    if not counts.sum():
        raise ValueError("an interval needs at least one value")
    picks = np.random.default_rng(seed).integers(0, len(sums), (DRAWS, len(sums)))
    means = sums[picks].sum(1) / np.maximum(1.0, counts[picks].sum(1))
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(sums.sum() / counts.sum()), float(low), float(high))


def pass_at_k(correct: int, n: int, k: int) -> float:
    """An unbiased estimate, from n episodes of one task, of the chance that one of k succeeds.

    1 - C(n - c, k) / C(n, k) for c successes (Chen et al. 2021, arXiv 2107.03374, equation 1).
    Raises ValueError where k is not between 1 and n or `correct` not between 0 and n.
    """
    if not 1 <= k <= n or not 0 <= correct <= n:
        raise ValueError(f"pass@{k} of {correct} successes in {n} episodes does not exist")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_hat_k(successes: Sequence[bool], k: int) -> float:
    """An unbiased estimate, from one task's episodes, of the chance that k of them all succeed.

    C(c, k) / C(n, k) for c successes of n episodes (Yao et al. 2024, τ-bench, section 3); a mean
    over tasks is pass^k. Raises ValueError where k is not between 1 and n.
    """
    if not 1 <= k <= len(successes):
        raise ValueError(f"pass^{k} needs at least {max(1, k)} episodes, not {len(successes)}")
    return math.comb(sum(map(bool, successes)), k) / math.comb(len(successes), k)
