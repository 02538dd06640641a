"""Inverse StepAgent's policy: what a try earns and where credit goes."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.stepagent import (
    StepAgentInverse,
    attempt_fragments,
    discriminator_halves,
    fragments,
    labelled_actions,
    labelled_episodes,
    logits,
    with_rewards,
)
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.types import Episode
from agentrl_cli.models.model_set import ModelSet
from tests.builders.critics import learner
from tests.builders.models import LORA, disturb
from tests.builders.nlac import LOST, WON, episode, places, prompt, troupe, written
from tests.builders.stepagent import OTHER, SHOWN, buffer, inverse, phases, shown

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
            given = [
                a for a, m in zip(sample.per_token["advantage"], sample.mask, strict=True) if m
            ]
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
        returns = [r for r in sample.per_token["return"] if r]
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


def test_rewards_are_for_unseen_episodes(model_folder: Path):
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


def test_single_demonstration_leaves_none_to_hold_out(model_folder: Path):
    algo = inverse(rollout="environment")
    models = shown(algo, model_folder, [SHOWN])
    metrics = policy_phase(algo, models, [WON, LOST]).metrics
    assert "stepagent/reward_gap" in metrics and "stepagent/heldout_gap" not in metrics


def test_skipped_episodes_are_counted(model_folder: Path):
    algo = inverse(rollout="environment")
    models = shown(algo, model_folder, [SHOWN])
    broken = replace(WON, error="KeyError: 1")
    phase = policy_phase(algo, models, [WON, broken, LOST, SHOWN])
    assert phase.metrics["ppo/skipped_broken"] == 0.25


def test_episode_is_one_sample_with_labels(model_folder: Path):
    algo = inverse(rollout="environment")
    shown(algo, model_folder, [OTHER])
    assert algo.plays and not inverse().plays
    phase = phases(algo, [WON, WON])["discriminator"]
    for sample, played, label in zip(phase.samples, (WON, OTHER), (1.0, 0.0), strict=True):
        last = len(played.turns) - 1
        assert sample.ids == played.state_ids(last) + played.turns[last].action_ids
        ends = [len(played.state_ids(k)) + len(played.turns[k].action_ids) for k in range(last + 1)]
        judged = {end - 1: label for end in ends}
        at, labels = sample.per_token["value_at"], sample.per_token["label"]
        assert {i: labels[i] for i, count in enumerate(at) if count} == judged
        assert not any(sample.mask)


def test_both_classes_have_equal_weight(model_folder: Path):
    algo = inverse(rollout="environment")
    shown(algo, model_folder, [OTHER])
    phase = phases(algo, [WON, WON])["discriminator"]
    assert [phase.units(sample) for sample in phase.samples] == [3, 3]
    broken = replace(WON, error="KeyError: 1")
    assert phases(algo, [broken])["discriminator"].samples == []


def test_layout_of_episodes_is_removed(model_folder: Path):
    algo = inverse(rollout="environment")
    shown(algo, model_folder, [OTHER])
    tidy = episode("game", ["Is it big?", "Hm.\nIs it red?", "Is it old?"], success=True)
    blanks = episode("game", [" Is it  big? ", "Hm.\n\nIs it red?", "Is it old?"], success=True)
    unclosed = deepcopy(tidy)
    unclosed.turns[2].action_ids.pop()
    closing = unclosed.turns[0].action_ids.pop()
    unclosed.turns[1].observation_ids.insert(0, closing)  # as it is played
    samples = labelled_episodes([tidy, blanks, unclosed], 1.0, algo.context)
    assert tidy.turns[1].action_ids != blanks.turns[1].action_ids
    assert samples[0] == samples[1] == samples[2]
    assert samples[0].ids == tidy.state_ids(2) + tidy.turns[2].action_ids


def disturbed(
    folder: Path, algo: StepAgentInverse, lora: LoraConfig | None = None
) -> tuple[ModelSet, list[Episode]]:
    """A trained discriminator, and episodes of unequal length."""
    models = shown(algo, folder, [SHOWN, OTHER], lora=lora)
    for model_name in models.names:
        disturb(models, model_name)
    return models, [SHOWN, WON, LOST]


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_one_pass_equals_separate_passes(model_folder: Path, lora: LoraConfig | None):
    algo = inverse(rollout="environment")
    models, played = disturbed(model_folder, algo, lora)
    whole = labelled_episodes(played, 1.0, algo.context)
    acts = [(turn.state_ids, turn.action) for turn in places(*played)]
    found = logits(models, whole)
    assert len(whole) == 3 and len(found) == len(acts) == 8 and pstdev(found) > 0.1
    alone = labelled_actions(acts, 1.0, algo.context)
    assert found == pytest.approx([logits(models, [one])[0] for one in alone], abs=1e-5)


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("rollout", ["fragment", "environment"])
def test_each_phase_trains_its_own_model(model_folder: Path, lora: LoraConfig | None, rollout: str):
    algo = inverse({"kl_coef": 0.1}, rollout=rollout, nll_coef=1.0)
    models, marks = shown(algo, model_folder, [SHOWN, OTHER], lora=lora), []

    def watched() -> Iterator[Phase]:
        for phase in algo.update([WON, LOST], buffer()):
            yield phase
            marks.append({name: models.fingerprint(name) for name in models.names})

    start = {name: models.fingerprint(name) for name in models.names}
    learner(algo, models).run(watched(), 0)
    changed = [
        {name for name in models.names if now[name] != then[name]}
        for then, now in zip([start, *marks], marks, strict=False)
    ]
    assert changed == [{"discriminator"}, {"policy"}]
