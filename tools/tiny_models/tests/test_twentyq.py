"""The corpus of Twenty Questions tells the truth, at the level of a mediocre player."""

from __future__ import annotations

import copy

import pytest

from agentrl_cli.core.types import Message, Task, Turn
from agentrl_cli.envs.twentyq.questions import Question
from tools.tiny_models.tests.corpus_builder import (
    asked_by,
    texts_of,
    twentyq_corpus,
)
from tools.tiny_models.twentyq import TwentyQCorpus

pytestmark = pytest.mark.slow  # of tools that are rarely used

ANSWER_WORDS = {"yes": "Yes.", "no": "No.", "sometimes": "Sometimes.", "": "I cannot answer that."}


@pytest.fixture(scope="module")
def corpus() -> TwentyQCorpus:
    return twentyq_corpus()


def replayed(turns: list[Turn], name: str, corpus: TwentyQCorpus) -> bool:
    """Whether the world answers these actions in these words when it hides the object."""
    env = copy.copy(corpus.env)
    seen = [Message("system", env.system()), *env.reset(Task("t", "train", {"object": name}), 0)]
    for turn in turns:
        if turn.observation != seen:
            return False
        seen = env.step(turn.action).messages
    return True


# the world


def test_every_stated_fact_is_in_the_table(corpus: TwentyQCorpus):
    world = corpus.env.world_table
    nouns = {f"It is {noun}.": name for name, noun in world.nouns.items()}
    for text in texts_of(corpus, "facts", 20):
        first = text.turns[0].observation[1].content
        (named,) = [noun for noun in nouns if first.startswith(noun)]
        for turn in text.turns:
            asked = asked_by(turn.observation[-1].content.removeprefix(named).strip())
            assert isinstance(asked, Question)
            assert turn.action == ANSWER_WORDS[world.answer(nouns[named], asked.attribute)]


@pytest.mark.parametrize("kind", ["fits", "wild", "play"])
def test_game_equals_the_environment(corpus: TwentyQCorpus, kind: str):
    for text in texts_of(corpus, kind, 20):
        fit = [replayed(text.turns, name, corpus) for name in corpus.env.world_table.objects]
        assert any(fit) and (not all(fit) or len(text.turns) == 1)


# the player


# roles
