"""Properties of every corpus: a seed determines its texts, roles write at their rates, critiques
name the mistake, and refinements keep approved actions."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from agentrl_cli.algos.nlac.parse import strict_outcome, strict_verdict
from tools.tiny_models.base import Branch, Corpus, Text, best_of_rollouts
from tools.tiny_models.tests.corpus_builder import (
    ROLES,
    WORLDS,
    config_of,
    corpus_of,
    spoken,
)

pytestmark = pytest.mark.slow  # of tools that are rarely used

EXPLORING = ("explored", "evaluate", "refine", "rollouts")


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def corpus(world: str) -> Corpus:
    return corpus_of(world)


def mixture_of(corpus: Corpus) -> dict[str, float]:
    return dict.fromkeys([*corpus.exercises(), "play"], 1.0)


# drawing


def test_stages_name_known_kinds_and_roles(world: str, corpus: Corpus):
    for stage in config_of(world).rollout.stages:
        assert set(stage.mixture) <= set(mixture_of(corpus)) and set(stage.roles) <= set(ROLES)


def test_branches_come_in_the_order_of_their_turns(corpus: Corpus):
    for text in corpus.texts(4, {"play": 1.0}, dict.fromkeys(ROLES, 0.5), 4):
        places = [branch.turn for branch in text.branches]
        assert places == sorted(places) and places[-1] < len(text.turns)


def test_play_is_the_same_whatever_the_roles_say(corpus: Corpus):
    for seed in range(5):
        bare, spoken_of = (corpus.text("play", roles, seed) for roles in ({}, {"explored": 1.0}))
        assert bare.turns == spoken_of.turns and not bare.branches


def test_only_roles_that_explore_speak_of_another_action(corpus: Corpus):
    for role in ROLES:
        actions = {branch.action is None for _, branch in spoken(corpus, role, 2)}
        assert actions == {role not in EXPLORING}, role


# what they say


@pytest.mark.parametrize("role", ["forecast", "explored", "backup", "aggregate"])
def test_forecasts_and_backups_end_with_the_outcome(corpus: Corpus, role: str):
    found = [strict_outcome(branch.answer) for _, branch in spoken(corpus, role, 16)]
    assert None not in found and 0.15 < sum(map(bool, found)) / len(found) < 0.85


def test_critique_reads_equally_many_forecasts(corpus: Corpus):
    verdicts, counts = Counter(), Counter()
    for _, branch in spoken(corpus, "evaluate", 6):
        mine, shown, others = branch.prompt.partition("Forecasts of another turn:\n")
        count, other_count = (
            sum(strict_outcome(line) is not None for line in part.splitlines())
            for part in (mine, others)
        )
        assert other_count == (count if shown else 0)
        counts[count] += 1
        verdicts[strict_verdict(branch.answer)] += 1
    assert set(counts) == {1, 2, 4, 8}
    assert set(verdicts) == {True, False} and min(verdicts.values()) > 0.15 * verdicts.total()


@cache
def refined(world: str) -> list[tuple[Text, Branch, str]]:
    """Refinements with the critique that each reads."""
    count = {"math": 50, "twentyq": 12, "tau_mini": 30, "wiki": 30}[world]
    found = spoken(corpus_of(world), "refine", count)
    return [(text, branch, branch.prompt.splitlines()[0]) for text, branch in found]


def test_refinement_keeps_approved_actions(world: str):
    approved = [row for row in refined(world) if strict_verdict(row[2])]
    assert len(approved) > 10
    assert all(branch.answer == branch.action for _, branch, _ in approved)


def test_refinement_replaces_criticised_actions(world: str):
    rows = [row for row in refined(world) if strict_verdict(row[2]) is False]
    named = [row for row in rows if "It ends worse" not in row[2]]
    same = [
        row for row in rows if action_of(world, row[1].answer) == action_of(world, row[1].action)
    ]
    assert len(named) > 5
    # a player without another idea repeats the action
    assert len(same) <= 0.2 * len(rows)


def action_of(world: str, turn: str | None) -> str:
    """What is done in a turn, without its thought."""
    assert turn is not None
    return turn.split("\n")[-1] if world == "twentyq" else turn


# what all worlds share


def test_best_of_rollouts_succeeds_most_often():
    assert best_of_rollouts(["a", "b", "b", "a"], [True, True, True, False]) == "b"
    assert best_of_rollouts(["a", "b"], [True, True]) == "a"
    assert best_of_rollouts(["a", "b"], [False, False]) is None
