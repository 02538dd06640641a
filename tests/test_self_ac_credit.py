"""Whom Self-AC credits on a chain of states with known values, and how values are watched."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_cli.algos.packed import pack_episode
from agentrl_cli.algos.self_ac import SelfAC
from agentrl_cli.algos.value_watch import rank_correlation, returns, watch_values
from agentrl_cli.buffer import ReplayBuffer
from agentrl_cli.learner import Learner
from agentrl_cli.types import Episode
from tests.sample_nlac import episode
from tests.sample_self_ac import played, self_ac
from tests.test_grpo import grpo

CHAIN = [("Good.", "Good.", 1)] * 3 + [("Good.", "Bad.", 0)]
CHAIN += [("Bad.", "Good.", 1)] + [("Bad.", "Bad.", 0)] * 3


def chain() -> list[Episode]:
    """Two turns; the first leads to a state worth 3/4 or 1/4, the second decides."""
    made = []
    for i, (first, second, won) in enumerate(CHAIN):
        game = episode("here", [first, second], success=bool(won))
        game.id, game.group = f"here-{i}", "here"
        made.append(game)
    return made


@pytest.fixture(scope="module")
def judge(model_folder: Path) -> SelfAC:
    """A critic trained on the chain, whose policy stays as it was."""
    algo, models = self_ac(model_folder, alpha=1.0, gae_lambda=0.0)
    learner = Learner(models, algo.models(), tokens_per_batch=4096, seed=0, publish=print)
    for step in range(80):
        learner.run(algo.update(chain(), ReplayBuffer(None, 1)), step)
    return algo


def test_the_critic_learns_the_values_of_a_two_state_chain(judge: SelfAC):
    games = chain()
    packed = judge.read(games)
    for (first, _, won), one in zip(CHAIN, packed, strict=True):
        known = [0.5, 0.75 if first == "Good." else 0.25, won]
        assert one.values == pytest.approx(known, abs=0.1)
    report = judge.monitor(games)
    assert report["critic/rank_correlation"] > 0.3 and abs(report["critic/optimism"]) < 0.05
    # 1/2 at the first state, 3/4 or 1/4 at the second: mean of p (1 - p)
    assert report["critic/brier"] == pytest.approx((0.25 + 0.1875) / 2, abs=0.03)


def test_a_good_turn_before_a_bad_one_is_credited_where_grpo_blames_both(
    judge: SelfAC, model_folder: Path
):
    games = chain()
    judge.annotate(games)
    early_good_late_bad = games[3]
    good, bad = (turn.info["advantage"] for turn in early_good_late_bad.turns)
    assert good > 0.1 and bad < -0.5
    algo, _ = grpo(model_folder)
    list(algo.update(games, ReplayBuffer(None, 1)))
    good, bad = (turn.info["advantage"] for turn in early_good_late_bad.turns)
    assert good == bad < 0


def watched(*rows: tuple[list[float], list[float]], stop: str = "done") -> dict[str, float]:
    """The metrics of episodes with these rewards and these values of the states acted in."""
    packed = []
    for i, (rewards, values) in enumerate(rows):
        packed.append(pack_episode(played(f"e{i}", rewards, stop=stop), [7]))
        packed[-1].values = [*values, 0.0]
    return watch_values(packed, 1.0)


def test_values_are_measured_against_what_was_still_earned():
    found = watched(([0.0, 1.0], [0.25, 0.75]), ([0.0], [0.5]))
    # earned 1, 1 and 0: gaps -0.75, -0.25 and 0.5
    assert found["critic/brier"] == pytest.approx((0.5625 + 0.0625 + 0.25) / 3)
    assert found["critic/optimism"] == pytest.approx(-0.5 / 3)
    assert found["critic/rank_correlation"] == pytest.approx(0.0)
    assert found["critic/rank_same_turn"] == pytest.approx(-2 / 3)  # -1 for two states, 0 for one
    assert watched(([1.0], [0.5]), stop="truncated") == {}


def test_a_critic_that_only_counts_turns_ranks_nothing_within_a_turn():
    found = watched(([0.0, -1.0], [0.1, 0.9]), ([0.0, 1.0], [0.1, 0.9]))
    assert found["critic/rank_same_turn"] == 0.0


def test_returns_are_discounted_backwards():
    assert returns([1.0, 0.0, 2.0], 0.5) == [1.5, 1.0, 2.0]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=2, max_size=8))
def test_rank_correlation_sees_order_only(pairs: list[tuple[float, float]]):
    found = rank_correlation(pairs)
    assert -1 - 1e-9 <= found <= 1 + 1e-9
    places = {value: i for i, value in enumerate(sorted({b for _, b in pairs}))}
    assert rank_correlation([(a, places[b] ** 3.0) for a, b in pairs]) == pytest.approx(found)
    assert rank_correlation([(a, -places[b]) for a, b in pairs]) == pytest.approx(-found)
    assert rank_correlation([(1, 5), (2, 7), (3, 6)]) == pytest.approx(0.5)
