"""PPO: who is trained with which numbers, who gets which gradient, and that it learns."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from statistics import pvariance

import pytest
import torch

from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.types import Sample
from agentrl_cli.models.forward import collate, forward, token_logprobs
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from tests.builders.critics import bound, learner, success_while_learning, with_rewards
from tests.builders.models import LORA
from tests.builders.nlac import LOST
from tests.builders.ppo import LEVELS, cut, phase_of, ppo, ppo_with_values, won


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("restart", [False, True])
def test_empty_action_is_skipped_and_counted(model_folder: Path, level: str, restart: bool):
    algo, _ = ppo_with_values(model_folder, level=level)
    whole = []
    for turn in range(3):
        mute = won()
        mute.turns[turn].action_ids = []
        mute.turns[turn].restart = restart and turn > 0  # a segment without an action
        whole.append(mute)
    silent = won()
    for turn in silent.turns:
        turn.action_ids = []
    phase = phase_of(algo, [*whole, won(), silent])
    assert len(phase.samples) == 1
    assert phase.metrics["ppo/skipped_empty"] == 4 / 5 and phase.metrics["ppo/skipped_broken"] == 0
    assert not any("advantage" in turn.info for turn in silent.turns)
    algo.monitor([*whole, won(), silent])
    assert phase_of(algo, [silent]).samples == []


def test_old_logprobs_come_from_the_trainer(
    model_folder: Path,
):
    algo, models = ppo_with_values(model_folder)
    episodes = [won(), cut()]
    assert all(p != p for e in episodes for t in e.turns for p in t.logprobs)  # NaN
    samples = phase_of(algo, episodes).samples
    bare = [Sample(s.ids, s.mask) for s in samples]
    read = token_logprobs(models.reader("policy"), bare)
    assert [s.streams["old_logprob"] for s in samples] == read
    found = learner(algo, models).run(algo.update(episodes, ReplayBuffer(None, 1)), 0)
    assert found["policy/ratio"] == pytest.approx(1, abs=1e-5)
    assert found["policy/clip_fraction"] == 0


@pytest.mark.parametrize("level", LEVELS)
def test_value_loss_is_mean_over_tokens(model_folder: Path, level: str):
    algo, models = ppo_with_values(model_folder, level=level)
    samples = phase_of(algo, [won(), cut()]).samples
    total = sum(
        weight * (s.streams["old_value"][i] - s.streams["return"][i]) ** 2
        for s in samples
        for i, weight in enumerate(s.streams["value_at"])
    )
    tokens = sum(sum(s.mask) for s in samples)
    assert sum(sum(s.streams["value_at"]) for s in samples) == tokens
    found = learner(algo, models).run(algo.update([won(), cut()], ReplayBuffer(None, 1)), 0)
    assert found["policy/value_loss"] == pytest.approx(total / tokens, rel=1e-4)


def test_policy_loss_never_reaches_the_head(model_folder: Path):
    gradients = {}
    for part, changes in {"value": {}, "policy": {"value_coef": 0.0}}.items():
        algo, models = ppo_with_values(model_folder, **changes)
        batch = collate(phase_of(algo, [won()]).samples)
        if part == "value":
            batch.streams["advantage"].zero_()
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


def test_explained_variance_uses_values_before_update(model_folder: Path):
    fresh = ppo()
    bound(fresh, model_folder)
    metrics = phase_of(fresh, [won(), cut()]).metrics
    assert metrics["policy/explained_variance"] == 0  # every value is 0
    algo, _ = ppo_with_values(model_folder)
    episodes = [won(), cut()]
    metrics = phase_of(algo, episodes).metrics
    info = [turn.info for e in episodes for turn in e.turns]
    spread = pvariance([i["value"] + i["advantage"] for i in info])
    expected = 1 - pvariance([i["advantage"] for i in info]) / spread
    assert metrics["policy/explained_variance"] == pytest.approx(expected) != 0


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
