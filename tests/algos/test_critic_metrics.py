"""Rank correlation, Brier score and explained variance against hand computations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_cli.algos.critic_metrics import (
    ValuedState,
    auc_same_turn,
    brier,
    critic_metrics,
    explained_variance,
    rank_correlation,
    rank_same_turn,
    ranks,
)


def states(*rows: tuple[int, float, float]) -> list[ValuedState]:
    """Of turn, value and return; an episode with a return above 0 was won."""
    return [ValuedState(*row, won=row[-1] > 0) for row in rows]


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


def test_the_auc_among_states_of_one_turn_by_hand():
    # turn 0: the won 0.5 is above one of two lost ones and ties with the other; turn 1: one wrong
    # pair; turn 2 has no lost state; the gap between turns counts for nothing
    rows = states(
        (0, 0.5, 1.0), (0, 0.5, 0.0), (0, 0.1, 0.0), (1, 0.7, 1.0), (1, 0.9, 0.0), (2, 9.0, 1.0)
    )  # fmt: skip
    assert auc_same_turn(rows) == pytest.approx((1 + 0.5 + 0) / 3)
    assert auc_same_turn(states((0, 0.1, 0.0), (1, 0.9, 1.0))) == auc_same_turn([]) == 0.5


def test_the_auc_asks_who_won_and_not_how_much_was_earned():
    rows = [ValuedState(0, 0.9, 0.2, won=True), ValuedState(0, 0.1, 0.8, won=False)]
    assert auc_same_turn(rows) == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 1)), max_size=20))
def test_the_auc_is_the_share_of_pairs_of_one_turn_that_are_ranked_right(rows):
    found = states(*((turn, float(value), float(won)) for turn, value, won in rows))
    pairs = [(a, b) for a in found for b in found if a.turn == b.turn and a.won and not b.won]
    right = sum(1.0 if a.value > b.value else 0.5 * (a.value == b.value) for a, b in pairs)
    assert auc_same_turn(found) == pytest.approx(right / len(pairs) if pairs else 0.5)


def test_the_brier_score_is_shown_as_a_share_of_the_best_constants():
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


def test_metrics_have_their_names_and_nothing_is_said_of_nothing():
    assert critic_metrics(states((0, 0.2, 0.0), (0, 0.9, 1.0))) == {
        "critic/rank_correlation": pytest.approx(1),
        "critic/rank_same_turn": pytest.approx(1),
        "critic/auc_same_turn": 1,
        "critic/brier": pytest.approx((0.04 + 0.01) / 2),
        "critic/brier_ratio": pytest.approx((0.04 + 0.01) / 2 / 0.25),
        "critic/optimism": pytest.approx(0.05),
    }
    assert critic_metrics([]) == {}
