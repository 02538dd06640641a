"""What the policy learns: the lessons of a state as training samples."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby

from agentrl_cli.algos.base import Context
from agentrl_cli.algos.nlac.choice import Lesson
from agentrl_cli.algos.samples import branches_sample
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Sample
from agentrl_cli.models.packable import enable_packing
from agentrl_cli.models.policy import causal_lm


def can_read_packed(context: Context, names: Iterable[str]) -> bool:
    """Whether each of these models can read several actions of a state in one pass, each blind to
    the others; those that can are made ready for it."""
    with suppress(UserError):
        for name in names:
            model = causal_lm(context.models.module(name))
            enable_packing(model, [context.chat.closing], "visible_first", "full")
        return True
    return False


def lesson_samples(lessons: list[Lesson], packed: bool) -> list[Sample]:
    """The lessons of a turn behind their state, which is read once; a sample for each lesson where
    they are not to be read packed."""
    turns = [list(of_turn) for _, of_turn in groupby(lessons, lambda lesson: lesson.turn)]
    groups = turns if packed else [[lesson] for lesson in lessons]
    return [_state_sample(group) for group in groups]


def _state_sample(lessons: list[Lesson]) -> Sample:
    """What is learnt in one state, each token by the weight of its lesson."""
    state = lessons[0].turn.state_ids
    sample = branches_sample(state, [lesson.action_ids for lesson in lessons])
    weights = [lesson.weight for lesson in lessons for _ in lesson.action_ids]
    sample.streams["weight"] = [0.0] * len(state) + weights
    return sample
