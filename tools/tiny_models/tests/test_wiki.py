"""The corpus of the wiki: mediocre search in other encyclopedias, and roles that tell the truth by
the questions' own proofs."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from tests.builders.wiki import begun, wiki
from tools.tiny_models.played import Transition
from tools.tiny_models.reader import (
    ModelForward,
    ReaderHabits,
    ReaderState,
    ask,
    broken_rule,
    observe,
)
from tools.tiny_models.tests.corpus_builder import seeds, wiki_corpus
from tools.tiny_models.wiki import WikiCorpus

RECITED = re.compile(
    r"The (?P<relation>\w+) (?P<verb>is|are) (?P<value>[\w, ]+) \((?P<line>\d+)\)\."
)
ASKED = re.compile(r"The (?P<relation>\w+) of (?P<title>\w+)\?")
MISTAKES = ("unsaved", "neighbour", "stop", "astray", "skip", "miscount")


@pytest.fixture(scope="module")
def corpus() -> WikiCorpus:
    return wiki_corpus()


@pytest.fixture(scope="module")
def searches(corpus: WikiCorpus) -> list[list[Transition]]:
    return [corpus.episode(rng) for rng in seeds(200)]


# the reader


def test_the_reader_is_mediocre(searches: list[list[Transition]]):
    won = sum(bool(moves[-1].step.reward) for moves in searches)
    assert 0.3 < won / len(searches) < 0.6
    ends = Counter(moves[-1].step.messages[-1].content.split(". ")[0] for moves in searches)
    assert ends["Right"] > 100 and sum(ends.values()) - ends["Right"] > 40


def test_without_habits_the_reader_makes_no_mistake():
    env = wiki()
    for task in env.tasks("train") + env.tasks("test"):
        state, one = ReaderState(), begun(env, task)
        ask(state, str(task.data["question"]))
        for _ in range(env.max_turns):
            action = ModelForward().choose_action(state, random.Random(0))
            assert broken_rule(state, action) == "Right."
            step = one.step(action)
            observe(state, action, step.messages[0].content)
            if step.done:
                break
        assert step.info["success"] is True, task.id


def test_mistakes_are_bound_to_occasions():
    habits = ReaderHabits(prone=dict.fromkeys(MISTAKES, 0.3), often=0.7, seldom=0.04)
    for mistake in MISTAKES:
        chances = [habits.chance(mistake, f"relation {i}") for i in range(600)]
        assert chances == [habits.chance(mistake, f"relation {i}") for i in range(600)]
        assert set(chances) == {0.7, 0.04}
        assert chances.count(0.7) / 600 == pytest.approx(0.3, abs=0.06)


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


def test_facts_recall_a_page(corpus: WikiCorpus):
    for seed in range(20):
        text = corpus.text("facts", {}, seed)
        assert {turn.info["weight"] for turn in text.turns} == {0.0} and len(text.branches) > 2
        shown = "\n".join(turn.observation[-1].content for turn in text.turns)
        for branch in text.branches[:-1]:
            told, asked = RECITED.fullmatch(branch.answer), ASKED.fullmatch(branch.prompt)
            assert told and asked and told["relation"] == asked["relation"]
            if re.search(rf"^{asked['title']}, an? \w+\.\nThe ", shown, re.MULTILINE):
                assert branch.answer in shown


# roles
