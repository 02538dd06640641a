"""Inverse StepAgent in the environment: one pass of the discriminator over all of an episode."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from statistics import pstdev

import pytest

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.stepagent.algorithm import StepAgentInverse
from agentrl_cli.algos.stepagent.inverse import labelled_actions, labelled_episodes, logits
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.types import Episode
from agentrl_cli.models.model_set import ModelSet
from tests.builders.critics import learner
from tests.builders.models import LORA, disturb
from tests.builders.nlac import LOST, WON, episode, places
from tests.builders.stepagent import OTHER, SHOWN, buffer, inverse, phases, shown


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
        at, labels = sample.streams["value_at"], sample.streams["label"]
        assert {i: labels[i] for i, count in enumerate(at) if count} == judged
        assert not any(sample.mask)


def test_both_classes_have_equal_weight(model_folder: Path):
    algo = inverse(rollout="environment")
    shown(algo, model_folder, [OTHER])
    phase = phases(algo, [WON, WON])["discriminator"]
    assert [phase.units(sample) for sample in phase.samples] == [3, 3]
    broken = replace(WON, error="KeyError: 1")
    assert phases(algo, [broken])["discriminator"].samples == []


def test_demonstrations_are_drawn_anew(model_folder: Path):
    algo, drawn = inverse(rollout="environment"), set()
    shown(algo, model_folder, [episode(f"d{i}", ["Is it red?"], success=True) for i in range(9)])
    for algo.context.step in range(4):
        samples = phases(algo, [WON, LOST, WON, LOST])["discriminator"].samples
        assert [s.streams["label"][-1] for s in samples] == [1, 1, 0, 0]
        drawn.add(tuple(samples[2].ids))
    assert len(drawn) > 1


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
    """A trained discriminator, and episodes of unequal length, one with a restart."""
    models = shown(algo, folder, [SHOWN, OTHER], lora=lora)
    again = deepcopy(WON)
    again.turns[1].observation_ids = LOST.turns[0].observation_ids
    again.turns[1].restart = True
    for model_name in models.names:
        disturb(models, model_name)
    return models, [SHOWN, again, LOST]


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_one_pass_equals_separate_passes(model_folder: Path, lora: LoraConfig | None):
    algo = inverse(rollout="environment")
    models, played = disturbed(model_folder, algo, lora)
    whole = labelled_episodes(played, 1.0, algo.context)
    acts = [(turn.state_ids, turn.action) for turn in places(*played)]
    found = logits(models, whole)
    assert len(whole) == 4 and len(found) == len(acts) == 8 and pstdev(found) > 0.1
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
