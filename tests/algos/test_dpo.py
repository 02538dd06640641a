"""DPO on whole trajectories: whose failures are paired with which demonstrations."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from math import log
from pathlib import Path

import pytest

from agentrl_cli.algos.base import Phase
from agentrl_cli.core.types import Episode, Message, Sample
from agentrl_cli.models.forward import token_logprobs
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from tests.builders.critics import learner
from tests.builders.nlac import CHAT, LOST, WON, episode
from tests.builders.stepagent import eto, shown


def of_task(task: str, name: str, actions: list[str], *, success: bool) -> Episode:
    made = episode(task, actions, success=success)
    return replace(made, id=name)


DEMO = of_task("lost", "demo", ["Is it red?", "Is it an owl?"], success=True)
ELSEWHERE = of_task("other", "demo2", ["Is it a cat?"], success=True)


def phase_of(algo, episodes: list[Episode]) -> Phase:
    (phase,) = algo.update(deepcopy(episodes), ReplayBuffer(None, 1))
    return phase


def action_text(sample: Sample) -> str:
    return CHAT.text_of([i for i, m in zip(sample.ids, sample.mask, strict=True) if m])


def test_failure_is_paired_with_demonstration_of_task(model_folder: Path):
    algo = eto()
    shown(algo, model_folder, [ELSEWHERE, DEMO])
    phase = phase_of(algo, [WON, LOST])
    chosen, rejected = phase.samples
    assert action_text(chosen) == "Is it red?<|im_end|>Is it an owl?<|im_end|>"
    assert action_text(rejected) == "Is it old?<|im_end|>Is it a dog?<|im_end|>"
    assert rejected.ids == LOST.state_ids(1) + LOST.turns[1].action_ids
    assert sum(rejected.mask) == sum(len(turn.action_ids) for turn in LOST.turns)
    assert phase.keep_together == 2 and phase.metrics == {"dpo/failures": 0.5, "dpo/unpaired": 0}


def test_episodes_without_a_pair_are_skipped(model_folder: Path):
    algo = eto()
    shown(algo, model_folder, [ELSEWHERE])
    broken = replace(LOST, error="KeyError: 1", stop="error")
    phase = phase_of(algo, [WON, LOST, broken])
    assert phase.samples == [] and phase.metrics["dpo/unpaired"] == 1
    assert phase_of(algo, [WON]).metrics == {"dpo/failures": 0, "dpo/unpaired": 0}
    cut = replace(LOST, stop="context")  # its outcome is not known
    assert phase_of(algo, [WON, cut]).metrics["dpo/failures"] == 0
    greeted = deepcopy(DEMO)
    greeted.turns[0].observation = [*DEMO.turns[0].observation, Message("user", "Please.")]
    algo.context.demos = [greeted]
    assert phase_of(algo, [LOST]).samples == []


def test_failures_draw_demonstrations(model_folder: Path):
    algo = eto()
    demos = [of_task("lost", f"d{i}", [f"Is it {i}?"], success=True) for i in range(4)]
    shown(algo, model_folder, demos)
    phase = phase_of(algo, [replace(LOST, id=f"e{i}") for i in range(24)])
    drawn = [action_text(sample) for sample in phase.samples[0::2]]
    assert set(drawn) == {f"Is it {i}?<|im_end|>" for i in range(4)}
    assert [action_text(s) for s in phase_of(algo, [replace(LOST, id="e0")]).samples[:1]] == drawn[
        :1
    ]


@pytest.mark.parametrize("reference", ["start", "iteration"])
def test_training_favours_the_demonstration(model_folder: Path, reference: str):
    algo = eto(beta=0.5, reference=reference, optimizer=OptimizerSpec(lr=5e-4))
    models = shown(algo, model_folder, [DEMO])
    samples = [Sample(s.ids, s.mask) for s in phase_of(algo, [LOST]).samples]
    before = [sum(row) for row in token_logprobs(models.forward("policy"), samples)]
    trainer = learner(algo, models)
    rows = [trainer.run(algo.update([deepcopy(LOST)], ReplayBuffer(None, 1)), i) for i in range(3)]
    after = [sum(row) for row in token_logprobs(models.forward("policy"), samples)]
    assert after[0] > before[0] and after[1] < before[1]
    assert rows[0]["dpo/loss"] == pytest.approx(log(2), abs=1e-5)
    renewed = rows[-1]["dpo/loss"] == pytest.approx(log(2), abs=1e-5)
    assert renewed is (reference == "iteration")
