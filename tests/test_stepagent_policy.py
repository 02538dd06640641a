"""Inverse StepAgent's policy: what a try earns and where credit goes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from agentrl_cli.algos.base import OptimizerSpec, Phase
from agentrl_cli.algos.practice import fragments
from agentrl_cli.algos.roles import Place
from agentrl_cli.algos.stepagent import act
from agentrl_cli.models.set import ModelSet
from agentrl_cli.types import Episode
from tests.sample_critics import learner
from tests.sample_nlac import LOST, WON, prompt, troupe
from tests.sample_stepagent import (
    OTHER,
    SHOWN,
    buffer,
    inverse,
    phases,
    shown,
)

# inverse: the policy


def policy_phase(algo, models: ModelSet, episodes: list[Episode] | None = None) -> Phase:
    """PPO's phase behind a discriminator that was trained."""
    phase_list = algo.update(episodes or [], buffer())
    learner(algo, models).run(iter([next(phase_list)]), 0)
    return next(phase_list)


def test_a_try_earns_its_standardised_reward_less_the_states_value(model_folder: Path):
    algo = inverse(discriminator_epochs=3)
    models = shown(algo, model_folder, [SHOWN, OTHER], troupe(act=["Hm?", "Is it a cat?"]))
    phase = policy_phase(algo, models)
    advantages = [max(s.streams["advantage"], key=abs) for s in phase.samples]
    assert len(advantages) == 5 and len(set(advantages)) > 2
    assert fmean(advantages) == pytest.approx(0, abs=1e-6)  # values begin at 0
    assert pstdev(advantages) == pytest.approx(1, abs=1e-6)
    for sample, one in zip(phase.samples, fragments(algo.context, "turn", 0), strict=True):
        assert prompt(sample) == one.state and set(sample.streams["old_value"]) == {0.0}


def test_in_the_environment_every_turn_earns_and_credit_goes_back_over_turns(model_folder: Path):
    algo = inverse({"discount": 1.0, "gae_lambda": 1.0}, rollout="environment")
    models = shown(algo, model_folder, [SHOWN, OTHER])
    played = [deepcopy(WON), deepcopy(LOST)]
    before = deepcopy(played)
    phase = policy_phase(algo, models, played)
    assert played == before  # the world's own rewards stay in the record
    own = [act(Place(e, t)) for e in played for t in range(len(e.turns))]
    raw = algo.rewards(own)
    rewards = [(r - fmean(raw)) / pstdev(raw) for r in raw]
    returns = [[r for r in s.streams["return"] if r] for s in phase.samples]
    assert returns[0] == pytest.approx([sum(rewards[i:3]) for i in range(3)], abs=1e-4)
    assert returns[1] == pytest.approx([sum(rewards[i:5]) for i in (3, 4)], abs=1e-4)


def test_in_the_environment_as_many_expert_turns_are_judged_as_own_ones(model_folder: Path):
    algo = inverse(rollout="environment")
    shown(algo, model_folder, [OTHER])
    assert algo.plays and not inverse().plays
    phase = phases(algo, [WON, LOST])["discriminator"]
    assert [s.streams["label"][-1] for s in phase.samples] == [1.0] * 5 + [0.0] * 5
    broken = replace(WON, error="KeyError: 1")
    assert phases(algo, [broken])["discriminator"].samples == []


def test_the_entropy_bonus_reaches_the_weights(model_folder: Path):
    found = {}
    for entropy in (0.0, 10.0):
        algo = inverse({"entropy": entropy, "optimizer": OptimizerSpec(lr=1e-3)})
        models = shown(algo, model_folder, [SHOWN], troupe(act="Is it a dog?"))
        phase = policy_phase(algo, models)
        assert phase.entropy_gradient is (entropy > 0)
        trainer = learner(algo, models)
        found[entropy] = [trainer.run(iter([phase]), i)["policy/entropy"] for i in range(4)]
    assert found[10.0][0] == pytest.approx(found[0.0][0])
    assert found[10.0][-1] > found[0.0][-1]
