"""What the policy learns: the lessons of a state as training samples."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby

from agentrl_cli.algos.base import Context
from agentrl_cli.algos.nlac.choice import Lesson
from agentrl_cli.algos.samples import branches_sample, completion_sample
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Sample
from agentrl_cli.models.forward import causal_lm
from agentrl_cli.models.packable import enable_packing


def can_read_packed(context: Context, names: Iterable[str]) -> bool:
    """Whether each of these models can read several actions of a state in one pass, each blind to
    the others; those that can are made ready for it."""
    with suppress(UserError):
        for name in names:
            model = causal_lm(context.models.module(name))
            with context.models.whole(name):
                enable_packing(model, [context.chat.closing], "visible_first", "full")
        return True
    return False


def lesson_samples(lessons: list[Lesson], packed: bool) -> list[Sample]:
    """The lessons of a turn behind their state, which is read once; a sample for each lesson where
    they are not to be read packed."""
    if not packed:
        return [
            _weighed(completion_sample(lesson.turn.state_ids, lesson.action_ids), [lesson])
            for lesson in lessons
        ]
    turns = [list(of_turn) for _, of_turn in groupby(lessons, lambda lesson: lesson.turn)]
    return [
        _weighed(branches_sample(group[0].turn.state_ids, [x.action_ids for x in group]), group)
        for group in turns
    ]


def _weighed(sample: Sample, lessons: list[Lesson]) -> Sample:
    """The sample of these lessons of a state, each token by the weight of its lesson."""
    state = lessons[0].turn.state_ids
    weights = [lesson.weight for lesson in lessons for _ in lesson.action_ids]
    sample.streams["weight"] = [0.0] * len(state) + weights
    return sample
