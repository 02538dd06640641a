"""What every corpus is: texts that a seed determines, roles at their rates, critiques that name
what is wrong, refinements that keep what was approved."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import pytest

from agentrl_cli.algos.nlac.parse import strict_outcome, strict_verdict
from tools.tiny_models.base import (
    Branch,
    Corpus,
    Text,
    best_of_rollouts,
    rollout_line,
    times,
)
from tools.tiny_models.tests.corpus_builder import (
    ROLES,
    WORLDS,
    check_of,
    config_of,
    corpus_of,
    first_false,
    judged_turns,
    last_line,
    problem_of,
    spoken,
    steps_of,
    twentyq_corpus,
)

EXPLORING = ("explored", "evaluate", "refine", "rollouts")
WASTEFUL = ("Asked before.", "Ruled out.", "Unclear.", "Known.")


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def corpus(world: str) -> Corpus:
    return corpus_of(world)


def mixture_of(corpus: Corpus) -> dict[str, float]:
    return dict.fromkeys([*corpus.exercises(), "play"], 1.0)


# drawing


def test_the_same_seed_draws_the_same_texts_and_another_one_others(corpus: Corpus):
    mixture = mixture_of(corpus)
    roles: dict[str, float] = dict.fromkeys(ROLES, 0.2)
    first, again, other = (corpus.texts(6, mixture, roles, seed) for seed in (1, 1, 2))
    assert first == again
    assert not {repr(text) for text in first} & {repr(text) for text in other}


def test_a_text_is_the_same_whatever_is_drawn_beside_it(corpus: Corpus):
    roles = {"forecast": 0.5}
    few, many = (corpus.texts(count, {"play": 1.0}, roles, 5) for count in (3, 6))
    assert many[:3] == few


def test_kinds_come_in_the_proportions_of_the_mixture():
    texts = twentyq_corpus().texts(400, {"facts": 0.75, "fits": 0.25, "play": 0.0}, {}, 0)
    counts = Counter(text.kind for text in texts)
    assert set(counts) == {"facts", "fits"} and counts["facts"] == pytest.approx(300, abs=35)


def test_a_stage_names_only_kinds_and_roles_that_there_are(world: str, corpus: Corpus):
    for stage in config_of(world).rollout.stages:
        assert set(stage.mixture) <= set(mixture_of(corpus)) and set(stage.roles) <= set(ROLES)


@pytest.mark.parametrize(("rate", "counts"), [(0.0, {0}), (2.0, {2}), (0.3, {0, 1}), (1.3, {1, 2})])
def test_a_rate_is_a_number_of_times_on_average(rate: float, counts: set[int]):
    rng = random.Random(0)
    drawn = [len(times(rate, rng)) for _ in range(2000)]
    assert set(drawn) == counts and sum(drawn) / 2000 == pytest.approx(rate, abs=0.05)


def test_each_role_speaks_of_a_turn_as_often_as_its_rate_says(corpus: Corpus):
    texts = corpus.texts(25, {"play": 1.0}, {"forecast": 0.4, "explored": 1.5}, 3)
    turns = sum(len(text.turns) for text in texts)
    branches = [branch for text in texts for branch in text.branches]
    played = sum(branch.action is None for branch in branches)
    assert played / turns == pytest.approx(0.4, abs=4 * (0.24 / turns) ** 0.5)
    assert (len(branches) - played) / turns == pytest.approx(1.5, abs=4 * (0.25 / turns) ** 0.5)


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


def test_a_critique_gives_a_verdict_on_as_many_forecasts_of_each_action(corpus: Corpus):
    verdicts, counts = Counter(), Counter()
    for _, branch in spoken(corpus, "evaluate", 6):
        mine, others = branch.prompt.split("Forecasts of another turn:\n")
        count = sum(strict_outcome(line) is not None for line in mine.splitlines())
        assert count == sum(strict_outcome(line) is not None for line in others.splitlines())
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


def test_a_refinement_keeps_what_is_approved_to_the_letter(world: str):
    approved = [row for row in refined(world) if strict_verdict(row[2])]
    assert len(approved) > 10
    assert all(branch.answer == branch.action for _, branch, _ in approved)


def test_a_refinement_of_what_is_criticised_is_another_draw(world: str):
    rows = [row for row in refined(world) if strict_verdict(row[2]) is False]
    named = [row for row in rows if "It ends worse" not in row[2]]
    same = [
        row for row in rows if action_of(world, row[1].answer) == action_of(world, row[1].action)
    ]
    assert len(named) > 5
    # nearly: where the player knows nothing else, it says the same again
    assert len(same) <= 0.2 * len(rows)


def action_of(world: str, turn: str | None) -> str:
    """What is done in a turn, without its thought."""
    assert turn is not None
    return turn.split("\n")[-1] if world == "twentyq" else turn


def test_a_refinement_is_another_draw_of_the_mediocre_player():
    """It errs as the player does: nobody has searched for a better action."""
    wrong = [
        first_false(problem_of(text.turns[0].observation[-1].content), [branch.answer.strip()])
        for text, branch, critique in refined("math")
        if strict_verdict(critique) is False and branch.turn == 0
    ]
    assert 0.1 < sum(step is not None for step in wrong) / len(wrong) < 0.7
    wasted = []
    for text, branch, critique in refined("twentyq"):
        if strict_verdict(critique) is False:
            turns = judged_turns(text, Branch(branch.turn, "", "", branch.answer))
            wasted.append(check_of(turns) in WASTEFUL)
    assert 0.05 < sum(wasted) / len(wasted) < 0.6


def test_a_critique_names_what_is_wrong_of_the_action_that_it_judges():
    named = Counter()
    for text, branch in spoken(corpus_of("math"), "evaluate", 30):
        if branch.answer.endswith("is wrong."):
            problem = problem_of(text.turns[0].observation[-1].content)
            false = first_false(problem, steps_of(judged_turns(text, branch)))
            assert branch.answer == f"Optimality: No. {false} is wrong."
            assert branch.action is not None and branch.action.strip() == false
            named["math"] += 1
    for text, branch in spoken(twentyq_corpus(), "evaluate", 10):
        turns = judged_turns(text, branch)
        reason = branch.answer.removeprefix("Optimality: No. ")
        if reason in WASTEFUL:
            assert reason == check_of(turns), last_line(turns[-1])
            named["twentyq"] += 1
    assert min(named["math"], named["twentyq"]) > 12


# what all worlds share


def test_the_action_that_succeeded_most_often_is_the_best_of_rollouts():
    assert best_of_rollouts(["a", "b", "b", "a"], [True, True, True, False]) == "b"
    assert best_of_rollouts(["a", "b"], [True, True]) == "a"
    assert best_of_rollouts(["a", "b"], [False, False]) is None


def test_a_rollout_is_one_line():
    assert (
        rollout_line("Maybe.\nIs it big?\n\n", "Yes. \nSuccess.")
        == "Maybe. Is it big? Yes. Success."
    )
