"""SFT and RFT: which episodes and which of their tokens are learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.algos.sft import SFT
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.models.forward import token_logprobs
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from agentrl_cli.training.learner import Learner
from tests.builders.models import model_config
from tests.builders.nlac import CHAT, LOST, WON, episode


def sft(only_success: bool = False, epochs: int = 1, lr: float = 1e-2) -> SFT:
    adam = OptimizerSpec(lr=lr)
    return SFT(only_success=only_success, epochs=epochs, minibatch_tokens=0, optimizer=adam)


def phase_of(algo: SFT, episodes: list[Episode]) -> Phase:
    (phase,) = algo.update(episodes, ReplayBuffer(None, 1))
    return phase


def trained(sample: Sample) -> str:
    """The text of what is trained."""
    return CHAT.text_of([i for i, m in zip(sample.ids, sample.mask, strict=True) if m])


BROKEN = replace(WON, id="broken", error="KeyError: 'x'")


def test_sft_trains_every_complete_episode():
    phase = phase_of(sft(), [WON, LOST, BROKEN])
    for sample, played in zip(phase.samples, (WON, LOST), strict=True):
        assert sample.ids[: len(played.state_ids(0))] == played.state_ids(0)
    assert phase.metrics["sft/kept_episodes"] == 2 / 3


def test_rft_trains_successes_only():
    phase = phase_of(sft(only_success=True), [LOST, WON, BROKEN])
    (sample,) = phase.samples
    assert "Here is won" in CHAT.text_of(sample.ids)
    assert phase.metrics["sft/kept_episodes"] == 1 / 3


def test_actions_with_closing_token_are_trained():
    (sample,) = phase_of(sft(), [WON]).samples
    assert trained(sample) == "".join(f"{turn.action}<|im_end|>" for turn in WON.turns)
    assert sample.ids == WON.state_ids(2) + WON.turns[2].action_ids
    assert set(sample.per_token["weight"]) == {0.0, 1.0}


def test_turn_of_weight_zero_is_not_trained():
    played = episode("w", ["Is it big?", "Is it red?", "Is it a cat?"], success=True)
    for turn, weight in zip(played.turns, (1.0, 0.0, 4.0), strict=True):
        turn.info["weight"] = weight
    (sample,) = phase_of(sft(), [played]).samples
    assert trained(sample) == "Is it big?<|im_end|>Is it a cat?<|im_end|>"
    last = len(played.turns[2].action_ids)
    assert sample.per_token["weight"][-last:] == [4.0] * last
    assert all(
        bool(w) == bool(m) for w, m in zip(sample.per_token["weight"], sample.mask, strict=True)
    )


def test_weights_per_token():
    played = episode("w", ["Is it big?", "Is it red?"], success=True)
    first, last = (len(turn.action_ids) for turn in played.turns)
    played.turns[0].info["weight"] = [8.0, *[0.0] * (first - 2), 2.0]
    (sample,) = phase_of(sft(), [played]).samples
    spoken = len(played.state_ids(0))
    assert sample.per_token["weight"][spoken : spoken + first] == played.turns[0].info["weight"]
    assert sample.mask[spoken : spoken + first] == [1, *[0] * (first - 2), 1]
    assert sample.per_token["weight"][-last:] == [1.0] * last and all(sample.mask[-last:])
    assert all(len(row) == len(sample.ids) for row in sample.per_token.values())


def test_likelihood_is_proportional_to_weight(model_folder: Path):
    heavy, light = (episode(name, ["Is it a cat?"], success=True) for name in ("one", "two"))
    light.turns[0].action_ids = CHAT.encode_action("Is it a dog?")
    for played in (heavy, light):
        played.turns[0].observation_ids = WON.state_ids(0)  # one state, two answers
    heavy.turns[0].info["weight"] = 9.0
    algo = sft(epochs=60)
    models = ModelSet(model_config(model_folder), algo.models(), "cpu", 0)
    learner = Learner(models, algo.models(), microbatch_tokens=4096, seed=0, publish=print)
    learner.run(algo.update([heavy, light], ReplayBuffer(None, 1)), 0)
    samples = [s for e in (heavy, light) for s in episode_samples(e, lambda i, turn: {})]
    likely, unlikely = (sum(row) for row in token_logprobs(models.forward("policy"), samples))
    assert likely == pytest.approx(-0.105, abs=0.15)  # log 0.9
    assert unlikely == pytest.approx(-2.303, abs=0.5)  # log 0.1
