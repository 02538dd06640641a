"""The worlds' experts speak in the form of the scripted players, so that a bundled model can
follow their demonstrations."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from agentrl_cli.core.types import Task
from tools.tiny_models.clerk import ClerkState, where_item_is
from tools.tiny_models.reader import ReaderState, ask, compared, due, observe, recall
from tools.tiny_models.tests.corpus_builder import tau_corpus, wiki_corpus

pytestmark = pytest.mark.slow  # of tools that are rarely used

RECITED = re.compile(
    r"Look for the \w+ of \w+\.|The \w+ (is|are) .+ \(\d\)\.|(Of .+ \d+\. )?It is \w+\."
)


def test_wiki_expert_recites_the_next_step():
    env = wiki_corpus().env
    for task in env.tasks("train"):
        state = ReaderState()
        ask(state, env.reset(task, 0)[0].content)
        for turn in env.expert(task):
            said, goal = turn.split("\n")[0], due(state)
            in_any_order = "comparison" in task.id and "SUBMIT" not in turn
            wanted = f"{compared(goal.compared)}{recall(goal)}"
            assert said == wanted or in_any_order, (task.id, turn)
            assert RECITED.fullmatch(said), turn
            observe(state, turn, env.step(turn).messages[-1].content)


def test_who_collects_an_article_recites_nothing():
    env = replace(wiki_corpus().env, task="article")
    task = env.tasks("train")[0]
    env.reset(task, 0)
    for turn in env.expert(task):
        assert "\n" not in turn
        env.step(turn)


def test_shop_expert_recites_the_item():
    assert sum(recited(task) for task in tau_corpus().env.tasks("train")) > 400


def recited(task: Task) -> int:
    """In how many turns of a task the expert recites; each must be what the clerk would."""
    corpus, count = tau_corpus(), 0
    state, heard = ClerkState(), corpus.env.reset(task, 0)
    for turn in corpus.env.expert(task) or ():
        corpus.clerk.observe(state, heard[-1].content, random.Random(0))
        line = where_item_is(state)
        assert turn.split("\n")[:-1] == [line] * bool(line), (task.id, turn)
        count += bool(line)
        heard = corpus.env.step(turn).messages
    return count
