"""Whom Self-AC credits on a chain of states with known values, and how its values are measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.self_ac import SelfAC, at_states
from agentrl_cli.core.types import Episode, Message
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from agentrl_cli.training.learner import Learner
from tests.algos.test_grpo import grpo
from tests.builders.critics import head_values, randomise_heads
from tests.builders.nlac import CHAT, episode
from tests.builders.self_ac import outputs_with_values, phase_of, played, self_ac

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


def test_monitor_places_outcome_one_step_later(model_folder: Path):
    algo, models = self_ac(model_folder, gamma=0.5)
    models.weights("policy")["head.bias"].data.fill_(0.75)
    won, lost = played("won", [0.0, 1.0]), played("lost", [-1.0, 0.0])
    found = algo.monitor([won, lost, played("cut", [9.0], stop="truncated")])
    earned = [0.25, 0.5, -1.0, 0.0]
    assert found["critic/brier"] == pytest.approx(sum((0.75 - r) ** 2 for r in earned) / 4)
    assert found["critic/value_bias"] == pytest.approx(0.75 - sum(earned) / 4)
    assert algo.monitor([played("cut", [9.0], stop="truncated")]) == {}


def stream_at_states(phase: Phase, name: str) -> list[list[float]]:
    return [at_states(sample, name) for sample in phase.samples]


@pytest.mark.parametrize(
    ("stop", "rewards", "value_mask", "cut_off"),
    [
        ("done", [-1, -1, 0, 3], [1, 1, 1, 1], [0, 0, 0, 0]),  # the outcome belongs to s_n
        ("truncated", [-1, -1, 3, 0], [1, 1, 1, 0], [0, 0, 0, 1]),
        ("context", [-1, -1, 3, 0], [1, 1, 1, 0], [0, 0, 0, 1]),
    ],
)
def test_outcome_belongs_to_last_state_if_done(
    model_folder: Path, stop: str, rewards: list, value_mask: list, cut_off: list
):
    algo, _ = self_ac(model_folder)
    phase = phase_of(algo, played("a", [-1, -1, 3], stop=stop))
    assert stream_at_states(phase, "reward") == [rewards]
    assert stream_at_states(phase, "value_mask") == [value_mask]
    assert stream_at_states(phase, "cut_off") == [cut_off]


@pytest.mark.parametrize("stop", ["truncated", "context"])
@pytest.mark.parametrize("thought_tokens", [0, 1])
def test_truncated_episode_ends_with_environment_response(
    model_folder: Path, stop: str, thought_tokens: int
):
    algo, models = self_ac(model_folder, gamma=0.9, thought_tokens=thought_tokens)
    randomise_heads(models, "policy")
    game = played("a", [0.0, 0.5], stop=stop)
    game.final_observation = [Message("user", "Too late.")]
    (sample,) = phase_of(algo, game).samples
    state = game.state_ids(1) + game.turns[1].action_ids
    state += CHAT.extend(game.final_observation, state[-1])
    rows = list(zip(sample.ids, sample.mask, sample.per_token["branch"], strict=True))
    seen = [(i, m) for i, m, branch in rows if not branch]
    assert [i for i, _ in seen] == state and "Too late." in CHAT.text_of(state)
    behind = len(state) - game.tokens
    assert behind > 0 and not any(m for _, m in seen[-behind:])
    assert (
        sample.ids[-len(algo.critic_prompt_ids) :] == algo.critic_prompt_ids
    )  # the last prompt follows them
    end = head_values(models, "policy", state + algo.critic_prompt_ids)[0]
    begin = head_values(models, "policy", game.state_ids(1) + algo.critic_prompt_ids)[0]
    assert game.turns[1].info["advantage"] == pytest.approx(0.5 + 0.9 * end - begin, abs=1e-5)


def test_bootstrap_value_is_not_trained(model_folder: Path):
    algo, _ = self_ac(model_folder, gamma=0.9)
    phase = phase_of(algo, played("a", [0.5], stop="truncated"))
    outputs, batch = outputs_with_values(phase, [[0.3, 2.0]])
    loss, metrics = algo.loss(outputs, batch)
    error = 0.5 + 0.9 * 2.0 - 0.3
    assert metrics["critic_loss"].item() == pytest.approx(error**2, abs=1e-6)
    assert metrics["actor_loss"].item() == pytest.approx(-error, abs=1e-6)
    loss.backward()
    assert outputs.values is not None and outputs.values.grad is not None
    found = outputs.values.grad[batch.per_token["value_at"].bool()]
    assert found.tolist() == pytest.approx([-0.5 * 2 * error, 0.0])
