"""PPO: who is trained with which numbers, who gets which gradient, and that it learns."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch

from agentrl_cli.algos.losses import standardise
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.models.forward import Outputs, causal_lm, collate, forward
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from tests.builders.critics import head_values, learner, success_while_learning, with_rewards
from tests.builders.models import LORA
from tests.builders.nlac import CHAT, LOST
from tests.builders.ppo import LEVELS, cut, phase_of, ppo, ppo_with_values, won


@pytest.mark.parametrize("level", LEVELS)
def test_empty_action_is_skipped_and_counted(model_folder: Path, level: str):
    algo, _ = ppo_with_values(model_folder, level=level)
    empty, failed = won(), won()
    empty.turns[1].action_ids = []
    failed.error = "KeyError: 'x'"
    phase = phase_of(algo, [empty, won(), failed])
    assert len(phase.samples) == 1 and "value" not in failed.turns[0].info
    reasons = [phase.metrics[f"ppo/skipped_{reason}"] for reason in ("empty", "broken")]
    assert reasons == [1 / 3, 1 / 3]
    algo.monitor([empty, failed])


@pytest.mark.parametrize("level", LEVELS)
def test_value_loss_is_mean_over_tokens(model_folder: Path, level: str):
    algo, models = ppo_with_values(model_folder, level=level)
    samples = phase_of(algo, [won(), cut()]).samples
    total = sum(
        weight * (s.per_token["old_value"][i] - s.per_token["return"][i]) ** 2
        for s in samples
        for i, weight in enumerate(s.per_token["value_at"])
    )
    tokens = sum(sum(s.mask) for s in samples)
    assert sum(sum(s.per_token["value_at"]) for s in samples) == tokens
    found = learner(algo, models).run(algo.update([won(), cut()], ReplayBuffer(None, 1)), 0)
    assert found["policy/value_loss"] == pytest.approx(total / tokens, rel=1e-4)


def test_policy_loss_never_reaches_the_head(model_folder: Path):
    gradients = {}
    for part, changes in {"value": {}, "policy": {"value_coef": 0.0}}.items():
        algo, models = ppo_with_values(model_folder, **changes)
        batch = collate(phase_of(algo, [won()]).samples)
        if part == "value":
            batch.per_token["advantage"].zero_()
        outputs = forward(models.module("policy"), batch, models.head("policy"))
        algo.loss(outputs, batch)[0].backward()
        gradients[part] = {
            name: 0.0 if w.grad is None else float(w.grad.abs().max())
            for name, w in models.weights("policy").items()
        }
    head = [name for name in gradients["value"] if name.startswith("head")]
    body = [name for name in gradients["value"] if "proj.weight" in name]
    assert len(head) == 2 and len(body) == 14
    assert all(gradients["value"][name] > 0 for name in head + body)
    assert all(gradients["policy"][name] == 0 for name in head)
    assert all(gradients["policy"][name] > 0 for name in body)


@pytest.mark.parametrize("level", LEVELS)
def test_monitor_compares_values_with_returns(model_folder: Path, level: str):
    algo, _ = ppo_with_values(model_folder, level=level)
    episodes = [with_rewards(deepcopy(LOST), 0.25, 1.0), cut()]
    found = algo.monitor(episodes)
    first, second = episodes[0].turns
    sizes = [1, 1] if level == "turn" else [len(t.action_ids) for t in (first, second)]
    late = 0.9 ** (sizes[1] - 1) * 1.0
    early = 0.9 ** (sizes[0] - 1) * 0.25 + 0.9 ** sizes[0] * late
    gaps = [first.info["value"] - early, second.info["value"] - late]
    assert found["critic/brier"] == pytest.approx((gaps[0] ** 2 + gaps[1] ** 2) / 2)
    assert found["critic/value_bias"] == pytest.approx(sum(gaps) / 2)
    assert all("advantage" in turn.info for e in episodes for turn in e.turns)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_ppo_learns_a_coin_game(model_folder: Path, level: str):
    algo = ppo(level=level, gamma=1.0, gae_lambda=0.95, normalise_advantages=True, epochs=2,
               optimizer=OptimizerSpec(lr=3e-3))  # fmt: skip
    won_share = success_while_learning(algo, model_folder, steps=9, tokens=2)
    assert won_share[0] < 0.65 and sum(won_share[-2:]) / 2 > 0.85


@pytest.mark.parametrize("lora", [None, LORA])
def test_critic_warmup_trains_only_the_head(model_folder: Path, lora: LoraConfig | None):
    algo, models = ppo_with_values(
        model_folder, lora, critic_warmup=1, kl_coef=0.1, entropy_coef=0.1, epochs=2
    )
    start = {key: weight.detach().clone() for key, weight in models.weights("policy").items()}
    trainer, moved = learner(algo, models), []
    for step in range(2):
        algo.context.step = step
        found = trainer.run(algo.update([won()], ReplayBuffer(None, 1)), step)
        now = models.weights("policy")
        moved.append({key for key in start if not torch.equal(now[key], start[key])})
        alone = found["policy/loss"] == pytest.approx(found["policy/value_loss"])
        assert alone == (step == 0)
    assert moved[0] == {"head.weight", "head.bias"} < moved[1]


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
    at = [i for i, weight in enumerate(sample.per_token["value_at"]) if weight]
    assert at == [len(played.state_ids(k)) - 1 for k in range(2)]
    assert [sample.per_token["return"][i] for i in at] == pytest.approx(
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
    assert [sample.per_token["advantage"][i] for i in acted] == pytest.approx(expected, abs=1e-5)
    targets = [a + v for a, v in zip(expected, values, strict=True)]
    assert [sample.per_token["return"][i - 1] for i in acted] == pytest.approx(targets, abs=1e-5)
    assert [i for i, w in enumerate(sample.per_token["value_at"]) if w] == [i - 1 for i in acted]
    mean = sum(expected[-len(played.turns[1].action_ids) :]) / len(played.turns[1].action_ids)
    assert played.turns[1].info["advantage"] == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("stop", ["truncated", "context"])
def test_truncated_episode_bootstraps_from_last_state(model_folder: Path, level: str, stop: str):
    algo, models = ppo_with_values(model_folder, level=level)
    played = cut(stop)
    (sample,) = phase_of(algo, [played]).samples
    state = played.state_ids(1) + played.turns[1].action_ids
    state += CHAT.extend(played.final_observation, state[-1])
    assert sample.ids == state and "Too late." in CHAT.text_of(state)
    final = played.turns[1].action_ids[-1:]
    at = len(played.state_ids(1)) + len(played.turns[1].action_ids) - len(final)
    read_at = played.state_ids(1) if level == "turn" else state[:at]
    expected = (
        0.5
        + 0.9 * head_values(models, "policy", state)[0]
        - head_values(models, "policy", read_at)[0]
    )
    assert sample.per_token["advantage"][at] == pytest.approx(expected, abs=1e-5)
    done = cut("done")
    (whole,) = phase_of(algo, [done]).samples
    assert len(whole.ids) < len(sample.ids)
    ended = 0.5 - head_values(models, "policy", read_at)[0]
    assert whole.per_token["advantage"][at] == pytest.approx(ended, abs=1e-5)


@pytest.mark.parametrize("level", LEVELS)
def test_bootstrap_value_gets_no_gradient(model_folder: Path, level: str):
    algo, _ = ppo_with_values(model_folder, level=level)
    batch = collate(phase_of(algo, [cut()]).samples)
    per_token = batch.per_token
    values = (per_token["old_value"] + 0.5).requires_grad_()  # [1, tokens]
    logprobs = per_token["old_logprob"].clone().requires_grad_()
    loss, _ = algo.loss(Outputs(logprobs, torch.zeros_like(logprobs), values), batch)
    loss.backward()
    assert values.grad is not None and not values.grad[0, -1] and per_token["old_value"][0, -1]
    expected = algo.value_coef * 2 * (values.detach() - per_token["return"]) * per_token["value_at"]
    assert torch.allclose(values.grad, expected, atol=1e-6)


@pytest.mark.parametrize("level", LEVELS)
def test_normalised_advantages_are_standardised_over_steps(model_folder: Path, level: str):
    algo, _ = ppo_with_values(model_folder, level=level, normalise_advantages=True)
    episodes = [won(), cut()]
    phase = phase_of(algo, episodes)
    steps = [
        sample.per_token["advantage"][i + 1]
        for sample in phase.samples
        for i, weight in enumerate(sample.per_token["value_at"])
        if weight
    ]
    assert len(steps) == (5 if level == "turn" else sum(sum(s.mask) for s in phase.samples))
    assert sum(steps) == pytest.approx(0, abs=1e-9)
    assert sum(a * a for a in steps) / len(steps) == pytest.approx(1)
    assert standardise([2.0, 2.0]) == [0.0, 0.0]


def test_bootstrap_state_is_cut_to_the_positions_of_the_model(model_folder: Path):
    algo, models = ppo_with_values(model_folder)
    played = cut()
    positions = causal_lm(models.module("policy")).config
    assert len(phase_of(algo, [played]).samples[0].ids) > played.tokens + 2
    positions.max_position_embeddings = played.tokens + 2
    (sample,) = phase_of(algo, [played]).samples
    assert len(sample.ids) == played.tokens + 2
