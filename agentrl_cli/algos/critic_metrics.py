"""How far a scalar critic can be trusted: numbers over lists of values and of what was still earned
from there on. Nothing here trains."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

Numbers = Sequence[float]
Row = tuple[int, float, float]


def critic_metrics(rows: Sequence[Row]) -> dict[str, float]:
    """`critic/…` of states, each as (number of its turn, value, what was still earned); nothing of
    none."""
    if not rows:
        return {}
    values, earned = [value for _, value, _ in rows], [later for _, _, later in rows]
    return {
        "critic/rank_correlation": rank_correlation(values, earned),
        "critic/rank_same_turn": rank_same_turn(rows),
        "critic/brier": brier(values, earned),
        "critic/optimism": statistics.fmean(values) - statistics.fmean(earned),
    }


def rank_same_turn(rows: Sequence[Row]) -> float:
    """The mean rank correlation among states of one turn number, weighted by their number."""
    turns: dict[int, list[tuple[float, float]]] = {}
    for number, value, later in rows:
        turns.setdefault(number, []).append((value, later))
    total = 0.0
    for pairs in turns.values():
        total += len(pairs) * rank_correlation(*zip(*pairs, strict=True))
    return total / len(rows)


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
    """Mean squared difference between values and outcomes (Brier 1950, where these are 0 or 1)."""
    return statistics.fmean((v - o) ** 2 for v, o in zip(values, outcomes, strict=True))


def explained_variance(values: Numbers, returns: Numbers) -> float:
    """The share of the returns' variance that the values account for, 1 - Var(returns - values) /
    Var(returns); negative where a constant would be nearer; 0 where returns do not vary."""
    gaps = [r - v for v, r in zip(values, returns, strict=True)]
    spread = statistics.pvariance(returns) if returns else 0.0
    return 1 - statistics.pvariance(gaps) / spread if spread else 0.0
