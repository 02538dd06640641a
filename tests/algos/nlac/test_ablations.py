"""Ablations: each changes one part and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.algos.nlac.ablations import NLRL, NLACSelfDistillation
from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.roles import Candidate
from agentrl_cli.algos.samples import TurnRef, all_turns
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.rollout.play import EpisodeStart
from tests.builders.errors import user_error
from tests.builders.nlac import (
    CHAT,
    LOST,
    WON,
    Line,
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
    weights,
    written,
)


def drawn(models: ModelSet, control: str, improvement: str, **lines: Line) -> list[Candidate]:
    """Twenty draws, no two alike, of a selector under a control."""
    names = iter(range(100))
    speakers = troupe(act=lambda text, draw: f"Is it a {next(names)}?", **lines)
    algo = nlac({"ablation": control}, policy_target=improvement, num_candidates=4)
    groups = bound(algo, speakers, models).selector.draw(places(WON, LOST))
    return [action for group in groups for action in group.drawn]


def named(text: str) -> str:
    """Of a role's prompt the action that is judged."""
    return messages(text)[-2].removesuffix("<|im_end|>").strip()


def test_shuffled_forecasts_belong_to_other_candidates(models: ModelSet):
    def forecast(text: str, draw: object) -> str:
        return f"Of {named(text)} Success."

    texts = {}
    for control in ("none", "shuffled_critiques"):
        actions = drawn(models, control, "best_of_n", forecast=forecast)
        texts[control] = [(CHAT.decode(a.action_ids), a.forecasts[0]) for a in actions]
    assert all(action in text for action, text in texts["none"])
    spoiled = texts["shuffled_critiques"]
    assert sum(action in text for action, text in spoiled) < 10 < len(spoiled) == 20
    assert sorted(text for _, text in spoiled) == sorted(text for _, text in texts["none"])


def test_shuffled_critiques_belong_to_other_candidates(models: ModelSet):
    def evaluate(text: str, draw: object) -> str:
        return f"Optimality: No. Of {named(text)}"

    own = {}
    for control in ("none", "shuffled_critiques"):
        actions = drawn(models, control, "best_critique", evaluate=evaluate)
        own[control] = [CHAT.decode(a.action_ids) in (a.critique or "") for a in actions]
    assert all(own["none"]) and sum(own["shuffled_critiques"]) < 10 < len(own["none"]) == 20


def test_majority_uses_no_critic(models: ModelSet):
    lines = iter((["Is it a cat?"] * 3 + ["Is it a dog?"]) * 6)
    generator = troupe(act=lambda text, draw: next(lines))
    algo = nlac({"ablation": "majority"}, policy_target="best_of_n", num_candidates=4)
    targets, _ = bound(algo, generator, models).improve(places(WON))
    assert {call.role for call in generator.calls} == {"act"}
    weights = [(CHAT.decode(x.action_ids), x.weight) for x in targets]
    assert weights == [("Is it a cat?", 1.0)] * 3


def test_frozen_critic_never_trains(model_folder: Path):
    generator = troupe()
    algo = nlac({"ablation": "frozen_critic"}, separate_critic=True)
    models = weights(algo, model_folder)
    bound(algo, generator, models)
    before = models.fingerprint("critic")
    assert list(updated(algo, filled(WON, LOST))) == ["policy"]
    assert models.fingerprint("critic") == before and not generator.of("backup")


def test_empty_critiques_equal_majority(models: ModelSet):
    def forecast(text: str, draw: Any) -> str:
        return draw.choice(["Yes. Success.", "No. Failure."])

    learnt = []
    for control in ("majority", "empty_critiques"):
        speakers = troupe(act=["Is it a cat?", "Is it a dog?", "Is it?"], forecast=forecast)
        algo = nlac(
            {"ablation": control},
            policy_target="best_of_n",
            num_candidates=5,
            show_alternatives=True,
        )
        targets, _ = bound(algo, speakers, models).improve(places(WON, LOST))
        learnt.append([(x.turn.turn, x.action_ids, x.weight) for x in targets])
    assert learnt[0] == learnt[1] and len(learnt[0]) > 3


def test_shuffled_outcomes_come_from_finished_episodes(models: ModelSet):
    cut = [episode(f"cut{i}", ["Is it big?"], success=False, stop="truncated") for i in range(6)]
    ended = [episode(f"done{i}", ["Is it big?"], success=i < 3) for i in range(6)]
    targets = {}
    for control in ("none", "shuffled_outcomes"):
        algo = bound(nlac(advanced={"ablation": control}), troupe(), models)
        targets[control] = algo.successor_targets(places(*cut, *ended), [*cut, *ended])
    for rows in targets.values():
        assert [ids is None for ids in rows] == [True] * 6 + [False] * 6
    spoiled = [CHAT.decode(ids) for ids in targets["shuffled_outcomes"] if ids]
    assert len(set(spoiled)) > 1 and all(text.startswith("The end of done") for text in spoiled)
    assert targets["shuffled_outcomes"] != targets["none"]


def test_refiner_reads_empty_critiques(models: ModelSet):
    generator = troupe(evaluate="Optimality: No. It loses.")
    algo = bound(
        nlac(require_optimal=True, advanced={"ablation": "empty_critiques"}), generator, models
    )
    phase = updated(algo, filled(WON, LOST))["policy"]
    assert {asked(text) for text in generator.of("refine")[0].texts} == {"Critique: \nRefine it."}
    assert len(phase.samples) == 4


@pytest.mark.parametrize("control", ["none", "shuffled_critiques", "empty_critiques"])
def test_critique_ablations_keep_successor_targets(models: ModelSet, control: str):
    algo = bound(nlac(advanced={"ablation": control}), troupe(), models)
    phase = updated(algo, filled(WON, LOST))["successor"]
    honest = updated(bound(nlac(), troupe(), models), filled(WON, LOST))["successor"]
    assert phase.samples == honest.samples


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


def recited(prompt: str, draw: random.Random) -> str:
    """A backup that keeps the outcome that it reads."""
    return "Backed up. " + (
        "Success." if "Success." in prompt.rpartition("Then:")[2] else "Failure."
    )


def test_terminal_backups_read_the_true_outcome(models: ModelSet):
    cast = troupe(backup=recited)
    algo = bound(nlac({"terminal_targets": "backup"}), cast, models)
    last = [TurnRef(e, len(e.turns) - 1) for e in (WON, LOST, CUT)]
    written = algo.successor_targets(last, [])
    texts = [ids and CHAT.decode(ids) for ids in written]
    assert texts == ["Backed up. Success.", "Backed up. Failure.", None]
    asked_for = [asked(text) for call in cast.of("backup") for text in call.texts]
    assert ["Then: Success." in text for text in asked_for] == [True, False]
    assert ["Then: Failure." in text for text in asked_for] == [False, True]


def test_terminal_backups_with_a_false_outcome_are_not_targets(models: ModelSet):
    cast = troupe(backup="Backed up. Failure.")
    algo = bound(nlac({"terminal_targets": "backup"}), cast, models)
    won, lost = algo.successor_targets([TurnRef(e, len(e.turns) - 1) for e in (WON, LOST)], [])
    assert won is None and lost is not None


def test_shuffled_outcomes_are_backed_up_at_their_own_turns(models: ModelSet):
    cast = troupe(backup=recited)
    changes = {"terminal_targets": "backup", "ablation": "shuffled_outcomes"}
    algo = bound(nlac(changes), cast, models)
    ended = [episode(f"done{i}", ["Is it big?"], success=i < 3) for i in range(6)]
    written = algo.successor_targets([TurnRef(e, 0) for e in ended], ended)
    texts = [CHAT.decode(ids) for ids in written if ids]
    prompts = [text for call in cast.of("backup") for text in call.texts]
    names = [next(e.id for e in ended if f"{e.id} at" in text) for text in prompts]
    assert names != [e.id for e in ended] and len(texts) == 6
    for name, prompt, text in zip(names, prompts, texts, strict=True):
        outcome = "Success." if name in ("done0", "done1", "done2") else "Failure."
        assert f"The end of {name}" in prompt and text.endswith(outcome)


def test_monte_carlo_backs_up_from_the_end_only(models: ModelSet):
    cast = troupe(backup=recited)
    algo = bound(nlac({"terminal_targets": "backup", "td_lambda": 1.0}), cast, models)
    written = algo.successor_targets(all_turns([WON, LOST]), [])
    assert all(written) and not cast.of("forecast") and not cast.of("act")


def test_shuffled_next_states_come_from_other_transitions(models: ModelSet):
    turns = [TurnRef(e, t) for e in (WON, LOST) for t in range(len(e.turns) - 1)]
    algo = bound(nlac({"ablation": "shuffled_next_states"}), troupe(), models)
    algo.roles.begin_stream("test")
    found = algo.ablation.next_of(turns, algo.roles)
    own = [turn.next for turn in turns]
    states = [tuple(turn.state_ids) for turn in found]
    assert sorted(states) == sorted(tuple(turn.state_ids) for turn in own)
    assert states != [tuple(turn.state_ids) for turn in own]


def test_nlrl_summarizes_fresh_rollouts(models: ModelSet):
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


def test_self_distillation_refines_by_rollouts(models: ModelSet):
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
    with user_error("no-critic"):
        algo.action_values(places(WON))
    with user_error("unknown-act", "refined"):
        algo.generator("refined")


UNENDED = [{"stop": "error", "error": "KeyError"}, {"stop": "context"}, {"stop": "truncated"}]


@pytest.mark.parametrize("how", UNENDED, ids=lambda how: how["stop"])
def test_rollouts_without_outcome_are_not_shown(models: ModelSet, how: dict[str, Any]):
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
def test_turns_without_outcomes_drop_out(models: ModelSet, how: dict[str, Any]):
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
        (NLRL, {"ablation": "shuffled_outcomes"}, {"rollouts": 2}),
        (NLACSelfDistillation, {"ablation": "empty_critiques"}, {"rollouts": 2}),
        (NLACSelfDistillation, {"role_model": "target"}, {"rollouts": 2}),
        (
            NLACSelfDistillation,
            {},
            {"rollouts": 2, "policy_target": "best_of_n", "num_candidates": 2},
        ),
        (NLACSelfDistillation, {}, {"rollouts": 2, "separate_critic": True}),
        (NLRL, {}, {"rollouts": 0}),
    ],
)
def test_variants_refuse_conflicting_settings(
    cls: type[NLAC], advanced: dict[str, Any], more: dict[str, Any]
):
    with pytest.raises(UserError):
        variant(cls, advanced, **more)
