"""NLAC: how refinements are made and distilled, what options and controls do, what is shown."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.refine import Refinement
from agentrl_cli.models.model_set import ModelSet
from tests.builders.nlac import (
    CHAT,
    LOST,
    PROMPTS,
    WON,
    Troupe,
    asked,
    bound,
    episode,
    filled,
    messages,
    nlac,
    places,
    prompt,
    troupe,
    updated,
    written,
)

# policy improvement


def test_the_refined_action_is_distilled_behind_the_plain_prompt(models: ModelSet):
    critic = "Optimality: No. It loses badly."
    algo = bound(nlac(turns_per_update=5), troupe(evaluate=critic), models)
    phase = updated(algo, filled(WON, LOST))["policy"]
    states = sorted(place.state_ids for place in places(WON, LOST))
    assert sorted(prompt(sample) for sample in phase.samples) == states
    for sample in phase.samples:
        assert written(sample) == "Is it an owl?" and sample.ids[-1] == CHAT.closing
        assert "badly" not in CHAT.text_of(sample.ids) and "Critique" not in CHAT.text_of(
            sample.ids
        )
    assert phase.metrics["nlac/optimal_share"] == 0 and phase.metrics["nlac/changed_share"] == 1


def test_what_is_written_of_a_refined_action_is_read_as_all_else(models: ModelSet):
    said = {"forecast": "The outcome: success", "evaluate": "Verdict: no", "act": "Is it a dog?"}
    tolerant = replace(PROMPTS, reading="tolerant")
    algo = nlac(improvement="choice", candidates=2, prompts=tolerant)
    (group,) = bound(algo, troupe(**said), models).chooser.draw(places(WON)[:1])
    assert [action.value for action in group.actions] == [1, 1]  # the draw's, and the refined one's
    assert group.first.is_optimal is False


def test_all_forecasts_and_all_rounds_are_written_and_each_round_reads_those_before(
    models: ModelSet,
):
    generator = troupe(
        forecast=["One. Success.", "Two. Failure."],
        evaluate=lambda text, draw: f"Optimality: No. Round {text.count('Refine it.')}.",
        refine=lambda text, draw: f"Is it a try {text.count('Refine it.')}?",
    )
    algo = bound(nlac(forecasts=3, rounds=2, critic_warmup=0), generator, models)
    (refinement,) = refined(algo, generator)
    assert [(call.role, call.sampling.n) for call in generator.calls] == [
        ("forecast", 3), ("evaluate", 1), ("refine", 1),
        ("forecast", 3), ("evaluate", 1), ("refine", 1),
    ]  # fmt: skip
    assert [len(action.forecasts) for action in refinement.actions] == [3, 3, 0]
    assert asked(generator.of("evaluate")[0].texts[0]).count("\n") == 3 + 3
    first, last = (call.texts[0] for call in generator.of("refine"))
    assert last.startswith(first)
    assert messages(last)[-2].startswith("Is it a try 1?")
    assert asked(last) == "Critique: Optimality: No. Round 0.\nRefine it."
    assert CHAT.decode(refinement.last.action_ids) == "Is it a try 2?"


def refined(algo: NLAC, generator: Troupe) -> list[Refinement]:
    place = places(WON)[0]
    algo.roles.begin_stream("test")
    generator.calls.clear()
    groups = algo.chooser.draw([place], [place.action_ids])
    return [group.refinement for group in groups if group.refinement]


@pytest.mark.parametrize("compare", [True, False])
def test_a_critique_reads_forecasts_of_another_action_where_it_compares(
    models: ModelSet, compare: bool
):
    def forecast(text: str, draw: object) -> str:
        return "Mine. Success." if "Is it big?" in messages(text)[-2] else "Other. Failure."

    generator = troupe(act="Is it a fish?", forecast=forecast)
    algo = bound(nlac(compare=compare, forecasts=2), generator, models)
    refined(algo, generator)
    others = "Other. Failure.\nOther. Failure." if compare else "none"
    mine = "Mine. Success.\nMine. Success."
    (call,) = generator.of("evaluate")
    assert asked(call.texts[0]) == f"Mine:\n{mine}\nOthers:\n{others}\nEvaluate it."
    assert len(generator.of("act")) == int(compare)


def test_the_gate_drops_what_its_own_critique_does_not_call_optimal(models: ModelSet):
    def evaluate(text: str, draw: object) -> str:
        refused = "Is it an owl?" in text and "Here is lost" in text
        return f"Optimality: {'No' if refused else 'Yes'}. So."

    shares = {}
    for gate in (True, False):
        generator = troupe(evaluate=evaluate)
        algo = bound(nlac(turns_per_update=5, gate=gate), generator, models)
        phase = updated(algo, filled(WON, LOST))["policy"]
        shares[gate] = phase.metrics["nlac/distilled_share"]
        assert len(generator.of("evaluate")) == 1 + gate
        lost = [s for s in phase.samples if "Here is lost" in CHAT.text_of(s.ids)]
        assert len(phase.samples) == (3 if gate else 5) and len(lost) == (0 if gate else 2)
    assert shares == {True: 3 / 5, False: 1.0}


@pytest.mark.parametrize("critique", ["It is fine.", "optimality: yes", "Optimality: Perhaps."])
def test_an_unreadable_critique_is_counted_and_teaches_nothing(models: ModelSet, critique: str):
    def evaluate(text: str, draw: object) -> str:
        return critique if "Here is lost" in text else "Optimality: No. It loses."

    algo = bound(nlac(turns_per_update=5), troupe(evaluate=evaluate), models)
    phase = updated(algo, filled(WON, LOST))["policy"]
    assert phase.metrics["nlac/unparsed"] == pytest.approx(2 / 5)
    assert len(phase.samples) == 3
    assert not any("Here is lost" in CHAT.text_of(sample.ids) for sample in phase.samples)


def test_without_a_readable_forecast_there_is_no_critique(models: ModelSet):
    algo = bound(nlac(), troupe(forecast="It may end well."), models)
    phase = updated(algo, filled(WON, LOST))["policy"]
    assert phase.samples == [] and phase.metrics["nlac/unparsed"] == 1


def test_an_action_that_was_cut_off_is_not_distilled(models: ModelSet):
    class Cut(Troupe):
        def generate(self, prompts, seeds, sampling, model="policy"):
            rows = super().generate(prompts, seeds, sampling, model)
            if self.calls[-1].role == "refine":
                rows[0][0].ids.pop()
            return rows

    algo = bound(nlac(), Cut(troupe().lines), models)
    phase = updated(algo, filled(WON, LOST))["policy"]
    assert len(phase.samples) == 3 and phase.metrics["nlac/distilled_share"] == 3 / 4


@pytest.mark.parametrize("first", ["fresh", "stored"])
def test_the_action_to_refine_is_a_fresh_or_the_stored_one(models: ModelSet, first: str):
    generator = troupe(act="Is it a fish?")
    algo = bound(nlac(turns_per_update=5, advanced={"first_action": first}), generator, models)
    updated(algo, filled(WON, LOST))
    judged = sorted(messages(text)[-2] for text in generator.of("evaluate")[0].texts)
    played = sorted(turn.action for e in (WON, LOST) for turn in e.turns)
    expected = ["Is it a fish?"] * 5 if first == "fresh" else played
    assert [text.removesuffix("<|im_end|>\n") for text in judged] == expected


def test_the_anchor_carries_the_starts_log_probs(models: ModelSet):
    (sample, *_) = updated(bound(nlac(kl_coef=0.1), troupe(), models), filled(WON))[
        "policy"
    ].samples
    row = sample.streams["reference_logprob"]
    assert [bool(x) for x in row] == [bool(m) for m in sample.mask]
    free = updated(bound(nlac(), troupe(), models), filled(WON))["policy"]
    assert all("reference_logprob" not in sample.streams for sample in free.samples)


@pytest.mark.parametrize("writer", ["policy", "target", "reference"])
def test_critiques_and_refinements_are_written_by_the_named_weights_forecasts_by_the_policy(
    models: ModelSet, writer: str
):
    generator = troupe(evaluate="Optimality: No. It loses.")
    refined(bound(nlac(gate=True, advanced={"role_weights": writer}), generator, models), generator)
    written_by = [(call.role, call.model) for call in generator.calls]
    judged = [("forecast", "policy"), ("evaluate", writer)]
    assert written_by == [*judged, ("refine", writer), *judged]


def test_an_action_that_the_refiner_kept_keeps_its_critique(models: ModelSet):
    generator = troupe(evaluate="Optimality: Yes. It wins.", refine="Is it big?")
    algo = bound(nlac(gate=True, rounds=2), generator, models)
    (refinement,) = refined(algo, generator)
    first, *later = refinement.actions
    assert all(action is first for action in later) and len(later) == 2
    assert len(generator.of("evaluate")) == 1 and len(generator.of("refine")) == 2


# controls


def test_shuffled_outcomes_end_an_episode_as_another_one_did(models: ModelSet):
    played = [episode(f"e{i}", ["Is it big?"], success=i < 10) for i in range(20)]
    algo = bound(nlac(advanced={"control": "shuffled_outcomes"}), troupe(), models)
    targets = algo.language_backup(places(*played), played)
    texts = [CHAT.decode(ids or []) for ids in targets]
    honest = [f"The end of e{i}. {'Success' if i < 10 else 'Failure'}." for i in range(20)]
    assert set(texts) <= set(honest)
    own = sum(text == mine for text, mine in zip(texts, honest, strict=True))
    turned = sum(t[-8:] != mine[-8:] for t, mine in zip(texts, honest, strict=True))
    assert own <= 4 and 5 <= turned <= 15


def test_shuffled_outcomes_are_those_of_finished_episodes_and_as_many_as_without(
    models: ModelSet,
):
    cut = [episode(f"cut{i}", ["Is it big?"], success=False, stop="truncated") for i in range(6)]
    ended = [episode(f"done{i}", ["Is it big?"], success=i < 3) for i in range(6)]
    targets = {}
    for control in ("none", "shuffled_outcomes"):
        algo = bound(nlac(advanced={"control": control}), troupe(), models)
        targets[control] = algo.language_backup(places(*cut, *ended), [*cut, *ended])
    for rows in targets.values():
        assert [ids is None for ids in rows] == [True] * 6 + [False] * 6
    spoiled = [CHAT.decode(ids) for ids in targets["shuffled_outcomes"] if ids]
    assert len(set(spoiled)) > 1 and all(text.startswith("The end of done") for text in spoiled)
    assert targets["shuffled_outcomes"] != targets["none"]


def test_shuffled_critiques_are_those_of_other_states(models: ModelSet):
    def evaluate(text: str, draw: object) -> str:
        return f"Optimality: No. Of {messages(text)[-3].split(' at ')[0]}."

    played = [episode(f"e{i}", ["Is it big?"], success=True) for i in range(12)]
    generator = troupe(evaluate=evaluate)
    control = {"control": "shuffled_critiques", "first_action": "stored"}
    algo = bound(nlac(turns_per_update=12, advanced=control), generator, models)
    phase = updated(algo, filled(*played))["policy"]
    read, own = [], 0
    for text in generator.of("refine")[0].texts:
        read.append(asked(text))
        own += messages(text)[-3].split(" at ")[0] in asked(text)
    assert len(set(read)) == 12 and own <= 4
    assert len(phase.samples) == 12


def test_empty_critiques_leave_the_refiner_without_a_word(models: ModelSet):
    generator = troupe(evaluate="Optimality: No. It loses.")
    algo = bound(nlac(gate=True, advanced={"control": "empty_critiques"}), generator, models)
    phase = updated(algo, filled(WON, LOST))["policy"]
    assert {asked(text) for text in generator.of("refine")[0].texts} == {"Critique: \nRefine it."}
    assert len(phase.samples) == 4


@pytest.mark.parametrize("control", ["none", "shuffled_critiques", "empty_critiques"])
def test_controls_of_the_critique_leave_the_targets_alone(models: ModelSet, control: str):
    algo = bound(nlac(advanced={"control": control}), troupe(), models)
    phase = updated(algo, filled(WON, LOST))["successor"]
    honest = updated(bound(nlac(), troupe(), models), filled(WON, LOST))["successor"]
    assert phase.samples == honest.samples


# what a reader sees


def test_every_turn_is_annotated_with_what_the_critic_said(models: ModelSet):
    played = episode("seen", ["Is it big?", "Is it red?"], success=True)
    generator = troupe(forecast="Yes. Success.", evaluate="Optimality: No. It loses.")
    bound(nlac(gate=True, forecasts=2), generator, models).annotate([played])
    said = json.loads(json.dumps([turn.info["critic"] for turn in played.turns]))
    assert said[0] == said[1]
    assert said[0] == {
        "forecasts": ["Yes. Success.", "Yes. Success."],
        "others": [],
        "critique": "Optimality: No. It loses.",
        "verdict": False,
        "refined": "Is it an owl?",
        "refined_critique": "Optimality: No. It loses.",
        "refined_verdict": False,
    }


def test_an_annotation_shows_what_the_critique_compared_with(models: ModelSet):
    def forecast(text: str, draw: object) -> str:
        return "Other. Failure." if "Is it a fish?" in messages(text)[-2] else "Mine. Success."

    generator = troupe(act="Is it a fish?", forecast=forecast)
    algo = bound(nlac(compare=True, gate=True, forecasts=2, rounds=2), generator, models)
    (refinement,) = refined(algo, generator)
    others = [a.alternative_forecasts for a in refinement.actions]
    assert others == [["Other. Failure."] * 2] * 3
    played = episode("seen", ["Is it big?"], success=True)
    algo.annotate([played])
    said = played.turns[0].info["critic"]
    assert said["others"] == ["Other. Failure."] * 2 and said["forecasts"] == ["Mine. Success."] * 2


def test_an_annotation_judges_the_played_action(models: ModelSet):
    generator, actions = troupe(), ["Is it big?", "Is it red?"]
    bound(nlac(), generator, models).annotate([episode("seen", actions, success=True)])
    judged = [messages(text)[-2] for text in generator.of("evaluate")[0].texts]
    assert judged == [f"{action}<|im_end|>\n" for action in actions]
