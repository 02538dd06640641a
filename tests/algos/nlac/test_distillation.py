"""The lessons of a state, read together or each for itself."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl_cli.algos.nlac import distillation
from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.choice import Candidates
from agentrl_cli.algos.nlac.distillation import lesson_samples
from agentrl_cli.algos.samples import completion_sample
from agentrl_cli.core.errors import UserError
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.reader import token_logprobs
from tests.builders.nlac import WON, bound, candidate, nlac, places, troupe, written


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


def test_a_model_that_reads_nothing_packed_learns_each_lesson_for_itself(
    models: ModelSet, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*given: Any) -> None:
        raise UserError("not this one")

    monkeypatch.setattr(distillation, "enable_packing", refuse)
    algo = choosing(models)
    lessons = algo.chooser.lessons(
        Candidates(places(WON)[0], [candidate("a", 3, 0.2), candidate("b", 1, 0.9)])
    )
    samples = lesson_samples(lessons, packed=algo.reads_packed)
    assert [written(sample) for sample in samples] == ["a", "b"]
    assert not any(any(sample.streams["shadow"]) for sample in samples)
