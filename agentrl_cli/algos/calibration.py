"""How far a scalar critic can be trusted: numbers over lists of values and of what came true."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

Numbers = Sequence[float]


def outcome_metrics(values: Numbers, outcomes: Numbers) -> dict[str, float]:
    """`critic/rank_correlation` and `critic/brier` of values against outcomes (1: success, 0: not)
    of the episodes that they were read in; nothing without values."""
    if not values:
        return {}
    return {
        "critic/rank_correlation": rank_correlation(values, outcomes),
        "critic/brier": brier(values, outcomes),
    }


def rank_correlation(xs: Numbers, ys: Numbers) -> float:
    """Spearman's coefficient: Pearson's of the ranks, tied numbers sharing their mean rank; 0 where
    one side is constant. Raises ValueError unless both are equally long."""
    if len(xs) != len(ys):
        raise ValueError(f"{len(xs)} numbers cannot be ranked against {len(ys)}")
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return 0.0
    return statistics.correlation(ranks(xs), ranks(ys))


def ranks(numbers: Numbers) -> list[float]:
    """The rank of each number from 1 up; equal numbers share the mean of their ranks."""
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    found, start = [0.0] * len(numbers), 0
    while start < len(order):
        end = start + 1
        while end < len(order) and numbers[order[end]] == numbers[order[start]]:
            end += 1
        for place in order[start:end]:
            found[place] = (start + 1 + end) / 2
        start = end
    return found


def brier(values: Numbers, outcomes: Numbers) -> float:
    """Mean squared difference between values, held in [0, 1], and outcomes (Brier 1950)."""
    pairs = zip(values, outcomes, strict=True)
    return statistics.fmean((min(1.0, max(0.0, v)) - o) ** 2 for v, o in pairs)


def explained_variance(values: Numbers, returns: Numbers) -> float:
    """The share of the returns' variance that the values account for, 1 - Var(returns - values) /
    Var(returns); negative where a constant would be nearer; 0 where returns do not vary."""
    gaps = [r - v for v, r in zip(values, returns, strict=True)]
    spread = statistics.pvariance(returns) if returns else 0.0
    return 1 - statistics.pvariance(gaps) / spread if spread else 0.0
