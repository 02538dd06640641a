"""The lessons of a state, read together or each for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.choice import Candidates
from agentrl_cli.algos.nlac.distillation import lesson_samples
from agentrl_cli.algos.samples import completion_sample
from agentrl_cli.models.forward import token_logprobs
from agentrl_cli.models.model_set import ModelSet
from tests.builders.models import model_config
from tests.builders.nlac import (
    LOST,
    WON,
    bound,
    candidate,
    filled,
    learn,
    nlac,
    places,
    troupe,
    written,
)


def choosing(models: ModelSet, **more: Any) -> NLAC:
    return bound(nlac(improvement="choice", candidates=4, **more), troupe(), models)


def test_what_is_learnt_in_a_state_is_read_together_as_it_would_be_alone(models: ModelSet):
    algo = choosing(models, choice_temperature=0.5)
    rows = [candidate("Is it a cat?", 3, 0.2), candidate("Is it?", 2, 0.9), candidate("No.", 1)]
    turn = places(WON)[1]
    lessons = algo.chooser.lessons(Candidates(turn, rows))
    (together,) = lesson_samples(lessons, packed=algo.reads_packed)
    alone = [completion_sample(turn.state_ids, lesson.action_ids) for lesson in lessons]
    reader, state = algo.context.models.reader("policy"), len(turn.state_ids)
    (packed,), single = token_logprobs(reader, [together]), token_logprobs(reader, alone)
    assert packed[:state] == [0.0] * state
    assert packed[state:] == pytest.approx([x for row in single for x in row[state:]], abs=1e-5)
    weights = together.streams["weight"]
    assert weights[state:] == [x.weight for x in lessons for _ in x.action_ids]
    assert weights[:state] == [0.0] * state


def test_a_model_that_reads_nothing_packed_learns_each_lesson_for_itself(model_folder: Path):
    plain = nlac(improvement="choice", candidates=4, kl_coef=0.1)
    models = ModelSet(model_config(model_folder, attention="eager"), plain.models(), "cpu", 0)
    algo = bound(plain, troupe(), models)
    assert not algo.reads_packed
    turn = places(WON)[0]
    rows = [candidate("a", 3, 0.2), candidate("b", 1, 0.9)]
    samples = lesson_samples(algo.chooser.lessons(Candidates(turn, rows)), packed=False)
    assert [written(sample) for sample in samples] == ["a", "b"]
    assert [set(sample.streams["weight"]) for sample in samples] == [{0.0, -0.75}, {0.0, 0.75}]
    alone = [completion_sample(turn.state_ids, row.action_ids) for row in rows]
    reader = models.reader("policy")
    assert token_logprobs(reader, samples) == token_logprobs(reader, alone)


def test_an_update_of_a_model_that_reads_nothing_packed(model_folder: Path):
    algo = nlac(improvement="choice", candidates=4, kl_coef=0.1)
    models = ModelSet(model_config(model_folder, attention="eager"), algo.models(), "cpu", 0)
    speakers = troupe(forecast=lambda text, draw: draw.choice(["Yes. Success.", "No. Failure."]))
    before = models.fingerprint("policy")
    metrics = learn(bound(algo, speakers, models), models, filled(WON, LOST))
    assert metrics["policy/steps"] > 0 and models.fingerprint("policy") != before
