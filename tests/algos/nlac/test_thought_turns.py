"""NLAC: what is rewritten at all, and what of a reply is one turn."""

from __future__ import annotations

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.models.model_set import ModelSet
from tests.builders.nlac import (
    CHAT,
    LOST,
    SAMPLING,
    WON,
    Troupe,
    bound,
    filled,
    messages,
    nlac,
    places,
    troupe,
    updated,
    written,
)


def test_what_is_found_optimal_stays_unasked_where_it_is_to_be_kept(models: ModelSet):
    def verdict(text: str, draw: object) -> str:
        good = "cat" in messages(text)[-2] or "owl" in messages(text)[-2]
        return f"Optimality: {'Yes' if good else 'No'}. So it is."

    for keep in (True, False):
        generator = troupe(evaluate=verdict)
        advanced = {"first_action": "stored", "keep_optimal": keep}
        algo = bound(nlac(advanced, turns_per_update=5, gate=True), generator, models)
        phase = updated(algo, filled(WON, LOST))["policy"]
        lessons = sorted(map(written, phase.samples))
        assert lessons == ["Is it a cat?"] * keep + ["Is it an owl?"] * (5 - keep)
        (asked_of,) = generator.of("refine")
        assert len(asked_of.prompts) == 5 - keep
        assert phase.metrics["nlac/kept_when_optimal"] == keep


# replies that the world cuts into turns


def thinking(models: ModelSet, **lines: str) -> tuple[NLAC, Troupe]:
    """The algorithm where a blank line ends a turn, and its speakers."""
    generator = troupe(act="3+3=6\n\n6+1=7\n\nIt is 7.", **lines)
    algo = bound(nlac(turns_per_update=5, gate=True), generator, models)
    algo.context.turn_delimiter = "\n\n"
    return algo, generator


def test_where_the_world_cuts_a_reply_its_first_part_is_judged_and_distilled(models: ModelSet):
    algo, generator = thinking(models, refine="3+4=7\n\nIt is 7.")
    phase = updated(algo, filled(WON, LOST))["policy"]
    assert phase.metrics["nlac/distilled_share"] == 1
    for sample in phase.samples:
        assert written(sample) == "3+4=7\n\n" and sample.ids[-1] != CHAT.closing
    judged, again = ({messages(t)[-2] for t in call.texts} for call in generator.of("evaluate"))
    assert {text.removesuffix("<|im_end|>\n") for text in judged} == {"3+3=6\n\n"}
    assert {text.removesuffix("<|im_end|>\n") for text in again} == {"3+4=7\n\n"}


def test_a_refiner_that_goes_on_behind_the_same_part_has_kept_the_action(models: ModelSet):
    algo, _ = thinking(models, refine="3+3=6\n\nIt is something else.")
    phase = updated(algo, filled(WON, LOST))["policy"]
    assert phase.metrics["nlac/changed_share"] == 0 and phase.metrics["nlac/distilled_share"] == 1


def test_refined_play_goes_from_part_to_part(models: ModelSet):
    algo, _ = thinking(models, refine="3+4=7\n\nIt is 7.")
    (row,) = algo.refined_generator().generate([places(WON)[0].state_ids], [0], SAMPLING)
    assert CHAT.decode(row[0].ids) == "3+4=7\n\n" and row[0].finish == "stop"
    kept, _ = thinking(models, evaluate="Optimality: No. It loses.")
    (row,) = kept.refined_generator().generate([places(WON)[0].state_ids], [0], SAMPLING)
    assert CHAT.decode(row[0].ids) == "3+3=6\n\n" and len(row[0].logprobs) == len(row[0].ids)
