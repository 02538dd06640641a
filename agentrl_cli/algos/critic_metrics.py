"""How far a scalar critic can be trusted: numbers over lists of values and of the rewards that
followed. Nothing here trains."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

Numbers = Sequence[float]


@dataclass(frozen=True)
class ValuedState:
    """A state of an ended episode: the number of its turn, the critic's value, the discounted
    rewards that were still earned from there on, and whether the episode was won."""

    turn: int
    value: float
    return_to_go: float
    won: bool


def critic_metrics(states: Sequence[ValuedState]) -> dict[str, float]:
    """`critic/…` of these states; nothing of none."""
    if not states:
        return {}
    values = [state.value for state in states]
    returns = [state.return_to_go for state in states]
    constant = statistics.pvariance(returns)  # the Brier score of their mean, the best constant
    ratio = {"critic/brier_ratio": brier(values, returns) / constant} if constant else {}
    return {
        "critic/rank_correlation": rank_correlation(values, returns),
        "critic/rank_same_turn": rank_same_turn(states),
        "critic/auc_same_turn": auc_same_turn(states),
        "critic/brier": brier(values, returns),
        "critic/optimism": statistics.fmean(values) - statistics.fmean(returns),
        **ratio,
    }


def rank_same_turn(states: Sequence[ValuedState]) -> float:
    """The mean rank correlation among states of one turn number, weighted by their number."""
    total = 0.0
    for row in by_turn(states):
        values, returns = [s.value for s in row], [s.return_to_go for s in row]
        total += len(row) * rank_correlation(values, returns)
    return total / len(states)


def auc_same_turn(states: Sequence[ValuedState]) -> float:
    """The share of pairs of states of one turn number, one of a won episode and one of a lost, in
    which the won one has the higher value; ties count half; 0.5 of no pair. By the sum of ranks
    (Mann and Whitney 1947)."""
    right, pairs = 0.0, 0
    for row in by_turn(states):
        rank_of_won = [r for r, s in zip(ranks([s.value for s in row]), row, strict=True) if s.won]
        won = len(rank_of_won)
        right += sum(rank_of_won) - won * (won + 1) / 2
        pairs += won * (len(row) - won)
    return right / pairs if pairs else 0.5


def by_turn(states: Sequence[ValuedState]) -> list[list[ValuedState]]:
    """The states of each turn number."""
    turns: dict[int, list[ValuedState]] = defaultdict(list)
    for state in states:
        turns[state.turn].append(state)
    return list(turns.values())


def rank_correlation(xs: Numbers, ys: Numbers) -> float:
    """Spearman's coefficient (Spearman 1904): Pearson's of the ranks, tied numbers sharing their
    mean rank; 0 where one side is constant. Raises ValueError unless both are equally long."""
    if len(xs) != len(ys):
        raise ValueError(f"{len(xs)} numbers cannot be ranked against {len(ys)}")
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return 0.0
    return statistics.correlation(ranks(xs), ranks(ys))


def ranks(numbers: Numbers) -> list[float]:
    """The rank of each number from 1 up; equal numbers share the mean of their ranks."""
    order = sorted(numbers)
    return [(bisect_left(order, n) + 1 + bisect_right(order, n)) / 2 for n in numbers]


def brier(values: Numbers, outcomes: Numbers) -> float:
    """Mean squared difference between values and outcomes (Brier 1950, where these are 0 or 1)."""
    return statistics.fmean((v - o) ** 2 for v, o in zip(values, outcomes, strict=True))


def explained_variance(values: Numbers, returns: Numbers) -> float:
    """The share of the returns' variance that the values account for, 1 - Var(returns - values) /
    Var(returns); negative where a constant would be nearer; 0 where returns do not vary."""
    residuals = [r - v for v, r in zip(values, returns, strict=True)]
    variance = statistics.pvariance(returns) if returns else 0.0
    return 1 - statistics.pvariance(residuals) / variance if variance else 0.0
