"""Rank correlation, Brier score and explained variance against hand computations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_cli.algos.critic_metrics import (
    ValuedState,
    brier,
    critic_metrics,
    explained_variance,
    rank_correlation,
    rank_same_turn,
    ranks,
)


def states(*rows: tuple[int, float, float]) -> list[ValuedState]:
    return [ValuedState(*row) for row in rows]


def test_equal_numbers_share_the_mean_of_their_ranks():
    assert ranks([30.0, 10.0, 20.0, 10.0]) == [4.0, 1.5, 3.0, 1.5]
    assert ranks([7.0, 7.0, 7.0]) == [2.0, 2.0, 2.0]


def test_rank_correlation_by_hand():
    # ranks 1, 2, 3, 4 and 2, 1, 4, 3: 1 - 6 * (1 + 1 + 1 + 1) / (4 * 15)
    assert rank_correlation([0.1, 0.2, 0.3, 9.0], [2.0, 1.0, 40.0, 3.0]) == pytest.approx(0.6)


def test_rank_correlation_with_ties_is_pearsons_of_the_mean_ranks():
    # deviations of the ranks: -1.5, 0, 0, 1.5 and -1, -1, 1, 1
    found = rank_correlation([0.1, 0.5, 0.5, 0.9], [0.0, 0.0, 1.0, 1.0])
    assert found == pytest.approx(3 / (4.5 * 4) ** 0.5)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=8, unique=True))
def test_rank_correlation_sees_the_order_only(numbers: list[int]):
    xs = [float(n) for n in numbers]
    assert rank_correlation(xs, [x**3 for x in xs]) == pytest.approx(1)
    assert rank_correlation(xs, [-x for x in xs]) == pytest.approx(-1)


def test_a_side_that_does_not_vary_has_no_rank_correlation():
    assert rank_correlation([0.3, 0.3], [0.0, 1.0]) == rank_correlation([0.1, 0.2], [1, 1]) == 0
    assert rank_correlation([], []) == 0


def test_lists_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match="1 numbers cannot be ranked against 2"):
        rank_correlation([1.0], [1.0, 2.0])


def test_brier_by_hand():
    assert brier([0.8, 0.3], [1.0, 1.0]) == pytest.approx((0.04 + 0.49) / 2)


def test_a_critic_that_only_counts_turns_ranks_nothing_within_a_turn():
    blind = states((0, 0.2, 0.0), (0, 0.2, 0.0), (0, 0.2, 1.0), (1, 0.9, 1.0), (1, 0.9, 1.0))
    assert rank_same_turn(blind) == 0 and critic_metrics(blind)["critic/rank_correlation"] > 0.6
    # three states of turn 0 in the right order, two of turn 1 in the wrong one
    seeing = states((0, 0.1, 0.0), (0, 0.2, 1.0), (0, 0.3, 2.0), (1, 0.9, 0.0), (1, 0.8, 1.0))
    assert rank_same_turn(seeing) == pytest.approx((3 * 1 + 2 * -1) / 5)


def test_explained_variance_by_hand():
    returns = [0.0, 1.0, 2.0]
    assert explained_variance(returns, returns) == 1
    assert explained_variance([5.0, 6.0, 7.0], returns) == 1  # an offset is not variance
    assert explained_variance([0.4, 0.4, 0.4], returns) == pytest.approx(0)
    assert explained_variance([2.0, 1.0, 0.0], returns) == pytest.approx(-3)
    assert explained_variance([0.1, 0.2], [1.0, 1.0]) == explained_variance([], []) == 0


def test_metrics_have_their_names_and_nothing_is_said_of_nothing():
    assert critic_metrics(states((0, 0.2, 0.0), (0, 0.9, 1.0))) == {
        "critic/rank_correlation": pytest.approx(1),
        "critic/rank_same_turn": pytest.approx(1),
        "critic/brier": pytest.approx((0.04 + 0.01) / 2),
        "critic/optimism": pytest.approx(0.05),
    }
    assert critic_metrics([]) == {}
