"""GRPO: advantages by hand, who is trained and with which numbers, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.algos.base import Context, Phase
from agentrl_cli.algos.grpo import GRPO
from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.models.forward import token_logprobs
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from agentrl_cli.training.learner import Learner
from tests.builders.models import model_config
from tests.builders.nlac import CHAT, SAMPLING, episode, troupe


def grpo(model: Path | ModelConfig, **changes) -> tuple[GRPO, ModelSet]:
    usual = {
        "group_size": 3, "normalise_advantages": True, "clip_eps": 0.2,
        "kl_coef": 0.0, "epochs": 1,
        "minibatch_tokens": 0, "optimizer": OptimizerSpec(lr=1e-2),
    }  # fmt: skip
    algo = GRPO(**{**usual, **changes})
    config = model if isinstance(model, ModelConfig) else model_config(model)
    models = ModelSet(config, algo.models(), "cpu", 0)
    algo.bind(
        Context(
            chat=CHAT, models=models, generator=troupe(), sampling=SAMPLING, seed=0,
            probe=lambda starts: [], indistinguishable_tasks=lambda played, turn: [played.task],
        )
    )  # fmt: skip
    return algo, models


def ended(name: str, group: str, reward: float, **changes) -> Episode:
    """An episode of two turns with that reward in all, half of it for each turn."""
    made = episode(name, ["Is it big?", "Is it a cat?"], success=reward > 0)
    for turn in made.turns:
        turn.reward = reward / 2
    return replace(made, group=group, **changes)


BATCH = [("a1", "a", 1.0), ("a2", "a", 0.0), ("a3", "a", 0.0), ("b1", "b", 0.5), ("b2", "b", 0.5)]


def phase_of(algo: GRPO, episodes: list[Episode]) -> Phase:
    (phase,) = algo.update(episodes, ReplayBuffer(None, 1))
    return phase


@pytest.mark.parametrize(
    ("normalise", "advantages"),
    # of rewards 1, 0, 0: mean 1/3, population deviation sqrt(2)/3
    [(True, [2**0.5, -(2**-0.5), -(2**-0.5)]), (False, [2 / 3, -1 / 3, -1 / 3])],
)
def test_advantage_is_relative_to_group(
    model_folder: Path, normalise: bool, advantages: list[float]
):
    episodes = [ended(*row) for row in BATCH]
    algo, _ = grpo(model_folder, normalise_advantages=normalise)
    phase = phase_of(algo, episodes)
    given = [[turn.info["advantage"] for turn in e.turns] for e in episodes]
    expected = [*advantages, 0.0, 0.0]
    assert given == [pytest.approx([value, value]) for value in expected]
    assert phase.metrics["reward/frac_zero_std"] == 2 / 5
    assert len(phase.samples) == 3  # not the group of equal rewards


def test_share_of_equal_groups_counts_no_mean_reward(model_folder: Path):
    episodes = [ended(*row) for row in BATCH]
    for played, reward in zip(episodes, (0.0, 0.5, 1.0, 0.25, 0.25), strict=True):
        played.turns[-1].reward = reward  # the second has the mean reward of its group
    algo, _ = grpo(model_folder)
    assert phase_of(algo, episodes).metrics["reward/frac_zero_std"] == 2 / 5


def test_action_tokens_carry_the_advantage(model_folder: Path):
    algo, _ = grpo(model_folder, normalise_advantages=False)
    episodes = [ended(*row) for row in BATCH]
    for played, sample in zip(episodes[:3], phase_of(algo, episodes).samples, strict=True):
        mask = [
            m for t in played.turns for m in [0] * len(t.observation_ids) + [1] * len(t.action_ids)
        ]
        assert sample.mask == mask
        assert sample.ids == [i for t in played.turns for i in t.observation_ids + t.action_ids]
        value = 2 / 3 if played.id == "a1" else -1 / 3
        assert sample.per_token["advantage"] == pytest.approx([value * m for m in mask])


@pytest.mark.parametrize(("loss_type", "scale"), [("grpo", 1.0), ("dr_grpo", 0.5)])
def test_each_episode_counts_once(model_folder: Path, loss_type: str, scale: float):
    episodes = [ended(*row) for row in BATCH[:3]]
    tokens = sum(len(turn.action_ids) for turn in episodes[0].turns)
    algo, _ = grpo(
        model_folder, loss_type=loss_type, max_completion_length=2 * tokens,
        normalise_advantages=False,
    )  # fmt: skip
    phase = phase_of(algo, episodes)
    assert sum(map(phase.units, phase.samples)) == pytest.approx(3)
    sample = phase.samples[0]
    assert sample.per_token["share"] == [trained / tokens for trained in sample.mask]
    expected = [scale * 2 / 3 * trained for trained in sample.mask]
    assert sample.per_token["advantage"] == pytest.approx(expected)


@pytest.mark.parametrize("settings", [{}, {"max_completion_length": 8, "kl_coef": 0.1}])
def test_dr_grpo_needs_a_length_and_no_kl(model_folder: Path, settings: dict[str, Any]):
    with pytest.raises(UserError) as caught:
        grpo(model_folder, loss_type="dr_grpo", **settings)
    assert caught.value.code == "conflicting-settings"


@pytest.mark.parametrize(
    ("stop", "error"), [("error", "KeyError: 'x'"), ("truncated", None), ("context", None)]
)
def test_episode_without_outcome_is_ignored(model_folder: Path, stop: str, error: str | None):
    algo, _ = grpo(model_folder, normalise_advantages=False)
    broken = ended("a4", "a", 0.0, stop=stop, error=error)
    whole = [ended(*row) for row in BATCH[:3]]
    assert phase_of(algo, [*whole, broken]).samples == phase_of(algo, whole).samples
    assert "advantage" not in broken.turns[0].info


def test_old_logprobs_come_from_the_trainer(model_folder: Path):
    algo, models = grpo(model_folder)
    episodes = [ended(*row) for row in BATCH[:2]]  # their log-probs are NaN
    samples = phase_of(algo, episodes).samples
    bare = [Sample(s.ids, s.mask) for s in samples]
    read = token_logprobs(models.forward("policy"), bare)
    assert [s.per_token["old_logprob"] for s in samples] == read


def test_reference_exists_only_with_kl(model_folder: Path):
    free, _ = grpo(model_folder)
    paid, models = grpo(model_folder, kl_coef=0.1)
    assert list(free.models()) == ["policy"] and list(paid.models()) == ["policy", "reference"]
    batch = [ended(*row) for row in BATCH[:2]]
    assert "reference_logprob" not in phase_of(free, batch).samples[0].per_token
    per_token = phase_of(paid, batch).samples[0].per_token
    assert per_token["reference_logprob"] == per_token["old_logprob"]
    assert models.specs["reference"].kind == "frozen"


def test_training_favours_the_better_episode(model_folder: Path):
    algo, models = grpo(model_folder, kl_coef=0.1, normalise_advantages=False)
    good, bad = ended("a1", "a", 1.0), ended("a2", "a", 0.0)
    bad.turns[1].action = "Is it a dog?"
    bad.turns[1].action_ids = CHAT.encode_action("Is it a dog?")
    likely = [loglikelihood(models, e) for e in (good, bad)]
    learner = Learner(models, algo.models(), microbatch_tokens=4096, seed=0, publish=print)
    buffer = ReplayBuffer(None, 1)
    first = learner.run(algo.update([good, bad], buffer), 0)
    for step in range(1, 4):
        last = learner.run(algo.update([good, bad], buffer), step)
    assert first["policy/ratio"] == pytest.approx(1, abs=1e-5)
    assert first["policy/clip_fraction"] == 0 and first["policy/kl"] == pytest.approx(0, abs=1e-6)
    assert last["policy/kl"] > 0
    after = [loglikelihood(models, e) for e in (good, bad)]
    assert after[0] - likely[0] > 0.5 > -0.5 > after[1] - likely[1]


def loglikelihood(models: ModelSet, played: Episode) -> float:
    samples = episode_samples(played, lambda i, turn: {})
    return sum(map(sum, token_logprobs(models.forward("policy"), samples)))
