"""NLAC's ablations: what each learns from, what it leaves out, and play by refined actions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.variants import NLQL, NLRL, NLACMonteCarlo, NLACSelfDistillation
from agentrl_cli.config.compose import compose
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.rollout.play import EpisodeStart
from tests.builders.nlac import (
    CHAT,
    LOST,
    SAMPLING,
    WON,
    Troupe,
    asked,
    bound,
    episode,
    filled,
    messages,
    nlac,
    places,
    troupe,
    updated,
    written,
)

CUT = episode("cut", ["Is it a fox?"], success=False, stop="truncated")


def variant(cls: type[NLAC], advanced: dict[str, Any] | None = None, **more: Any) -> Any:
    """A variant with the plain settings of NLAC."""
    plain = nlac(advanced)
    given = {f.name: getattr(plain, f.name) for f in fields(plain) if f.init}
    return cls(**{**given, **more})


def wired(algo: NLAC, cast: Troupe, models: ModelSet, probe: Callable[..., Any]) -> Any:
    """Bound, with rollouts of its own."""
    bound(algo, cast, models)
    algo.bind(replace(algo.context, probe=probe))
    return algo


def played_on(starts: list[EpisodeStart]) -> list[Episode]:
    """Rollouts that keep what is forced, ask once more, and win where the seed is even."""
    found = []
    for start in starts:
        actions = [turn.action for turn in start.replayed] + [f"Then {start.seed % 7}?"]
        found.append(episode(start.id, actions, success=start.seed % 2 == 0))
    return found


# Monte-Carlo targets


def test_monte_carlo_targets_are_the_episode_s_own_end_and_nothing_is_asked_for(models: ModelSet):
    cast = troupe()
    algo = bound(variant(NLACMonteCarlo, turns_per_update=6, critic_warmup=9), cast, models)
    phase = updated(algo, filled(WON, LOST, CUT))["successor"]
    told = sorted(map(written, phase.samples))
    assert told == [
        "Here is lost at 1. Failure.", "Here is won at 1. Success.", "Here is won at 2. Success.",
        "The end of lost. Failure.", "The end of won. Success.",
    ]  # fmt: skip
    assert cast.calls == []  # no forecast, no backup
    assert phase.metrics["nlac/unparsed_targets"] == pytest.approx(1 / 6)  # the one cut off


# NLRL


def test_nlrl_draws_a_value_from_fresh_rollouts_of_the_action(models: ModelSet):
    starts: list[EpisodeStart] = []

    def probe(given: list[EpisodeStart]) -> list[Episode]:
        starts.extend(given)
        return played_on(given)

    cast = troupe(backup="It mostly fails. Failure.")
    algo = wired(
        variant(NLRL, turns_per_update=5, critic_warmup=9, rollouts=3), cast, models, probe
    )
    phase = updated(algo, filled(WON, LOST))["successor"]
    assert len(starts) == 3 * 5 and len({start.seed for start in starts}) == 15
    by_place = {(s.id.partition("-")[0], len(s.replayed), s.replayed[-1].action) for s in starts}
    turns = [(p.episode.id, p.turn + 1, p.episode.turns[p.turn].action) for p in places(WON, LOST)]
    assert by_place == set(turns)
    (call,) = cast.of("backup")
    assert call.model == "target" and not cast.of("forecast")
    ends = [asked(text).count("Success.") + asked(text).count("Failure.") for text in call.texts]
    assert ends == [3] * 5
    assert set(map(written, phase.samples)) == {"It mostly fails. Failure."}
    responses = {p.response for p in places(WON, LOST)}
    for text in call.texts:
        seen, plays, *lines, instruction = asked(text).splitlines()
        assert seen.removeprefix("Seen: ") in responses and plays == "Plays:"
        assert len(lines) == 3 and instruction == "Draw it together."


def test_nlrl_leaves_out_what_names_no_outcome(models: ModelSet):
    algo = wired(
        variant(NLRL, critic_warmup=9, rollouts=1), troupe(backup="Well."), models, played_on
    )
    phase = updated(algo, filled(WON))["successor"]
    assert phase.samples == [] and phase.metrics["nlac/unparsed_targets"] == 1


# NLQL


def test_nlql_distils_the_action_that_is_judged_best(models: ModelSet):
    def judge(prompt: str, draw: Any) -> str:
        good = "Is it a cat?" in prompt.split("<|im_start|>assistant")[-2]
        return "Optimality: Yes." if good else "Optimality: No."

    cast = troupe(evaluate=judge)
    algo = bound(variant(NLQL, turns_per_update=5, candidates=8), cast, models)
    phase = updated(algo, filled(WON, LOST))["policy"]
    # of eight draws of two actions the good one is missing in one of 256 places
    assert set(map(written, phase.samples)) == {"Is it a cat?"}
    assert not cast.of("refine")
    assert [len(call.prompts) for call in cast.of("evaluate")] == [40]


def test_nlql_breaks_ties_by_what_is_forecast(models: ModelSet):
    def forecast(prompt: str, draw: Any) -> str:
        return "Success." if "Is it a dog?" in prompt else "Failure."

    algo = bound(variant(NLQL, turns_per_update=5, candidates=8), troupe(forecast=forecast), models)
    lessons, _ = algo.improve(places(WON))
    assert {CHAT.decode(lesson.action_ids) for lesson in lessons} == {"Is it a dog?"}


def test_nlql_judges_each_candidate_beside_the_forecasts_of_the_next(models: ModelSet):
    def forecast(prompt: str, draw: Any) -> str:
        return "It barks. Success." if "Is it a dog?" in prompt else "It purrs. Failure."

    cast = troupe(forecast=forecast)
    algo = bound(variant(NLQL, candidates=3), cast, models)
    algo.improve(places(WON)[:1])
    actions = [messages(text)[-2] for text in cast.of("evaluate")[0].texts]
    for i, text in enumerate(cast.of("evaluate")[0].texts):
        mine, others = asked(text).split("Others:")
        for part, action in ((mine, actions[i]), (others, actions[(i + 1) % 3])):
            assert ("barks" in part) == ("dog" in action) != ("purrs" in part)


@pytest.mark.parametrize(("gate", "distilled"), [(True, 0), (False, 3)])
def test_nlql_with_the_gate_distils_only_what_is_called_optimal(
    models: ModelSet, gate: bool, distilled: int
):
    cast = troupe(evaluate="Optimality: No. It loses.")
    algo = bound(variant(NLQL, gate=gate, candidates=2), cast, models)
    lessons, metrics = algo.improve(places(WON))
    assert len(lessons) == distilled and metrics["nlac/distilled_share"] == distilled / 3


def test_nlql_measures_and_plays_the_chosen_action_and_refines_nothing(models: ModelSet):
    def judge(prompt: str, draw: Any) -> str:
        good = "Is it a cat?" in prompt.split("<|im_start|>assistant")[-2]
        return "Optimality: Yes." if good else "Optimality: No."

    cast = troupe(evaluate=judge)
    algo = wired(variant(NLQL, candidates=12), cast, models, played_on)
    assert play(algo, [place.state_ids for place in places(WON)]) == ["Is it a cat?"] * 3
    assert "nlac/refined_gain" in algo.critic_monitor.discrimination(places(WON))
    assert not cast.of("refine")


@pytest.mark.parametrize("name", ["twentyq_nlql", "paper_twentyq_nlql"])
def test_a_preset_of_nlql_distils_the_best_whatever_its_critique_says(name: str):
    assert compose([f"experiment={name}"]).algo.gate is False


def test_nlql_annotates_without_a_refined_action(models: ModelSet):
    game = episode("a", ["Is it big?"], success=True)
    bound(variant(NLQL, candidates=2), troupe(), models).annotate([game])
    said = game.turns[0].info["critic"]
    assert said["critique"] == "Optimality: Yes. It wins." and said["refined"] == ""


# Self-Distillation


def test_self_distillation_refines_by_rollouts_and_has_no_critic(models: ModelSet):
    cast = troupe()
    algo = wired(
        variant(NLACSelfDistillation, turns_per_update=5, rollouts=4), cast, models, played_on
    )
    assert set(algo.models()) == {"policy", "reference"}
    phases = updated(algo, filled(WON, LOST))
    assert set(phases) == {"policy"}
    assert {call.role for call in cast.calls} == {"refine"}
    for text in cast.of("refine")[0].texts:
        assert asked(text).startswith("Plays:\n") and "Critique" not in asked(text)
        assert asked(text).count("Then") == 4  # each rollout's own action
        assert asked(text).count("Success.") + asked(text).count("Failure.") == 4
    assert set(map(written, phases["policy"].samples)) == {"Is it an owl?"}
    assert phases["policy"].metrics["nlac/distilled_share"] == 1


@pytest.mark.parametrize("preset", ["twentyq", "paper_twentyq"])
@pytest.mark.parametrize(
    ("name", "prompt", "wrong"),
    [("self_distillation", "refine_by_rollouts", "ritique"), ("nlrl", "aggregate", "orecast from")],
)
def test_presets_show_rollouts_as_what_they_are(preset: str, name: str, prompt: str, wrong: str):
    algo = compose([f"experiment={preset}_{name}"]).algo
    assert "{rollouts}" in algo.prompts[prompt] and wrong not in algo.prompts[prompt]


# rollouts without an outcome

UNENDED = [{"stop": "error", "error": "KeyError"}, {"stop": "context"}, {"stop": "truncated"}]


@pytest.mark.parametrize("how", UNENDED, ids=lambda how: how["stop"])
def test_a_rollout_without_an_outcome_is_shown_to_nobody(models: ModelSet, how: dict[str, Any]):
    for cls, role in ((NLACSelfDistillation, "refine"), (NLRL, "backup")):
        rounds, cast = iter([how, {}]), troupe()  # the first rollout of a turn, and the second

        def half(starts: list[EpisodeStart], rounds: Any = rounds) -> list[Episode]:
            changes = next(rounds)
            return [replace(one, **changes) for one in played_on(starts)]

        algo = wired(variant(cls, turns_per_update=3, rollouts=2), cast, models, half)
        updated(algo, filled(WON))
        texts = [asked(text) for text in cast.of(role)[0].texts]
        told = [text.count("Success.") + text.count("Failure.") for text in texts]
        assert told == [1] * 3


@pytest.mark.parametrize("how", [*UNENDED, {"turns": []}])
def test_a_turn_whose_rollouts_have_no_outcome_drops_out(models: ModelSet, how: dict[str, Any]):
    def broken(starts: list[EpisodeStart]) -> list[Episode]:
        return [replace(one, **how) for one in played_on(starts)]

    algo = wired(variant(NLACSelfDistillation, rollouts=2), troupe(), models, broken)
    phase = updated(algo, filled(WON))["policy"]
    assert phase.samples == [] and phase.metrics["nlac/distilled_share"] == 0
    algo = wired(variant(NLRL, rollouts=2, critic_warmup=9), troupe(), models, broken)
    phase = updated(algo, filled(WON))["successor"]
    assert phase.samples == [] and phase.metrics["nlac/unparsed_targets"] == 1


@pytest.mark.parametrize(
    ("cls", "advanced", "more"),
    [
        (NLACMonteCarlo, {"control": "shuffled_outcomes"}, {}),
        (NLRL, {"control": "shuffled_outcomes"}, {"rollouts": 2}),
        (NLACSelfDistillation, {"control": "empty_critiques"}, {"rollouts": 2}),
        (NLACSelfDistillation, {"role_weights": "target"}, {"rollouts": 2}),
        (NLACSelfDistillation, {"keep_optimal": True}, {"rollouts": 2}),
        (NLQL, {"keep_optimal": True}, {"candidates": 2}),
        (NLQL, {"control": "shuffled_critiques"}, {"candidates": 2}),
        (NLQL, {"control": "empty_critiques"}, {"candidates": 2}),
        (NLQL, {}, {"candidates": 1}),
        (NLRL, {}, {"rollouts": 0}),
    ],
)
def test_what_means_nothing_to_a_variant_is_refused(
    cls: type[NLAC], advanced: dict[str, Any], more: dict[str, Any]
):
    with pytest.raises(UserError):
        variant(cls, advanced, **more)


# play by refined actions


def play(algo: NLAC, prompts: list[list[int]]) -> list[str]:
    rows = algo.refined_generator().generate(prompts, list(range(len(prompts))), SAMPLING)
    return [CHAT.decode(row[0].ids) for row in rows]


def test_a_refined_player_plays_what_the_refiner_wrote(models: ModelSet):
    states = [place.state_ids for place in places(WON, LOST)]
    algo = bound(nlac(), troupe(evaluate="Optimality: No. It loses."), models)
    assert play(algo, states) == ["Is it an owl?"] * 5
    (row,) = algo.refined_generator().generate(states[:1], [0], SAMPLING)
    assert row[0].finish == "stop" and all(map(math.isnan, row[0].logprobs))


def test_a_refined_player_keeps_its_action_where_the_gate_stays_shut(models: ModelSet):
    algo = bound(nlac(gate=True), troupe(evaluate="Optimality: No.", act="Is it?"), models)
    assert play(algo, [places(WON)[0].state_ids]) == ["Is it?"]
    mute = bound(nlac(), troupe(evaluate="Hm.", act="Is it?"), models)
    assert play(mute, [places(WON)[0].state_ids]) == ["Is it?"]


def test_only_algorithms_that_refine_can_play_refined():
    from agentrl_cli.algos.sft import SFT

    with pytest.raises(UserError, match="needs an algorithm that refines"):
        SFT.refined_generator(object())  # type: ignore[arg-type]
