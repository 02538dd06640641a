"""Whom Self-AC credits on a chain of states with known values, and how its values are measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl_cli.algos.self_ac.algorithm import SelfAC
from agentrl_cli.core.types import Episode
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from agentrl_cli.training.learner import Learner
from tests.algos.test_grpo import grpo
from tests.builders.nlac import episode
from tests.builders.self_ac import played, self_ac

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
    optimizer = OptimizerSpec(lr=3e-3)  # at 1e-2 it depends on rounding whether it gets there
    algo, models = self_ac(model_folder, alpha=1.0, gae_lambda=0.0, optimizer=optimizer)
    learner = Learner(models, algo.models(), microbatch_tokens=4096, seed=0, publish=print)
    for step in range(80):
        learner.run(algo.update(chain(), ReplayBuffer(None, 1)), step)
    return algo


def test_critic_learns_a_two_state_chain(judge: SelfAC):
    games = chain()
    packed = judge.pack(games)
    for (first, _, won), valued in zip(CHAIN, packed, strict=True):
        known = [0.5, 0.75 if first == "Good." else 0.25, won]
        assert valued.values == pytest.approx(known, abs=0.1)
    report = judge.monitor(games)
    assert report["critic/rank_correlation"] > 0.3 and abs(report["critic/value_bias"]) < 0.05
    # 1/2 at the first state, 3/4 or 1/4 at the second: mean of p (1 - p)
    assert report["critic/brier"] == pytest.approx((0.25 + 0.1875) / 2, abs=0.03)


def test_good_turn_before_bad_one_is_credited(judge: SelfAC, model_folder: Path):
    games = chain()
    judge.annotate(games)
    early_good_late_bad = games[3]
    good, bad = (turn.info["advantage"] for turn in early_good_late_bad.turns)
    assert good > 0.1 and bad < -0.5
    algo, _ = grpo(model_folder)
    list(algo.update(games, ReplayBuffer(None, 1)))
    good, bad = (turn.info["advantage"] for turn in early_good_late_bad.turns)
    assert good == bad < 0


def test_monitor_places_outcome_one_step_later(
    model_folder: Path,
):
    algo, models = self_ac(model_folder, gamma=0.5)
    models.weights("policy")["head.bias"].data.fill_(0.75)
    won, lost = played("won", [0.0, 1.0]), played("lost", [-1.0, 0.0])
    found = algo.monitor([won, lost, played("cut", [9.0], stop="truncated")])
    earned = [0.25, 0.5, -1.0, 0.0]
    assert found["critic/brier"] == pytest.approx(sum((0.75 - r) ** 2 for r in earned) / 4)
    assert found["critic/value_bias"] == pytest.approx(0.75 - sum(earned) / 4)
    assert algo.monitor([played("cut", [9.0], stop="truncated")]) == {}
