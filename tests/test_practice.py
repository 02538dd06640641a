"""Inspection: fragments of an expert's trajectories and the agent's own try at each of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl_cli.algos.practice import (
    Fragment,
    Try,
    every_turn,
    fragment,
    fragments,
    match_metrics,
    practise,
    tidy,
)
from agentrl_cli.generators.hf import HFGenerator
from tests.sample_critics import Weights
from tests.sample_nlac import CHAT, SAMPLING, episode, troupe
from tests.sample_stepagent import OTHER, SHOWN, implicit, inverse, shown

USUAL = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@USUAL
@given(st.lists(st.text("abcxyz?", min_size=1, max_size=12), min_size=1, max_size=5, unique=True))
def test_a_trajectory_of_n_actions_has_n_fragments_each_a_prefix_of_the_next(actions: list[str]):
    demo = episode("any", [f"<{action}>" for action in actions], success=True)
    found = [fragment(place, CHAT, "turn") for place in every_turn([demo])]
    assert [one.place.turn for one in found] == list(range(len(actions)))
    states = [one.state for one in found]
    for state, later, one in zip(states, states[1:], found, strict=False):
        assert later[: len(state)] == state
        assert later[len(state) : len(state) + len(one.action)] == one.action
    for state, turn in zip(states, demo.turns, strict=True):
        assert turn.action not in CHAT.read(state)  # no practice prompt holds its answer


def test_practice_is_one_call_on_the_experts_states_and_asks_no_world(model_folder: Path):
    speakers, algo = troupe(), implicit()
    shown(algo, model_folder, [SHOWN, OTHER], speakers)
    algo.context.probe = pytest.fail  # type: ignore[assignment]
    tries = practise(algo.context, fragments(algo.context, "turn", 0))
    (call,) = speakers.calls
    assert call.model == "policy" and call.sampling == SAMPLING
    assert call.prompts == [e.state_ids(t) for e in (SHOWN, OTHER) for t in range(len(e.turns))]
    assert {t.text for t in tries} <= {"Is it a dog?", "Is it a cat?"}
    assert [t.fragment.text for t in tries][:3] == [turn.action for turn in SHOWN.turns]
    assert all(t.ids == CHAT.encode_action(t.text) for t in tries)


def test_tries_depend_on_seed_and_step_only(model_folder: Path):
    algo = implicit()
    models = shown(algo, model_folder, [SHOWN, OTHER])
    algo.context.generator = HFGenerator(Weights(models), max_batch=64, cache_tokens=5000)
    found = fragments(algo.context, "turn", 0)
    first, again = (practise(algo.context, found) for _ in range(2))
    assert [t.ids for t in first] == [t.ids for t in again]
    algo.context.step = 1
    assert [t.ids for t in practise(algo.context, found)] != [t.ids for t in first]


def whole(turn: int) -> Fragment:
    """A turn of SHOWN that is tried as a whole."""
    return fragment(every_turn([SHOWN])[turn], CHAT, "turn")


@pytest.mark.parametrize(
    ("own", "text", "last_line"),
    [
        ("Maybe.\nIs it red?", True, True),
        (" Maybe. \n\n  Is  it red?\n", True, True),
        ("Perhaps.\nIs it red?", False, True),
        ("Is it red?", False, True),
        ("Maybe.\nIs it Red?", False, False),
        ("Is it red?\nMaybe.", False, False),
        ("", False, False),
    ],
)
def test_what_counts_as_the_same_leaves_layout_out(own: str, text: bool, last_line: bool):
    attempt = Try(whole(1), [], own)
    assert (attempt.matches, attempt.last_line_matches) == (text, last_line)


@given(st.text())
def test_tidying_twice_changes_nothing_and_loses_no_letter(text: str):
    once = tidy(text)
    assert tidy(once) == once and once.split() == text.split()


def test_the_match_rate_is_a_share_of_what_was_practised():
    texts = ("Is it big?", "No.\nIs it red?", "Is it a dog?")
    found = match_metrics([Try(whole(i), [], text) for i, text in enumerate(texts)])
    assert found == {
        "stepagent/fragments": 3, "stepagent/match": 1 / 3, "stepagent/last_line_match": 2 / 3,
    }  # fmt: skip
    assert match_metrics([])["stepagent/match"] == 0


def test_the_last_line_is_tried_behind_the_experts_thought(model_folder: Path):
    speakers, algo = troupe(act="Is it old?"), implicit()
    shown(algo, model_folder, [SHOWN], speakers)
    first, second, _ = fragments(algo.context, "last_line", 0)
    assert (first.thought, first.given) == ("", [])  # it has none
    assert second.thought == "Maybe.\n" and second.text == "Is it red?"
    assert CHAT.read(second.given) == "Maybe.\n"
    assert second.state == SHOWN.state_ids(1) + second.given
    assert second.given + second.action == SHOWN.turns[1].action_ids
    assert "red" not in CHAT.read(second.state)
    attempt = practise(algo.context, [second])[0]
    assert speakers.calls[0].prompts == [second.state]
    assert not attempt.matches and replace(attempt, text="Is  it red?").matches


def test_a_thought_is_given_only_where_its_ids_stand_alone_and_something_follows():
    demo = episode("odd", ["Hm.\n \n", "Hm.\nIs it red?"], success=True)
    demo.turns[1].action_ids = [9, *demo.turns[1].action_ids]  # as another tokenizer would cut it
    for place in every_turn([demo]):
        assert fragment(place, CHAT, "last_line").given == []
        assert fragment(place, CHAT, "last_line").text == demo.turns[place.turn].action


def numbers(found: list[Fragment]) -> list[int]:
    return [one.place.turn for one in found]


def test_as_many_fragments_as_asked_for_are_drawn_none_twice_anew_in_every_update(
    model_folder: Path,
):
    algo = implicit()
    long = episode("long", [f"Is it {i}?" for i in range(30)], success=True)
    shown(algo, model_folder, [long])
    assert numbers(fragments(algo.context, "turn", 0)) == list(range(30))
    assert numbers(fragments(algo.context, "turn", 99)) == list(range(30))
    rows = []
    for step in range(4):
        algo.context.step = step
        some = numbers(fragments(algo.context, "turn", 5))
        assert some == numbers(fragments(algo.context, "turn", 5)) and len(set(some)) == 5
        rows.append(tuple(some))
    assert len(set(rows)) == 4


def test_a_state_without_room_for_an_action_is_not_practised(model_folder: Path):
    algo = implicit()
    shown(algo, model_folder, [SHOWN])
    assert numbers(fragments(algo.context, "turn", 0)) == [0, 1, 2]
    most = len(SHOWN.state_ids(1))
    algo.context.sampling = replace(SAMPLING, max_tokens=2048 - most)
    assert numbers(fragments(algo.context, "turn", 0)) == [0, 1]
    assert numbers(fragments(algo.context, "last_line", 0)) == [0]


def test_a_try_is_an_episode_of_one_turn_that_ends(model_folder: Path):
    algo = inverse()
    shown(algo, model_folder, [SHOWN])
    (one,) = practise(algo.context, fragments(algo.context, "turn", 0)[2:])
    made = one.as_episode()
    assert made.stop == "done" and made.state_ids(0) == SHOWN.state_ids(2)
    assert made.turns[0].action_ids == one.ids and made.task == SHOWN.task
