"""Intervals over tasks: episodes of one task are not independent, so tasks are resampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 2000


@dataclass(frozen=True)
class Interval:
    """A mean over tasks and its 95 % interval."""

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


def pass_hat_k(successes: Sequence[bool], k: int) -> float:
    """An unbiased estimate, from one task's episodes, of the chance that k of them all succeed.

    C(c, k) / C(n, k) for c successes of n episodes (Yao et al. 2024, τ-bench, section 3); a mean
    over tasks is pass^k. Raises ValueError where k is not between 1 and n.
    """
    if not 1 <= k <= len(successes):
        raise ValueError(f"pass^{k} needs at least {max(1, k)} episodes, not {len(successes)}")
    return math.comb(sum(map(bool, successes)), k) / math.comb(len(successes), k)
