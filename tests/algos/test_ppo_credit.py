"""PPO: where values are read, and generalised advantage estimation by hand at both levels."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch

from agentrl_cli.algos.losses import standardise
from agentrl_cli.models.forward import Outputs, collate
from tests.builders.critics import head_values, with_rewards
from tests.builders.nlac import CHAT, LOST
from tests.builders.ppo import LEVELS, cut, phase_of, ppo_with_values, won


def backwards(
    rewards: list[float], values: list[float], end: float, gamma: float, decay: float
) -> list[float]:
    """Advantages by the recursion A_t = r_t + discount V_{t+1} - V_t + discount decay A_{t+1}."""
    found, later, following = [], 0.0, end
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        later = reward + gamma * following - value + gamma * decay * later
        following = value
        found.insert(0, later)
    return found


# where values are read


def test_values_equal_those_of_separate_passes(model_folder: Path):
    algo, models = ppo_with_values(model_folder)
    played = won()
    phase_of(algo, [played])
    expected = [head_values(models, "policy", played.state_ids(k))[0] for k in range(3)]
    assert len({round(value, 3) for value in expected}) == 3
    assert [t.info["value"] for t in played.turns] == pytest.approx(expected, abs=1e-5)


def test_state_after_restart_starts_a_segment(model_folder: Path):
    algo, models = ppo_with_values(model_folder)
    played = won()
    played.turns[1].restart = True
    first, second = phase_of(algo, [played]).samples
    expected = head_values(models, "policy", played.turns[1].observation_ids)[0]
    assert played.turns[1].info["value"] == pytest.approx(expected, abs=1e-5)
    assert len(second.ids) == sum(
        len(t.observation_ids) + len(t.action_ids) for t in played.turns[1:]
    )
    assert sum(first.streams["value_at"]) == len(played.turns[0].action_ids)


@pytest.mark.parametrize("level", LEVELS)
def test_turn_without_observation_reads_previous_action(model_folder: Path, level: str):
    algo, models = ppo_with_values(model_folder, level=level)
    played = won()
    played.turns[1].observation_ids = []
    (sample,) = phase_of(algo, [played]).samples
    expected = [head_values(models, "policy", played.state_ids(k))[0] for k in range(3)]
    assert [t.info["value"] for t in played.turns] == pytest.approx(expected, abs=1e-5)
    assert sum(sample.streams["value_at"]) == sum(sample.mask)


# generalised advantage estimation


def test_turn_level_gae_by_hand(model_folder: Path):
    algo, models = ppo_with_values(model_folder)
    played = with_rewards(deepcopy(LOST), 0.25, 1.0)
    phase = phase_of(algo, [played])
    first, second = (head_values(models, "policy", played.state_ids(k))[0] for k in range(2))
    last = 1.0 - second
    before = 0.25 + 0.9 * second - first + 0.9 * 0.8 * last
    given = [turn.info["advantage"] for turn in played.turns]
    assert given == pytest.approx([before, last], abs=1e-5)
    (sample,) = phase.samples
    at = [i for i, weight in enumerate(sample.streams["value_at"]) if weight]
    assert at == [len(played.state_ids(k)) - 1 for k in range(2)]
    assert [sample.streams["return"][i] for i in at] == pytest.approx(
        [before + first, 1.0], abs=1e-5
    )


def test_token_level_gae_by_hand(model_folder: Path):
    algo, models = ppo_with_values(model_folder, level="token")
    played = with_rewards(deepcopy(LOST), 0.25, 1.0)
    (sample,) = phase_of(algo, [played]).samples
    acted = [i for i, m in enumerate(sample.mask) if m]
    values = [head_values(models, "policy", sample.ids[:i])[0] for i in acted]
    ends = [acted[len(played.turns[0].action_ids) - 1], acted[-1]]
    rewards = [{ends[0]: 0.25, ends[1]: 1.0}.get(i, 0.0) for i in acted]
    expected = backwards(rewards, values, 0.0, 0.9, 0.8)
    assert [sample.streams["advantage"][i] for i in acted] == pytest.approx(expected, abs=1e-5)
    targets = [a + v for a, v in zip(expected, values, strict=True)]
    assert [sample.streams["return"][i - 1] for i in acted] == pytest.approx(targets, abs=1e-5)
    assert [i for i, w in enumerate(sample.streams["value_at"]) if w] == [i - 1 for i in acted]
    mean = sum(expected[-len(played.turns[1].action_ids) :]) / len(played.turns[1].action_ids)
    assert played.turns[1].info["advantage"] == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("stop", ["truncated", "context"])
def test_truncated_episode_bootstraps_from_last_state(model_folder: Path, level: str, stop: str):
    algo, models = ppo_with_values(model_folder, level=level)
    played = cut(stop)
    (sample,) = phase_of(algo, [played]).samples
    state = played.state_ids(1) + played.turns[1].action_ids
    state += CHAT.extend(played.closing, state[-1])
    assert sample.ids == state and "Too late." in CHAT.text_of(state)
    final = played.turns[1].action_ids[-1:]
    at = len(played.state_ids(1)) + len(played.turns[1].action_ids) - len(final)
    read_at = played.state_ids(1) if level == "turn" else state[:at]
    expected = (
        0.5
        + 0.9 * head_values(models, "policy", state)[0]
        - head_values(models, "policy", read_at)[0]
    )
    assert sample.streams["advantage"][at] == pytest.approx(expected, abs=1e-5)
    done = cut("done")
    (whole,) = phase_of(algo, [done]).samples
    assert len(whole.ids) < len(sample.ids)
    ended = 0.5 - head_values(models, "policy", read_at)[0]
    assert whole.streams["advantage"][at] == pytest.approx(ended, abs=1e-5)


@pytest.mark.parametrize("level", LEVELS)
def test_bootstrap_value_gets_no_gradient(model_folder: Path, level: str):
    algo, _ = ppo_with_values(model_folder, level=level)
    batch = collate(phase_of(algo, [cut()]).samples)
    streams = batch.streams
    values = (streams["old_value"] + 0.5).requires_grad_()  # [1, tokens]
    logprobs = streams["old_logprob"].clone().requires_grad_()
    loss, _ = algo.loss(Outputs(logprobs, torch.zeros_like(logprobs), values), batch)
    loss.backward()
    assert values.grad is not None and not values.grad[0, -1] and streams["old_value"][0, -1]
    expected = algo.value_coef * 2 * (values.detach() - streams["return"]) * streams["value_at"]
    assert torch.allclose(values.grad, expected, atol=1e-6)


@pytest.mark.parametrize("level", LEVELS)
def test_normalised_advantages_are_standardised_over_steps(model_folder: Path, level: str):
    algo, _ = ppo_with_values(model_folder, level=level, normalise_advantages=True)
    episodes = [won(), cut()]
    phase = phase_of(algo, episodes)
    steps = [
        sample.streams["advantage"][i + 1]
        for sample in phase.samples
        for i, weight in enumerate(sample.streams["value_at"])
        if weight
    ]
    assert len(steps) == (5 if level == "turn" else sum(sum(s.mask) for s in phase.samples))
    assert sum(steps) == pytest.approx(0, abs=1e-9)
    assert sum(a * a for a in steps) / len(steps) == pytest.approx(1)
    assert standardise([2.0, 2.0]) == [0.0, 0.0]
