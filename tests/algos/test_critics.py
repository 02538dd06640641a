"""Rank correlation, Brier score and explained variance against hand computations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_cli.algos.critics import (
    ValuedState,
    auc_same_turn,
    critic_metrics,
    explained_variance,
    rank_correlation,
    rank_same_turn,
)


def states(*rows: tuple[int, float, float]) -> list[ValuedState]:
    """Of turn, value and return; an episode with a return above 0 was won."""
    return [ValuedState(*row, won=row[-1] > 0) for row in rows]


def test_rank_correlation_with_ties_by_hand():
    # deviations of the ranks: -1.5, 0, 0, 1.5 and -1, -1, 1, 1
    found = rank_correlation([0.1, 0.5, 0.5, 0.9], [0.0, 0.0, 1.0, 1.0])
    assert found == pytest.approx(3 / (4.5 * 4) ** 0.5)


def test_constant_side_has_rank_correlation_zero():
    assert rank_correlation([0.3, 0.3], [0.0, 1.0]) == rank_correlation([0.1, 0.2], [1, 1]) == 0
    assert rank_correlation([], []) == 0


def test_rank_correlation_within_turns_by_hand():
    blind = states((0, 0.2, 0.0), (0, 0.2, 0.0), (0, 0.2, 1.0), (1, 0.9, 1.0), (1, 0.9, 1.0))
    assert rank_same_turn(blind) == 0 and critic_metrics(blind)["critic/rank_correlation"] > 0.6
    # three states of turn 0 in the right order, two of turn 1 in the wrong one
    seeing = states((0, 0.1, 0.0), (0, 0.2, 1.0), (0, 0.3, 2.0), (1, 0.9, 0.0), (1, 0.8, 1.0))
    assert rank_same_turn(seeing) == pytest.approx((3 * 1 + 2 * -1) / 5)


def test_auc_compares_success_not_reward():
    rows = [ValuedState(0, 0.9, 0.2, won=True), ValuedState(0, 0.1, 0.8, won=False)]
    assert auc_same_turn(rows) == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 1)), max_size=20))
def test_auc_equals_share_of_ordered_pairs(rows):
    found = states(*((turn, float(value), float(won)) for turn, value, won in rows))
    pairs = [(a, b) for a in found for b in found if a.turn == b.turn and a.won and not b.won]
    right = sum(1.0 if a.value > b.value else 0.5 * (a.value == b.value) for a, b in pairs)
    assert auc_same_turn(found) == pytest.approx(right / len(pairs) if pairs else 0.5)


def test_brier_ratio_by_hand():
    rows = states((0, 0.5, 0.0), (0, 0.5, 1.0), (1, 0.5, 1.0), (1, 0.5, 1.0))
    # a constant does best with the mean, 3/4: 3/4 * 1/4
    assert critic_metrics(rows)["critic/brier_ratio"] == pytest.approx(0.25 / 0.1875)
    right = states((0, 0.75, 0.0), (0, 0.75, 1.0), (1, 0.75, 1.0), (1, 0.75, 1.0))
    assert critic_metrics(right)["critic/brier_ratio"] == pytest.approx(1)
    assert "critic/brier_ratio" not in critic_metrics(states((0, 0.2, 1.0), (1, 0.9, 1.0)))


def test_explained_variance_by_hand():
    returns = [0.0, 1.0, 2.0]
    assert explained_variance(returns, returns) == 1
    assert explained_variance([5.0, 6.0, 7.0], returns) == 1  # an offset is not variance
    assert explained_variance([0.4, 0.4, 0.4], returns) == pytest.approx(0)
    assert explained_variance([2.0, 1.0, 0.0], returns) == pytest.approx(-3)
    assert explained_variance([0.1, 0.2], [1.0, 1.0]) == explained_variance([], []) == 0


def test_critic_metrics_by_hand():
    assert critic_metrics(states((0, 0.2, 0.0), (0, 0.9, 1.0))) == {
        "critic/rank_correlation": pytest.approx(1),
        "critic/rank_same_turn": pytest.approx(1),
        "critic/auc_same_turn": 1,
        "critic/brier": pytest.approx((0.04 + 0.01) / 2),
        "critic/brier_ratio": pytest.approx((0.04 + 0.01) / 2 / 0.25),
        "critic/value_bias": pytest.approx(0.05),
    }
    assert critic_metrics([]) == {}
