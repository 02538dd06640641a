"""What each improvement step learns of a state's candidates, by hand and from scripted speakers."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.choice import Candidate, Candidates
from agentrl_cli.algos.nlac.roles import CritiquedAction
from agentrl_cli.config.compose import compose
from agentrl_cli.core.errors import UserError
from agentrl_cli.models.model_set import ModelSet
from tests.builders.nlac import (
    CHAT,
    LOST,
    SAMPLING,
    WON,
    asked,
    bound,
    branches,
    candidate,
    episode,
    filled,
    messages,
    nlac,
    places,
    troupe,
    updated,
    written,
)

YES, NO = "Optimality: Yes. So.", "Optimality: No. So."


def learnt(algo: NLAC, *actions: Candidate) -> dict[str, float]:
    """The weight of each action that is learnt of these candidates, the first draw first."""
    lessons = algo.chooser.lessons(Candidates(places(WON)[0], list(actions)))
    return {CHAT.decode(lesson.action_ids): lesson.weight for lesson in lessons}


def choosing(models: ModelSet, improvement: str, **more: Any) -> NLAC:
    return bound(nlac(improvement=improvement, **{"candidates": 4, **more}), troupe(), models)


# choice


def test_the_choice_is_the_likeliest_of_frequency_and_value(models: ModelSet):
    algo = choosing(models, "choice", choice_temperature=0.5)
    often, rare = candidate("a", 3, 0.2), candidate("b", 1, 0.9)
    assert math.log(1) + 0.9 / 0.5 > math.log(3) + 0.2 / 0.5
    assert learnt(algo, often, rare) == {"a": -3 / 4, "b": 1 - 1 / 4}
    cautious = choosing(models, "choice", choice_temperature=2.0)
    assert math.log(1) + 0.9 / 2 < math.log(3) + 0.2 / 2
    assert learnt(cautious, often, rare) == {"a": 1 - 3 / 4, "b": -1 / 4}


def test_a_value_is_the_mean_over_an_actions_forecasts(models: ModelSet):
    algo = choosing(models, "choice")
    assert learnt(algo, candidate("a", 1, 1.0, 0.0, 0.2), candidate("b", 1, 0.5)) == {
        "a": -1 / 2,
        "b": 1 / 2,
    }


def test_a_refined_action_counts_half_a_draw_and_takes_its_weight_from_all_draws(models: ModelSet):
    algo = choosing(models, "choice", choice_temperature=1.0)
    drawn, close = candidate("a", 4, 0.0), candidate("b", 0, math.log(8) - 0.01)
    assert learnt(algo, drawn, close) == {}  # always drawn, and still the likeliest
    better = candidate("b", 0, math.log(8) + 0.01)
    assert learnt(algo, drawn, better) == {"a": -1.0, "b": 1.0}


def test_what_its_critique_does_not_call_optimal_loses_one(models: ModelSet):
    algo = choosing(models, "choice", choice_temperature=0.5)
    flagged, approved = candidate("a", 3, 0.9, critique=NO), candidate("b", 1, 0.5, critique=YES)
    assert math.log(3) + (0.9 - 1) / 0.5 < math.log(1) + 0.5 / 0.5 < math.log(3) + 0.9 / 0.5
    assert learnt(algo, flagged, approved) == {"a": -3 / 4, "b": 1 - 1 / 4}
    unread = candidate("a", 3, 0.9, critique="Hm.")
    assert learnt(algo, unread, approved) == {"a": 1 - 3 / 4, "b": -1 / 4}


@pytest.mark.parametrize("seed", range(40))
def test_critiques_are_asked_of_those_in_the_lead_and_the_choice_is_that_of_all_critiques(
    models: ModelSet, seed: int, monkeypatch: pytest.MonkeyPatch
):
    rng, algo = random.Random(seed), choosing(models, "choice", choice_temperature=0.4)
    rows = [(text, rng.randint(1, 3), rng.choice([0.0, 0.5, 1.0])) for text in "abcde"]
    verdicts = {text: rng.choice([YES, NO, "Hm.", ""]) for text in "abcde"}
    known = [candidate(*row, critique=verdicts[row[0]]) for row in rows]
    actions = [candidate(*row) for row in rows]
    asked_of: list[str] = []

    def criticise(written: list[CritiquedAction]) -> None:
        for action in written:
            asked_of.append(CHAT.decode(action.action_ids))
            action.critique = verdicts[asked_of[-1]]

    monkeypatch.setattr(algo.roles, "write_critiques", criticise)
    for action in actions:
        action.critique = None
    turn, chooser = places(WON)[0], algo.chooser
    chooser._add_critiques([Candidates(turn, actions)])  # pyright: ignore[reportPrivateUsage]
    assert learnt(algo, *actions) == learnt(algo, *known)
    assert len(set(asked_of)) == len(asked_of)
    scores = {t: math.log(n) + (v - (verdicts[t] == NO)) / 0.4 for t, n, v in rows}
    hopes = {t: math.log(n) + v / 0.4 for t, n, v in rows}
    assert set(asked_of) == {t for t in hopes if hopes[t] >= max(scores.values()) - 1e-9}


def test_one_action_alone_is_not_judged_again(models: ModelSet):
    lines = iter([*MOST, *["Is it a cow?"] * 4])
    said = {"refine": "Is it a cow?", "evaluate": NO, "forecast": "Success."}
    generator = troupe(act=lambda text, draw: next(lines), **said)
    algo = bound(nlac(improvement="choice", candidates=4), generator, models)
    several, one = algo.chooser.draw(places(WON)[:2])
    assert several.first.critique == one.first.critique == NO and one.refinement
    calls = [len(call.prompts) for call in generator.of("evaluate")]
    judged = sum(action.critique is not None for action in several.actions)
    assert calls == [2] + [1] * (judged - 1) and judged > 1


def test_equal_choices_and_unanimous_draws_teach_nothing(models: ModelSet):
    algo = choosing(models, "choice")
    assert learnt(algo, candidate("a", 2, 0.5), candidate("b", 2, 0.5)) == {}
    assert learnt(algo, candidate("a", 4, 0.9)) == {}


def test_the_weights_of_a_choice_add_up_to_nothing(models: ModelSet):
    algo = choosing(models, "choice", candidates=7)
    rows = [candidate("a", 4, 0.3), candidate("b", 2, 0.9), candidate("c", 1, 0.1)]
    weights = learnt(algo, *rows)
    assert set(weights) == {"a", "b", "c"} and sum(weights.values()) == pytest.approx(0)
    assert weights["b"] == pytest.approx(1 - 2 / 7)


def test_a_choice_that_was_cut_off_is_not_learnt(models: ModelSet):
    cut = candidate("b", 1, 1.0)
    cut.action_ids.pop()
    assert learnt(choosing(models, "choice"), candidate("a", 1, 0.0), cut) == {}


def test_the_chosen_draw_is_trained_up_and_the_other_down(models: ModelSet):
    def forecast(text: str, draw: object) -> str:
        return "Success." if "Is it a cat?" in messages(text)[-2] else "Failure."

    generator = troupe(forecast=forecast, refine="Is it a cat?")
    algo = bound(nlac(improvement="choice", candidates=6, turns_per_update=5), generator, models)
    phase = updated(algo, filled(WON, LOST))["policy"]
    learnt = [branches(sample) for sample in phase.samples]
    for of_state in learnt:
        assert {text: min(weights) > 0 for text, weights in of_state} == {
            "Is it a cat?": True,
            "Is it a dog?": False,
        }
        assert all(len(set(weights)) == 1 for _, weights in of_state)
    assert phase.metrics["nlac/distilled_share"] == len(learnt) / 5


# contrast


def test_contrast_weighs_every_draw_by_its_value_less_the_states(models: ModelSet):
    algo = choosing(models, "contrast")
    state = (3 * 0.2 + 1 * 0.6) / 4
    good, bad = candidate("c", 0, 0.9), candidate("d", 0, 0.1)
    assert learnt(algo, candidate("a", 3, 0.2), candidate("b", 1, 0.6), good, bad) == {
        "a": pytest.approx(3 * (0.2 - state)),
        "b": pytest.approx(0.6 - state),
        "c": pytest.approx(0.9 - state),  # a refined action only where it is better
    }
    assert learnt(algo, candidate("a", 3, 0.5), candidate("b", 1, 0.5)) == {}


def test_contrast_plays_the_action_that_it_makes_likeliest(models: ModelSet):
    algo = choosing(models, "contrast")
    rows = [candidate("a", 3, 0.2), candidate("b", 1, 0.6), candidate("c", 0, 0.4)]
    best = algo.chooser.best_action(Candidates(places(WON)[0], rows))
    assert CHAT.decode(best or []) == "b"


# critique (NLQL)


@pytest.mark.parametrize(
    ("gate", "critiques", "expected"),
    [
        (True, (NO, YES, YES), {"c": 1.0}),  # approved, then by value
        (True, (NO, NO, YES), {"c": 1.0}),
        (False, (YES, NO, "Hm."), {"a": 1.0}),  # called optimal first, whatever its value
        (True, (NO, NO, NO), {}),
        (False, (NO, NO, NO), {"c": 1.0}),
        (False, (NO, NO, "Hm."), {"b": 1.0}),  # what cannot be read is no candidate
        (False, ("Hm.", "", "Hm."), {}),
    ],
)
def test_the_best_by_critique_is_learnt(
    models: ModelSet, gate: bool, critiques: tuple[str, ...], expected: dict[str, float]
):
    algo = choosing(models, "critique", gate=gate)
    rows = [("a", 2, 0.1), ("b", 1, 0.5), ("c", 1, 0.8)]
    pairs = zip(rows, critiques, strict=True)
    assert learnt(algo, *(candidate(*row, critique=text) for row, text in pairs)) == expected


def judge(prompt: str, draw: Any) -> str:
    return YES if "Is it a cat?" in messages(prompt)[-2] else NO


def test_nlql_distils_the_action_that_is_judged_best(models: ModelSet):
    generator = troupe(evaluate=judge)
    algo = nlac(improvement="critique", turns_per_update=5, candidates=8)
    phase = updated(bound(algo, generator, models), filled(WON, LOST))["policy"]
    # of eight draws of two actions the good one is missing in one of 256 places
    assert set(map(written, phase.samples)) == {"Is it a cat?"}
    assert not generator.of("refine")
    assert [len(call.prompts) for call in generator.of("act")][-1] == 40
    judged = [(messages(t)[-3], messages(t)[-2]) for t in generator.of("evaluate")[0].texts]
    assert len(judged) == len(set(judged)) <= 10  # equal draws are judged once


def test_nlql_breaks_ties_by_what_is_forecast(models: ModelSet):
    def forecast(prompt: str, draw: Any) -> str:
        return "Success." if "Is it a dog?" in prompt else "Failure."

    algo = bound(nlac(improvement="critique", candidates=8), troupe(forecast=forecast), models)
    lessons, _ = algo.improve(places(WON))
    assert {CHAT.decode(lesson.action_ids) for lesson in lessons} == {"Is it a dog?"}


def test_nlql_judges_each_candidate_beside_the_forecasts_of_the_others(models: ModelSet):
    lines = {"Is it a dog?": "It barks. Success.", "Is it a cat?": "It purrs. Failure."}

    def forecast(prompt: str, draw: Any) -> str:
        return next(line for action, line in lines.items() if action in prompt)

    generator = troupe(forecast=forecast)
    algo = nlac(improvement="critique", candidates=8, compare=True, forecasts=2)
    bound(algo, generator, models).improve(places(WON)[:1])
    texts = generator.of("evaluate")[0].texts
    assert len(texts) == 2
    for text in texts:
        mine, others = asked(text).split("Others:")
        is_dog = "Is it a dog?" in messages(text)[-2]
        assert ("barks" in mine, "purrs" in mine) == (is_dog, not is_dog)
        assert ("barks" in others, "purrs" in others) == (not is_dog, is_dog)


@pytest.mark.parametrize(("gate", "distilled"), [(True, 0), (False, 3)])
def test_nlql_with_the_gate_distils_only_what_is_called_optimal(
    models: ModelSet, gate: bool, distilled: int
):
    algo = nlac(improvement="critique", gate=gate, candidates=2)
    lessons, metrics = bound(algo, troupe(evaluate=NO), models).improve(places(WON))
    assert len(lessons) == distilled and metrics["nlac/distilled_share"] == distilled / 3
    assert metrics["nlac/unparsed"] == metrics["nlac/optimal_share"] == 0


def test_nlql_plays_the_chosen_action_and_refines_nothing(models: ModelSet):
    generator = troupe(evaluate=judge)
    algo = bound(nlac(improvement="critique", candidates=12), generator, models)
    states = [place.state_ids for place in places(WON)]
    rows = algo.refined_generator().generate(states, [0, 1, 2], SAMPLING)
    assert [CHAT.decode(row[0].ids) for row in rows] == ["Is it a cat?"] * 3
    assert not generator.of("refine")


@pytest.mark.parametrize("name", ["twentyq_nlql", "paper_twentyq_nlql"])
def test_a_preset_of_nlql_distils_the_best_whatever_its_critique_says(name: str):
    algo = compose([f"experiment={name}"]).algo
    assert (algo.improvement, algo.candidates, algo.gate) == ("critique", 4, False)


def test_nlql_annotates_without_a_refined_action(models: ModelSet):
    game = episode("a", ["Is it big?"], success=True)
    algo = nlac(improvement="critique", candidates=2, compare=True)
    bound(algo, troupe(forecast="Success."), models).annotate([game])
    said = game.turns[0].info["critic"]
    assert said["critique"] == "Optimality: Yes. It wins." and said["refined"] == ""
    assert said["forecasts"] == said["others"] == ["Success."]


# refinement


def test_refinement_learns_the_refined_action_of_the_first_draw_whatever_values_say(
    models: ModelSet,
):
    def forecast(text: str, draw: object) -> str:
        return "Failure." if "Is it an owl?" in messages(text)[-2] else "Success."

    generator = troupe(evaluate=NO, forecast=forecast)
    algo = bound(nlac(candidates=4), generator, models)
    lessons, _ = algo.improve(places(WON))
    assert [(CHAT.decode(x.action_ids), x.weight) for x in lessons] == [("Is it an owl?", 1.0)] * 3


# controls

MOST = ["Is it a cat?"] * 3 + ["Is it a dog?"]


def test_without_values_the_choice_is_the_most_frequent_draw(models: ModelSet):
    def forecast(text: str, draw: object) -> str:
        return "Success." if "Is it a dog?" in messages(text)[-2] else "Failure."

    lines = iter(MOST * 6)
    generator = troupe(act=lambda text, draw: next(lines), forecast=forecast)
    algo = nlac({"control": "empty_critiques"}, improvement="choice", candidates=4)
    groups = bound(algo, generator, models).chooser.draw(places(WON))
    assert {action.value for group in groups for action in group.actions} == {0.5}
    for group in groups:
        chosen = algo.chooser.choose(group)
        assert chosen and CHAT.decode(chosen.action_ids) == "Is it a cat?"
    honest = bound(nlac(improvement="choice", candidates=4), generator, models).chooser
    for group in honest.draw(places(WON)):
        chosen = honest.choose(group)
        assert chosen and CHAT.decode(chosen.action_ids) == "Is it a dog?"


@pytest.mark.parametrize(
    ("settings", "control", "sentence"),
    [
        ({"improvement": "critique"}, "empty_critiques", "nothing to learn"),
        ({"improvement": "contrast"}, "empty_critiques", "nothing to learn"),
        ({}, "majority", "needs algo.improvement=choice"),
        ({"critic": "shared"}, "frozen_critic", "needs algo.critic=own"),
        ({"improvement": "choice", "gate": True}, "none", "which compares values"),
        ({"improvement": "critique", "candidates": 1}, "none", "candidates is 1"),
        ({"compare": True, "candidates": 1}, "none", "candidates is 1"),
        ({"choice_temperature": 0.0}, "none", "choice_temperature is 0.0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], control: str, sentence: str
):
    with pytest.raises(UserError, match=sentence):
        nlac({"control": control}, **{"candidates": 2, **settings})


def test_nothing_is_kept_where_nothing_is_refined():
    with pytest.raises(UserError, match="refines nothing"):
        nlac({"keep_optimal": True}, improvement="critique", candidates=2)
