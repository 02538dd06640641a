"""PPO: who is trained with which numbers, who gets which gradient, and that it learns."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from statistics import pvariance

import pytest
import torch

from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Sample
from agentrl_cli.models.policy import collate, forward
from agentrl_cli.models.reader import token_logprobs
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from tests.builders.critics import bound, learner, success_while_learning, with_rewards
from tests.builders.models import LORA
from tests.builders.nlac import LOST, WON
from tests.builders.ppo import LEVELS, cut, phase_of, ppo, ppo_with_values, won


def test_a_broken_episode_is_not_trained(model_folder: Path):
    algo, _ = ppo_with_values(model_folder)
    broken = won()
    broken.error, broken.stop = "KeyError: 'x'", "error"
    empty = deepcopy(WON)
    empty.turns = []
    assert len(phase_of(algo, [broken, won(), empty]).samples) == 1
    assert phase_of(algo, [broken]).samples == [] and "value" not in broken.turns[0].info


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("restart", [False, True])
def test_an_episode_with_an_empty_action_is_left_out_and_counted(
    model_folder: Path, level: str, restart: bool
):
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
    assert (
        phase.metrics["ppo/left_out_empty"] == 4 / 5 and phase.metrics["ppo/left_out_broken"] == 0
    )
    assert not any("advantage" in turn.info for turn in silent.turns)
    algo.monitor([*whole, won(), silent])
    assert phase_of(algo, [silent]).samples == []


def test_old_log_probs_are_the_trainers_own_so_that_the_first_step_is_unclipped(
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
def test_the_value_loss_is_a_mean_over_trained_tokens(model_folder: Path, level: str):
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


def test_the_value_loss_reaches_the_body_and_the_policy_loss_never_the_head(model_folder: Path):
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


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_reference_is_kept_and_scored_only_where_its_kl_is_paid_for(
    model_folder: Path, lora: LoraConfig | None
):
    assert list(ppo().models()) == ["policy"]
    algo, models = ppo_with_values(model_folder, lora, kl_coef=0.1, epochs=2)
    (sample,) = phase_of(algo, [won()]).samples
    assert sample.streams["reference_logprob"] == sample.streams["old_logprob"]
    before = models.fingerprint("reference")
    found = learner(algo, models).run(algo.update([won()], ReplayBuffer(None, 1)), 0)
    assert found["policy/kl"] > 0 and models.fingerprint("reference") == before


@pytest.mark.parametrize("level", LEVELS)
def test_a_reader_is_told_the_values_and_how_well_they_foresee_what_ended_episodes_earned(
    model_folder: Path, level: str
):
    algo, _ = ppo_with_values(model_folder, level=level)
    episodes = [with_rewards(deepcopy(LOST), 0.25, 1.0), cut()]
    found = algo.monitor(episodes)
    first, second = episodes[0].turns
    sizes = [1, 1] if level == "turn" else [len(t.action_ids) for t in (first, second)]
    late = 0.9 ** (sizes[1] - 1) * 1.0
    early = 0.9 ** (sizes[0] - 1) * 0.25 + 0.9 ** sizes[0] * late
    gaps = [first.info["value"] - early, second.info["value"] - late]
    assert found["critic/brier"] == pytest.approx((gaps[0] ** 2 + gaps[1] ** 2) / 2)
    assert found["critic/optimism"] == pytest.approx(sum(gaps) / 2)
    assert all("advantage" in turn.info for e in episodes for turn in e.turns)


def test_explained_variance_is_that_of_the_values_before_the_update(model_folder: Path):
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


WRONG = {
    "epochs is 0; give at least 1": {"epochs": 0},
    "clip is -0.1; give at least 0": {"clip": -0.1},
    "value_clip is -1; give at least 0": {"value_clip": -1},
    "value_coef is nan; give at least 0": {"value_coef": float("nan")},
    "discount is 1.01: a share is at most 1": {"discount": 1.01},
    "gae_lambda is 2: a share is at most 1": {"gae_lambda": 2},
    "gae_lambda is -1; give at least 0": {"gae_lambda": -1},
}


@pytest.mark.parametrize("words", WRONG)
def test_numbers_that_cannot_be_are_refused(words: str):
    with pytest.raises(UserError, match=f"^{words}$"):
        ppo(**WRONG[words])


@pytest.mark.parametrize("level", LEVELS)
def test_a_game_of_chance_is_learned(model_folder: Path, level: str):
    algo = ppo(level=level, discount=1.0, gae_lambda=0.95, normalise_advantages=True, epochs=2,
               optimizer=OptimizerSpec(lr=3e-3))  # fmt: skip
    won_share = success_while_learning(algo, model_folder, steps=9, tokens=2)
    assert won_share[0] < 0.65 and sum(won_share[-2:]) / 2 > 0.85


@pytest.mark.parametrize("lora", [None, LORA])
def test_until_the_critic_is_warm_only_the_head_learns_and_by_the_values_error_alone(
    model_folder: Path, lora: LoraConfig | None
):
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
