"""The improvement ledger: every figure by hand, on a few candidates with known success."""

from __future__ import annotations

import pytest

from agentrl_cli.algos.nlac.choice import Candidates
from agentrl_cli.algos.nlac.ledger import ProbedCandidates, ledger, lesson_gains, low_end
from agentrl_cli.algos.nlac.refine import Refinement
from agentrl_cli.algos.nlac.roles import CritiquedAction
from agentrl_cli.models.model_set import ModelSet
from tests.builders.corridor import PATH, RIGHT, walker, walks, watching
from tests.builders.nlac import EXACT, WON, bound, candidate, nlac, places, troupe
from tests.fakes.tabular import GO, JUMP

YES, NO = "Optimality: Yes. So.", "Optimality: No. So."
PROBES = 16


def probed(critique: str, success: float, other: float, refined: float | None) -> ProbedCandidates:
    """A first draw with its critique, another draw, and a refined action; None: it was kept."""
    place = places(WON)[0]
    drawn = [candidate("a", 1, critique=critique), candidate("b", 1)]
    last = drawn[0] if refined is None else candidate("c", 0)
    judged = [CritiquedAction(place, each.action_ids, reading=EXACT) for each in (drawn[0], last)]
    refinement = Refinement(judged, prompt=[]) if critique else None
    rates = [success, other] if refined is None else [success, other, refined]
    actions = drawn if refined is None else [*drawn, last]
    return ProbedCandidates(Candidates(place, actions, refinement), rates)


TURNS = [
    probed(NO, 0.0, 1.0, 0.75),  # faulty, flagged, mended
    probed(NO, 0.0, 1.0, 0.125),  # faulty, flagged, better and still worse than the state
    probed(YES, 0.0, 1.0, None),  # faulty, missed, and kept as it was
    probed("", 0.0, 1.0, None),  # faulty, no critique that could be read
    probed(NO, 1.0, 0.0, 0.0),  # sound, a false alarm, and spoiled
    probed(YES, 0.5, 0.5, 0.375),  # sound, and a little worse is not spoiled
]


def test_every_figure_of_the_ledger_by_hand(models: ModelSet):
    chooser = bound(nlac(), troupe(), models).chooser
    gains = [0.75 - 0.5, 0.125 - 0.5, 0.0 - 0.5, 0.0 - 0.5, 0.375 - 0.5]  # all that is refined
    mean = sum(gains) / 5
    deviation = (sum((gain - mean) ** 2 for gain in gains) / 4) ** 0.5
    assert ledger(TURNS, chooser, PROBES) == {
        "ledger/turns": 6.0,
        "ledger/faulty": 4 / 6,
        "ledger/hits": 2 / 4,
        "ledger/false_alarms": 1 / 2,
        "ledger/mended": 1 / 3,  # of the faulty ones that were refined
        "ledger/spoiled": 1 / 2,
        "ledger/lesson_share": 5 / 6,
        "ledger/lesson_gain": pytest.approx(mean),
        "ledger/lesson_gain_low": pytest.approx(mean - 1.96 * deviation / 5**0.5),
    }


def test_a_difference_within_the_noise_of_the_probes_is_no_fault(models: ModelSet):
    chooser = bound(nlac(), troupe(), models).chooser
    close = [probed(NO, 0.25, 0.5, 0.5)]  # 0.25 under the other; two errors are 0.34 and 0.12
    assert ledger(close, chooser, PROBES)["ledger/faulty"] == 0
    assert ledger(close, chooser, 8 * PROBES)["ledger/faulty"] == 1


def test_an_action_is_held_against_the_other_draws():
    group = probed(NO, 0.25, 0.75, 0.5)
    first, _, refined = (action.action_ids for action in group.candidates.actions)
    assert group.gap(first, 64) == -0.5 and group.gap(refined, 64) == 0  # to both, 0.5 in the mean
    group.candidates.actions[1].draws = 3
    # p is 0.5625, the error sqrt(p (1 - p) (1 + 1/16 + 9/16) / probes), so two are 0.125 at 102.4
    assert group.gap(refined, 102) == 0 and group.gap(refined, 103) == -0.125
    alone = probed(NO, 0.25, 0.75, None)
    del alone.candidates.actions[1], alone.success[1]
    assert alone.gap(first, 64) == 0  # all draws are the same


def test_what_the_gate_drops_is_no_lesson(models: ModelSet):
    chooser = bound(nlac(gate=True), troupe(), models).chooser
    groups = [probed(NO, 0.0, 1.0, 0.75), probed(YES, 0.5, 0.5, None)]
    for group, critique in zip(groups, (YES, NO), strict=True):
        assert group.candidates.refinement is not None
        group.candidates.refinement.last.critique = critique
    assert lesson_gains(groups, chooser) == [0.25]


def test_a_draw_counts_as_often_as_it_came():
    group = probed(NO, 0.0, 1.0, 0.5)
    group.candidates.actions[1].draws = 3
    assert group.mean == 3 / 4 and len(group.drawn) == 2 and group.refined_gain == 0.5


def test_the_lower_end_needs_two_values():
    assert low_end([]) == low_end([0.5]) == 0.0
    assert low_end([0.25, 0.75]) == pytest.approx(0.5 - 1.96 * 0.125**0.5 / 2**0.5)


@pytest.mark.parametrize("right", [True, False])
def test_the_ledger_of_a_critic_that_chooses_rightly_or_wrongly(models: ModelSet, right: bool):
    said = RIGHT if right else {JUMP: "Success.", GO: "Failure."}
    speakers, refined = walker([JUMP, GO], said), GO if right else JUMP
    speakers.lines["refine"] = lambda text, draw: refined
    plain = nlac({"probes": PROBES}, improvement="choice", candidates=2)
    algo = watching(plain, PATH, speakers, models)
    rooms = [place for place in places(*walks(walker(GO, RIGHT), 12)) if place.turn == 0]
    figures = algo.critic_monitor.discrimination(rooms)
    assert figures["ledger/turns"] == 12 and 0 < figures["ledger/faulty"] < 1
    assert figures["ledger/hits"] == figures["ledger/false_alarms"] == 1  # it says no to all
    assert figures["ledger/mended"] == right
    assert (figures["ledger/spoiled"] > 0) == (not right)  # where all draws are wrong, none is
    assert figures["ledger/lesson_share"] > 0
    assert (figures["ledger/lesson_gain"] > 0) == right
    assert (figures["ledger/lesson_gain_low"] > 0) == right
