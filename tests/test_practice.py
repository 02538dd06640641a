"""Inspection: fragments of an expert's trajectories and the agent's own try at each of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl_cli.algos.practice import (
    Try,
    as_episode,
    draw,
    drawn_fragments,
    every_turn,
    fragments,
    match_metrics,
    practise,
    room,
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
    places = fragments([demo], 10_000)
    assert [place.turn for place in places] == list(range(len(actions)))
    states = [place.state for place in places]
    for state, later, place in zip(states, states[1:], places, strict=False):
        assert later[: len(state)] == state
        assert later[len(state) : len(state) + len(place.action)] == place.action
    for state, turn in zip(states, demo.turns, strict=True):
        assert turn.action not in CHAT.read(state)  # no practice prompt holds its answer


def test_practice_is_one_call_on_the_experts_states_and_asks_no_world(model_folder: Path):
    speakers, algo = troupe(), implicit()
    shown(algo, model_folder, [SHOWN, OTHER], speakers)
    algo.context.probe = pytest.fail  # type: ignore[assignment]
    tries = practise(algo.context, every_turn([SHOWN, OTHER]))
    (call,) = speakers.calls
    assert call.model == "policy" and call.sampling == SAMPLING
    assert call.prompts == [e.state_ids(t) for e in (SHOWN, OTHER) for t in range(len(e.turns))]
    assert {t.text for t in tries} <= {"Is it a dog?", "Is it a cat?"}
    assert [t.expert for t in tries][:3] == [turn.action for turn in SHOWN.turns]
    assert all(t.ids == CHAT.encode_action(t.text) for t in tries)


def test_tries_depend_on_seed_and_step_only(model_folder: Path):
    algo = implicit()
    models = shown(algo, model_folder, [SHOWN, OTHER])
    algo.context.generator = HFGenerator(Weights(models), max_batch=64, cache_tokens=5000)
    places = every_turn([SHOWN, OTHER])
    first, again = (practise(algo.context, places) for _ in range(2))
    assert [t.ids for t in first] == [t.ids for t in again]
    algo.context.step = 1
    assert [t.ids for t in practise(algo.context, places)] != [t.ids for t in first]


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
    attempt = Try(every_turn([SHOWN])[1], [], own)
    assert (attempt.matches("text"), attempt.matches("last_line")) == (text, last_line)


@given(st.text())
def test_tidying_twice_changes_nothing_and_loses_no_letter(text: str):
    once = tidy(text)
    assert tidy(once) == once and once.split() == text.split()


def test_the_match_rate_is_a_share_of_what_was_practised():
    places = every_turn([SHOWN])
    texts = ("Is it big?", "No.\nIs it red?", "Is it a dog?")
    found = match_metrics([Try(p, [], t) for p, t in zip(places, texts, strict=True)])
    assert found == {
        "stepagent/fragments": 3, "stepagent/match": 1 / 3, "stepagent/last_line_match": 2 / 3,
    }  # fmt: skip
    assert match_metrics([])["stepagent/match"] == 0


def test_as_many_fragments_as_asked_for_are_drawn_and_none_twice():
    places = every_turn([SHOWN, OTHER])
    some = draw(places, 3, seed=1)
    assert len({(p.episode.id, p.turn) for p in some}) == 3
    assert draw(places, 0, seed=1) == draw(places, 99, seed=1) == places
    orders = {tuple(places.index(p) for p in draw(places, 3, seed)) for seed in range(20)}
    assert len(orders) > 10


def test_every_update_draws_fragments_of_its_own(model_folder: Path):
    algo = implicit(fragments_per_update=2)
    long = episode("long", [f"Is it {i}?" for i in range(30)], success=True)
    shown(algo, model_folder, [long])
    turns = []
    for step in range(3):
        algo.context.step = step
        turns.append([place.turn for place in drawn_fragments(algo.context, 2)])
    assert len({tuple(row) for row in turns}) == 3


def test_a_state_without_room_for_an_action_is_not_practised(model_folder: Path):
    algo = implicit()
    shown(algo, model_folder, [SHOWN])
    assert room(algo.context) == 2048 - SAMPLING.max_tokens
    most = len(SHOWN.state_ids(1))
    assert [place.turn for place in fragments([SHOWN], most)] == [0, 1]
    algo.context.sampling = replace(SAMPLING, max_tokens=2048 - most)
    assert [place.turn for place in drawn_fragments(algo.context, 0)] == [0, 1]


def test_a_try_is_an_episode_of_one_turn_that_ends(model_folder: Path):
    algo = inverse()
    shown(algo, model_folder, [SHOWN])
    (one,) = practise(algo.context, every_turn([SHOWN])[2:])
    made = as_episode(one)
    assert made.stop == "done" and made.state_ids(0) == SHOWN.state_ids(2)
    assert made.turns[0].action_ids == one.ids and made.task == SHOWN.task
