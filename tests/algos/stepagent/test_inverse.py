"""Inverse StepAgent's policy: what a try earns and where credit goes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.stepagent.algorithm import (
    attempt_fragments,
    discriminator_halves,
    fragments,
)
from agentrl_cli.algos.stepagent.inverse import labelled_actions, labelled_episodes, with_rewards
from agentrl_cli.core.types import Episode
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import OptimizerSpec
from tests.builders.critics import learner
from tests.builders.nlac import LOST, WON, episode, prompt, troupe, written
from tests.builders.stepagent import OTHER, SHOWN, buffer, inverse, shown

# inverse: the policy


def policy_phase(algo, models: ModelSet, episodes: list[Episode] | None = None) -> Phase:
    """PPO's phase behind a discriminator that was trained."""
    phase_list = algo.update(episodes or [], buffer())
    learner(algo, models).run(iter([next(phase_list)]), 0)
    return next(phase_list)


def test_advantage_is_relative_to_other_samples(model_folder: Path):
    algo = inverse(
        {"normalise_advantages": True},
        discriminator_epochs=3,
        expert_states_per_update=5,
        num_samples=3,
    )
    assert algo.models()["policy"].head is None
    models = shown(algo, model_folder, [SHOWN, OTHER], troupe(act=["Hm?", "Is it a cat?"]))
    phase = policy_phase(algo, models)
    assert len(phase.samples) == 9  # of three fragments; two have trained the discriminator
    acts = [(prompt(sample), written(sample)) for sample in phase.samples]
    rewards = algo.rewards(labelled_actions(acts, 1.0, algo.context))
    for begin in range(0, 9, 3):
        row = rewards[begin : begin + 3]
        for k, sample in enumerate(phase.samples[begin : begin + 3]):
            others = (sum(row) - row[k]) / 2
            given = [a for a, m in zip(sample.streams["advantage"], sample.mask, strict=True) if m]
            assert given == pytest.approx([row[k] - others] * len(given), abs=1e-5)
    assert 0 < pstdev(rewards) < 1  # so that nothing was scaled


def test_rewards_are_for_unseen_samples(model_folder: Path):
    algo, trained = inverse(expert_states_per_update=0, num_samples=2), []
    demos = [SHOWN, OTHER, *(episode(f"d{i}", ["Is it red?"], success=True) for i in range(15))]
    models = shown(algo, model_folder, demos)
    for algo.context.step in range(2):
        first, second = algo.update([], buffer()), policy_phase(algo, models)
        studied = {tuple(s.ids) for s in next(first).samples}
        states = {tuple(prompt(s)) for s in second.samples}
        assert len(states) == 5 and len(second.samples) == 10  # half of a half of 20 fragments
        assert not any(ids[: len(state)] == state for ids in studied for state in states)
        trained.append(second.metrics["stepagent/heldout_gap"])
    assert len(set(trained)) == 2


def test_halves_swap_in_the_next_update(model_folder: Path):
    algo = inverse()
    shown(algo, model_folder, [SHOWN, OTHER])
    tries, rows = attempt_fragments(algo.context, fragments(algo.context, "turn", 0)), []
    for algo.context.step in range(6):
        rows.append(discriminator_halves(tries, 1, algo.context))
        assert {id(one) for half in rows[-1] for one in half} == {id(one) for one in tries}
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        assert first == second[::-1] and {len(half) for half in first} == {2, 3}
    assert rows[0] != rows[2] or rows[0] != rows[4]


# in the environment


def rewarded(phase: Phase, played: list[Episode]) -> list[Episode]:
    """Of these episodes those whose actions the policy is trained on."""
    trained = {tuple(sample.ids) for sample in phase.samples}
    last = [(e, e.state_ids(len(e.turns) - 1) + e.turns[-1].action_ids) for e in played]
    return [game for game, ids in last if tuple(ids) in trained]


def test_environment_returns_by_hand(model_folder: Path):
    algo = inverse({"gamma": 1.0, "gae_lambda": 1.0}, rollout="environment")
    models = shown(algo, model_folder, [SHOWN, OTHER])
    played = [deepcopy(WON), deepcopy(LOST), deepcopy(SHOWN)]
    before = deepcopy(played)
    phase = policy_phase(algo, models, played)
    assert played == before  # the environment's rewards stay in the record
    learned = rewarded(phase, played)
    assert len(learned) == 2
    raw = algo.rewards(labelled_episodes(learned, 1.0, algo.context))
    rewards = iter([reward - fmean(raw) for reward in raw])
    for game in learned:
        row, start = [next(rewards) for _ in game.turns], game.state_ids(0)
        (sample,) = [s for s in phase.samples if s.ids[: len(start)] == start]
        returns = [r for r in sample.streams["return"] if r]
        assert returns == pytest.approx([sum(row[i:]) for i in range(len(row))], abs=1e-4)


def test_returns_have_deviation_at_most_one(model_folder: Path):
    games = [episode(f"g{i}", ["Is it?"] * 8, success=True) for i in range(4)]
    earned = [2.0 if turn < 16 else -2.0 for turn in range(32)]
    rows = [[turn.reward for turn in game.turns] for game in with_rewards(games, earned)]
    returns = [sum(row[i:]) for row in rows for i in range(8)]
    assert pstdev(returns) == pytest.approx(1) and sum(map(sum, rows)) == pytest.approx(0)
    assert [row[0] > 0 for row in rows] == [True, True, False, False]
    few = with_rewards(games[:2], [0.1] * 8 + [0.3] * 8)  # noise is not enlarged
    assert [turn.reward for turn in few[0].turns] == pytest.approx([-0.1] * 8)


def test_rewards_are_for_unseen_episodes(
    model_folder: Path,
):
    algo, drawn = inverse(rollout="environment"), set()
    demos = [episode(f"d{i}", ["Is it red?"], success=True) for i in range(9)]
    models = shown(algo, model_folder, demos)
    played = [episode(f"own{i}", ["Is it big?", "Is it?"], success=False) for i in range(5)]
    for algo.context.step in range(3):
        studied = {tuple(s.ids) for s in next(algo.update(played, buffer())).samples}
        phase = policy_phase(algo, models, played)
        taught = {tuple(s.ids) for s in phase.samples}
        assert (len(studied), len(taught)) == (4, 3) and not studied & taught
        drawn.add(frozenset(taught))
        assert phase.metrics["stepagent/heldout_gap"] != phase.metrics["stepagent/reward_gap"]
    assert len(drawn) > 1


def test_skipped_episodes_are_counted(model_folder: Path):
    algo = inverse(rollout="environment")
    models = shown(algo, model_folder, [SHOWN])
    broken = replace(WON, error="KeyError: 1")
    phase = policy_phase(algo, models, [WON, broken, LOST, SHOWN])
    assert phase.metrics["ppo/skipped_broken"] == 0.25


def test_entropy_bonus_raises_entropy(model_folder: Path):
    found = {}
    for entropy in (0.0, 10.0):
        algo = inverse({"entropy_coef": entropy, "optimizer": OptimizerSpec(lr=1e-3)})
        models = shown(algo, model_folder, [SHOWN], troupe(act="Is it a dog?"))
        phase = policy_phase(algo, models)
        assert phase.entropy_gradient is (entropy > 0)
        trainer = learner(algo, models)
        found[entropy] = [trainer.run(iter([phase]), i)["policy/entropy"] for i in range(4)]
    assert found[10.0][0] == pytest.approx(found[0.0][0])
    assert found[10.0][-1] > found[0.0][-1]
