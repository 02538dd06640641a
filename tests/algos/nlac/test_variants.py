"""NLAC's ablations: what each learns from, what it leaves out, and play by refined actions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.variants import NLRL, NLACMonteCarlo, NLACSelfDistillation
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
    assert phase.metrics["rollouts/episodes"] == len(starts)
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
    assert phases["policy"].metrics["rollouts/episodes"] == 5 * 4


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
        (NLACSelfDistillation, {}, {"rollouts": 2, "improvement": "choice", "candidates": 2}),
        (NLACSelfDistillation, {}, {"rollouts": 2, "critic": "own"}),
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
