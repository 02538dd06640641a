"""What must be watched of a value function: does it rank states as they turned out, and is it the
size of what was still earned. Nothing here trains."""

from __future__ import annotations

import statistics

from agentrl_cli.algos.packed import Packed


def watch_values(packed: list[Packed], discount: float) -> dict[str, float]:
    """`critic/…` over the states of ended episodes in which an action followed; nothing of none."""
    rows = [
        (k, value, earned)
        for one in packed
        if one.episode.stop == "done"
        for k, (value, earned) in enumerate(
            zip(one.values[:-1], returns(one.rewards, discount), strict=False)
        )
    ]
    if not rows:
        return {}
    gaps = [value - earned for _, value, earned in rows]
    return {
        "critic/rank_correlation": rank_correlation([row[1:] for row in rows]),
        "critic/rank_same_turn": _within_turns(rows),
        "critic/brier": statistics.fmean(gap**2 for gap in gaps),
        "critic/optimism": statistics.fmean(gaps),
    }


def returns(rewards: list[float], discount: float) -> list[float]:
    """What was still earned from each state on, discounted."""
    found, later = [], 0.0
    for reward in reversed(rewards):
        later = reward + discount * later
        found.append(later)
    return found[::-1]


def rank_correlation(pairs: list[tuple[float, float]]) -> float:
    """Spearman's coefficient of the pairs, ties at their mean rank; 0 where a side is constant."""
    left, right = (_ranks(list(side)) for side in zip(*pairs, strict=True))
    if len(set(left)) < 2 or len(set(right)) < 2:
        return 0.0
    return statistics.correlation(left, right)


def _within_turns(rows: list[tuple[int, float, float]]) -> float:
    """The mean rank correlation among states of the same turn, weighted by their number."""
    turns: dict[int, list[tuple[float, float]]] = {}
    for k, value, earned in rows:
        turns.setdefault(k, []).append((value, earned))
    return sum(len(pairs) * rank_correlation(pairs) for pairs in turns.values()) / len(rows)


def _ranks(numbers: list[float]) -> list[float]:
    places: dict[float, list[int]] = {}
    for place, number in enumerate(sorted(numbers)):
        places.setdefault(number, []).append(place)
    return [statistics.fmean(places[number]) for number in numbers]
