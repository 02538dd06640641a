"""Refinement and selection: the training targets of the policy."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.improve import Candidates
from agentrl_cli.algos.nlac.roles import Candidate
from agentrl_cli.algos.settings import NLACImprovementCheckConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.models.model_set import ModelSet
from tests.builders.nlac import (
    CHAT,
    LOST,
    WON,
    Troupe,
    asked,
    bound,
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

CHECK = NLACImprovementCheckConfig(every=2, num_targets=8, num_rollouts=3, window=2)
YES, NO = "Optimality: Yes. So.", "Optimality: No. So."


def learnt(algo: NLAC, *actions: Candidate) -> dict[str, float]:
    """The weight of each action that is learnt of these candidates, the first draw first."""
    targets = algo.selector.targets(Candidates(places(WON)[0], list(actions)))
    return {CHAT.decode(target.action_ids): target.weight for target in targets}


def choosing(models: ModelSet, improvement: str, **more: Any) -> NLAC:
    return bound(nlac(policy_target=improvement, **{"num_candidates": 4, **more}), troupe(), models)


def test_best_of_n_weighs_frequency_and_value(models: ModelSet):
    algo = choosing(models, "best_of_n", selection_temperature=0.5)
    often, rare = candidate("a", 3, 0.2), candidate("b", 1, 0.9)
    assert math.log(1) + 0.9 / 0.5 > math.log(3) + 0.2 / 0.5
    assert learnt(algo, often, rare) == {"b": 1.0}
    cautious = choosing(models, "best_of_n", selection_temperature=2.0)
    assert math.log(1) + 0.9 / 2 < math.log(3) + 0.2 / 2
    assert learnt(cautious, often, rare) == {"a": 1.0}


def test_refined_action_counts_half_a_draw(models: ModelSet):
    algo = choosing(models, "best_of_n", selection_temperature=1.0)
    drawn, close = candidate("a", 4, 0.0), candidate("b", 0, math.log(8) - 0.01)
    assert learnt(algo, drawn, close) == {"a": 1.0}
    better = candidate("b", 0, math.log(8) + 0.01)
    assert learnt(algo, drawn, better) == {"b": 1.0}


def test_negative_critique_costs_one(models: ModelSet):
    algo = choosing(models, "best_of_n", selection_temperature=0.5)
    flagged, approved = candidate("a", 3, 0.9, critique=NO), candidate("b", 1, 0.5, critique=YES)
    assert math.log(3) + (0.9 - 1) / 0.5 < math.log(1) + 0.5 / 0.5 < math.log(3) + 0.9 / 0.5
    assert learnt(algo, flagged, approved) == {"b": 1.0}
    unread = candidate("a", 3, 0.9, critique="Hm.")
    assert learnt(algo, unread, approved) == {"a": 1.0}


@pytest.mark.parametrize("seed", range(40))
def test_only_leading_candidates_need_critiques(
    models: ModelSet, seed: int, monkeypatch: pytest.MonkeyPatch
):
    rng, algo = random.Random(seed), choosing(models, "best_of_n", selection_temperature=0.4)
    rows = [(text, rng.randint(1, 3), rng.choice([0.0, 0.5, 1.0])) for text in "abcde"]
    verdicts = {text: rng.choice([YES, NO, "Hm.", ""]) for text in "abcde"}
    known = [candidate(*row, critique=verdicts[row[0]]) for row in rows]
    actions = [candidate(*row) for row in rows]
    asked_of: list[str] = []

    def critiques(shown: list[Candidate]) -> list[str]:
        asked_of.extend(CHAT.decode(action.action_ids) for action in shown)
        return [verdicts[CHAT.decode(action.action_ids)] for action in shown]

    monkeypatch.setattr(algo.roles, "critiques", critiques)
    for action in actions:
        action.critique = None
    turn, selector = places(WON)[0], algo.selector
    selector._add_critiques([Candidates(turn, actions)])  # pyright: ignore[reportPrivateUsage]
    assert learnt(algo, *actions) == learnt(algo, *known)
    assert len(set(asked_of)) == len(asked_of)
    scores = {t: math.log(n) + (v - (verdicts[t] == NO)) / 0.4 for t, n, v in rows}
    hopes = {t: math.log(n) + v / 0.4 for t, n, v in rows}
    assert set(asked_of) == {t for t in hopes if hopes[t] >= max(scores.values()) - 1e-9}


def test_ties_teach_nothing(models: ModelSet):
    algo = choosing(models, "best_of_n")
    assert learnt(algo, candidate("a", 2, 0.5), candidate("b", 2, 0.5)) == {}
    assert learnt(algo, candidate("a", 4, 0.9)) == {"a": 1.0}


def test_cut_choice_is_not_trained(models: ModelSet):
    cut = candidate("b", 1, 1.0)
    cut.action_ids.pop()
    assert learnt(choosing(models, "best_of_n"), candidate("a", 1, 0.0), cut) == {}


def test_best_of_n_imitates_the_draw_of_the_highest_value(models: ModelSet):
    def forecast(text: str, draw: object) -> str:
        return "Success." if "Is it a cat?" in messages(text)[-2] else "Failure."

    generator = troupe(forecast=forecast, refine="Is it a cat?")
    algo = bound(
        nlac(policy_target="best_of_n", num_candidates=6, turns_per_update=5), generator, models
    )
    phase = updated(algo, filled(WON, LOST))["policy"]
    assert set(map(written, phase.samples)) == {"Is it a cat?"}
    assert all({*sample.per_token["weight"]} == {0.0, 1.0} for sample in phase.samples)
    assert phase.metrics["nlac/distilled_share"] == len(phase.samples) / 5


def test_advantage_weights_are_value_differences(models: ModelSet):
    algo = choosing(models, "advantage_weighted")
    state = (3 * 0.2 + 1 * 0.6) / 4
    good, bad = candidate("c", 0, 0.9), candidate("d", 0, 0.1)
    assert learnt(algo, candidate("a", 3, 0.2), candidate("b", 1, 0.6), good, bad) == {
        "a": pytest.approx(3 * (0.2 - state)),
        "b": pytest.approx(0.6 - state),
        "c": pytest.approx(0.9 - state),  # a refined action only where it is better
    }
    assert learnt(algo, candidate("a", 3, 0.5), candidate("b", 1, 0.5)) == {}


def test_action_without_value_or_end_gets_no_advantage_weight(models: ModelSet):
    algo = choosing(models, "advantage_weighted")
    unrated, cut = candidate("c", 4, 0.5), candidate("d", 0, 1.0)
    unrated.forecasts = []
    cut.action_ids.pop()
    assert learnt(algo, candidate("a", 1, 0.2), candidate("b", 1, 0.6), unrated, cut) == {
        "a": pytest.approx(-0.2), "b": pytest.approx(0.2),
    }  # fmt: skip
    assert learnt(algo, unrated) == {}


def test_best_action_has_largest_weight(models: ModelSet):
    algo = choosing(models, "advantage_weighted")
    rows = [candidate("a", 3, 0.2), candidate("b", 1, 0.6), candidate("c", 0, 0.4)]
    best = algo.selector.best_action(Candidates(places(WON)[0], rows))
    assert CHAT.decode(best or []) == "b"


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
def test_best_critique_is_selected(
    models: ModelSet, gate: bool, critiques: tuple[str, ...], expected: dict[str, float]
):
    algo = choosing(models, "best_critique", require_optimal=gate)
    rows = [("a", 2, 0.1), ("b", 1, 0.5), ("c", 1, 0.8)]
    pairs = zip(rows, critiques, strict=True)
    assert learnt(algo, *(candidate(*row, critique=text) for row, text in pairs)) == expected


def test_best_critique_may_be_of_the_first_draw(models: ModelSet):
    algo = choosing(models, "best_critique", require_optimal=True)
    algo.advanced.drop_unchanged = True  # of refined actions
    rows = [candidate("a", 1, 0.8, critique=YES), candidate("b", 1, 0.5, critique=NO)]
    assert learnt(algo, *rows) == {"a": 1.0}


def test_action_without_a_forecast_is_not_selected(models: ModelSet):
    algo = choosing(models, "best_of_n")
    unread, read = candidate("a", 1, 0.5, critique=""), candidate("b", 1, 0.25, critique=YES)
    unread.forecasts = []
    assert learnt(algo, unread, read) == {"b": 1.0}


def judge(prompt: str, draw: Any) -> str:
    return YES if "Is it a cat?" in messages(prompt)[-2] else NO


def test_nlql_distills_best_judged_action(models: ModelSet):
    generator = troupe(evaluate=judge)
    algo = nlac(policy_target="best_critique", turns_per_update=5, num_candidates=8)
    phase = updated(bound(algo, generator, models), filled(WON, LOST))["policy"]
    # of eight draws of two actions the good one is missing in one of 256 places
    assert set(map(written, phase.samples)) == {"Is it a cat?"}
    assert not generator.of("refine")
    assert [len(call.prompts) for call in generator.of("act")][-1] == 40
    judged = [(messages(t)[-3], messages(t)[-2]) for t in generator.of("evaluate")[0].texts]
    assert len(judged) == len(set(judged)) <= 10  # equal draws are judged once


def test_nlql_annotates_without_refined_action(models: ModelSet):
    game = episode("a", ["Is it big?"], success=True)
    algo = nlac(policy_target="best_critique", num_candidates=2, show_alternatives=True)
    bound(algo, troupe(forecast="Success."), models).annotate([game])
    said = game.turns[0].info["critic"]
    assert said["critique"] == "Optimality: Yes. It wins." and said["refined"] == ""
    assert said["forecasts"] == said["others"] == ["Success."]


@pytest.mark.parametrize(
    ("settings", "advanced", "code"),
    [
        (
            {"policy_target": "best_critique"},
            {"ablation": "empty_critiques"},
            "conflicting-settings",
        ),
        (
            {"policy_target": "advantage_weighted"},
            {"ablation": "empty_critiques"},
            "conflicting-settings",
        ),
        ({}, {"ablation": "majority"}, "conflicting-settings"),
        ({"separate_critic": False}, {"ablation": "frozen_critic"}, "conflicting-settings"),
        ({"policy_target": "best_of_n", "require_optimal": True}, {}, "conflicting-settings"),
        ({"improvement_check": CHECK}, {}, "conflicting-settings"),
        ({"policy_target": "best_critique", "num_candidates": 1}, {}, "too-small"),
        ({"show_alternatives": True, "num_candidates": 1}, {}, "too-small"),
        ({"selection_temperature": 0.0}, {}, "too-small"),
    ],
)
def test_conflicting_settings_are_refused(
    settings: dict[str, Any], advanced: dict[str, Any], code: str
):
    with pytest.raises(UserError) as refused:
        nlac(advanced, **{"num_candidates": 2, **settings})
    assert refused.value.code == code


def test_every_round_reads_all_earlier_critiques(models: ModelSet):
    generator = troupe(
        forecast=["One. Success.", "Two. Failure."],
        evaluate=lambda text, draw: f"Optimality: No. Round {text.count('Refine it.')}.",
        refine=lambda text, draw: f"Is it a try {text.count('Refine it.')}?",
    )
    algo = bound(nlac(num_forecasts=3, num_refinements=2, critic_warmup=0), generator, models)
    (chain,) = refined(algo, generator)
    assert [(call.role, call.sampling.n) for call in generator.calls] == [
        ("forecast", 3), ("evaluate", 1), ("refine", 1),
        ("forecast", 3), ("evaluate", 1), ("refine", 1),
    ]  # fmt: skip
    assert [len(action.forecasts) for action in chain] == [3, 3, 0]
    assert asked(generator.of("evaluate")[0].texts[0]).count("\n") == 1 + 3
    first, last = (call.texts[0] for call in generator.of("refine"))
    assert last.startswith(first)
    assert messages(last)[-2].startswith("Is it a try 1?")
    assert asked(last) == "Critique: Optimality: No. Round 0.\nRefine it."
    assert CHAT.decode(chain[-1].action_ids) == "Is it a try 2?"


def refined(algo: NLAC, generator: Troupe) -> list[list[Candidate]]:
    place = places(WON)[0]
    algo.roles.begin_stream("test")
    generator.calls.clear()
    groups = algo.selector.draw([place], [place.action_ids])
    return [group.chain for group in groups if group.chain]


@pytest.mark.parametrize("compare", [True, False])
def test_compare_shows_forecasts_of_other_actions(models: ModelSet, compare: bool):
    def forecast(text: str, draw: object) -> str:
        return "Mine. Success." if "Is it big?" in messages(text)[-2] else "Other. Failure."

    generator = troupe(act="Is it a fish?", forecast=forecast)
    algo = bound(nlac(show_alternatives=compare, num_forecasts=2), generator, models)
    refined(algo, generator)
    others = "Others:\nOther. Failure.\nOther. Failure.\n" if compare else ""
    mine = "Mine. Success.\nMine. Success."
    (call,) = generator.of("evaluate")
    assert asked(call.texts[0]) == f"Mine:\n{mine}\n{others}Evaluate it."
    assert len(generator.of("act")) == int(compare)


def test_gate_drops_disapproved_refinements(models: ModelSet):
    def evaluate(text: str, draw: object) -> str:
        refused = "Is it an owl?" in text and "Here is lost" in text
        return f"Optimality: {'No' if refused else 'Yes'}. So."

    shares = {}
    for gate in (True, False):
        generator = troupe(evaluate=evaluate)
        algo = bound(nlac(turns_per_update=5, require_optimal=gate), generator, models)
        phase = updated(algo, filled(WON, LOST))["policy"]
        shares[gate] = phase.metrics["nlac/distilled_share"]
        assert len(generator.of("evaluate")) == 1 + gate
        lost = [s for s in phase.samples if "Here is lost" in CHAT.text_of(s.ids)]
        assert len(phase.samples) == (3 if gate else 5) and len(lost) == (0 if gate else 2)
    assert shares == {True: 3 / 5, False: 1.0}


@pytest.mark.parametrize("critique", ["It is fine.", "optimality: yes", "Optimality: Perhaps."])
def test_unparsable_critique_is_counted_not_trained(models: ModelSet, critique: str):
    def evaluate(text: str, draw: object) -> str:
        return critique if "Here is lost" in text else "Optimality: No. It loses."

    algo = bound(nlac(turns_per_update=5), troupe(evaluate=evaluate), models)
    phase = updated(algo, filled(WON, LOST))["policy"]
    assert phase.metrics["nlac/unparsed"] == pytest.approx(2 / 5)
    assert len(phase.samples) == 3
    assert not any("Here is lost" in CHAT.text_of(sample.ids) for sample in phase.samples)


def test_no_forecast_means_no_critique(models: ModelSet):
    algo = bound(nlac(), troupe(forecast="It may end well."), models)
    phase = updated(algo, filled(WON, LOST))["policy"]
    assert phase.samples == [] and phase.metrics["nlac/unparsed"] == 1


@pytest.mark.parametrize("first", ["fresh", "stored"])
def test_first_action_is_fresh_or_stored(models: ModelSet, first: str):
    generator = troupe(act="Is it a fish?")
    algo = bound(nlac(turns_per_update=5, advanced={"first_action": first}), generator, models)
    updated(algo, filled(WON, LOST))
    judged = sorted(messages(text)[-2] for text in generator.of("evaluate")[0].texts)
    played = sorted(turn.action for e in (WON, LOST) for turn in e.turns)
    expected = ["Is it a fish?"] * 5 if first == "fresh" else played
    assert [text.removesuffix("<|im_end|>\n") for text in judged] == expected


def test_unchanged_action_keeps_its_critique(models: ModelSet):
    generator = troupe(evaluate="Optimality: Yes. It wins.", refine="Is it big?")
    algo = bound(nlac(require_optimal=True, num_refinements=2), generator, models)
    (chain,) = refined(algo, generator)
    first, *later = chain
    assert all(action is first for action in later) and len(later) == 2
    assert len(generator.of("evaluate")) == 1 and len(generator.of("refine")) == 2


def test_annotation_holds_the_critics_texts(models: ModelSet):
    def forecast(text: str, draw: object) -> str:
        return "Other. Failure." if "Is it a fish?" in messages(text)[-2] else "Mine. Success."

    played = episode("seen", ["Is it big?", "Is it red?"], success=True)
    generator = troupe(act="Is it a fish?", forecast=forecast, evaluate="Optimality: No. It loses.")
    bound(
        nlac(require_optimal=True, show_alternatives=True, num_forecasts=2), generator, models
    ).annotate([played])
    said = json.loads(json.dumps([turn.info["critic"] for turn in played.turns]))
    assert (
        said[0]
        == said[1]
        == {
            "forecasts": ["Mine. Success."] * 2,
            "others": ["Other. Failure."] * 2,
            "critique": "Optimality: No. It loses.",
            "verdict": False,
            "refined": "Is it an owl?",
            "refined_critique": "Optimality: No. It loses.",
            "refined_verdict": False,
        }
    )
    judged = [messages(text)[-2] for text in generator.of("evaluate")[0].texts]
    assert judged == [f"{turn.action}<|im_end|>\n" for turn in played.turns]


def test_keep_optimal_skips_the_refiner(models: ModelSet):
    def verdict(text: str, draw: object) -> str:
        good = "cat" in messages(text)[-2] or "owl" in messages(text)[-2]
        return f"Optimality: {'Yes' if good else 'No'}. So it is."

    for keep in (True, False):
        generator = troupe(evaluate=verdict)
        advanced = {"first_action": "stored", "keep_optimal": keep}
        algo = bound(nlac(advanced, turns_per_update=5, require_optimal=True), generator, models)
        phase = updated(algo, filled(WON, LOST))["policy"]
        targets = sorted(map(written, phase.samples))
        assert targets == ["Is it a cat?"] * keep + ["Is it an owl?"] * (5 - keep)
        (asked_of,) = generator.of("refine")
        assert len(asked_of.prompts) == 5 - keep
        assert phase.metrics["nlac/kept_when_optimal"] == keep


@pytest.mark.parametrize(
    ("verdict", "drop", "trained"), [(NO, True, 0), (NO, False, 3), (YES, True, 3)]
)
def test_repeated_actions_are_trained_if_approved(
    models: ModelSet, verdict: str, drop: bool, trained: int
):
    advanced = {"first_action": "stored", "drop_unchanged": drop}
    algo = bound(nlac(advanced, turns_per_update=3), troupe(evaluate=verdict), models)
    played = filled(episode("same", ["Is it an owl?"] * 3, success=True))  # as the refiner writes
    assert len(updated(algo, played)["policy"].samples) == trained


def thinking(models: ModelSet, **lines: str) -> tuple[NLAC, Troupe]:
    """The algorithm where a blank line ends a turn, and its speakers."""
    generator = troupe(act="3+3=6\n\n6+1=7\n\nIt is 7.", **lines)
    algo = bound(nlac(turns_per_update=5, require_optimal=True), generator, models)
    algo.context.turn_delimiter = "\n\n"
    return algo, generator


def test_delimiter_limits_actions_to_one_turn(models: ModelSet):
    algo, generator = thinking(models, refine="3+4=7\n\nIt is 7.")
    phase = updated(algo, filled(WON, LOST))["policy"]
    assert phase.metrics["nlac/distilled_share"] == 1
    for sample in phase.samples:
        assert written(sample) == "3+4=7\n\n" and sample.ids[-1] != CHAT.end_of_turn
    judged, again = ({messages(t)[-2] for t in call.texts} for call in generator.of("evaluate"))
    assert {text.removesuffix("<|im_end|>\n") for text in judged} == {"3+3=6\n\n"}
    assert {text.removesuffix("<|im_end|>\n") for text in again} == {"3+4=7\n\n"}


def test_text_after_same_turn_changes_nothing(models: ModelSet):
    algo, _ = thinking(models, refine="3+3=6\n\nIt is something else.")
    phase = updated(algo, filled(WON, LOST))["policy"]
    assert phase.metrics["nlac/changed_share"] == 0 and phase.metrics["nlac/distilled_share"] == 1
