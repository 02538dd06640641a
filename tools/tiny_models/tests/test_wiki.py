"""The corpus of the wiki: mediocre search in other encyclopedias, and roles that tell the truth by
the questions' own proofs."""

from __future__ import annotations

import random

import pytest

from tests.builders.wiki import wiki
from tools.tiny_models.played import Transition
from tools.tiny_models.tests.corpus_builder import seeds, wiki_corpus
from tools.tiny_models.wiki import WikiCorpus

pytestmark = pytest.mark.slow  # of tools that are rarely used


@pytest.fixture(scope="module")
def corpus() -> WikiCorpus:
    return wiki_corpus()


@pytest.fixture(scope="module")
def searches(corpus: WikiCorpus) -> list[list[Transition]]:
    return [corpus.episode(rng) for rng in seeds(200)]


# the reader


# texts


def test_no_text_is_of_the_environments_own_encyclopedia(searches: list[list[Transition]]):
    pages = wiki().encyclopedia
    own = {f"{page.heading}.\n{pages.numbered(page)[0]}" for page in pages.pages.values()}
    shown = [
        "\n".join(move.step.messages[-1].content.split("\n")[:2]) for s in searches for move in s
    ]
    read = {text for text in shown if text.endswith("(1).")}
    assert len(read) > 200 and not read & own
    asked = {task.data["question"] for split in ("train", "test") for task in wiki().tasks(split)}
    questions = [str(s[0].before.observation[0].content).split(". ")[0] + "." for s in searches]
    assert len(asked & {*questions}) <= 2  # names are few enough for the same words


def test_a_text_is_what_the_browser_showed(corpus: WikiCorpus):
    for seed in range(30):
        played, text = corpus.episode(random.Random(seed)), corpus.text("play", {}, seed)
        assert text.turns[0].observation[0].content == corpus.env.system()
        assert [turn.action for turn in text.turns] == [move.action for move in played]
        for turn, move in zip(text.turns[1:], played, strict=False):
            assert turn.observation == move.step.messages
        assert played[-1].step.done and not any(move.step.done for move in played[:-1])


# roles
