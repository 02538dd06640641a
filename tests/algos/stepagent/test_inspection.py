"""Inspection: fragments of an expert's trajectories and the agent's own try at each of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl_cli.algos.stepagent import (
    Attempt,
    Fragment,
    StepAgentInverse,
    all_turns,
    attempt_fragments,
    fragment_at,
    fragments,
    labelled_actions,
    match_metrics,
)
from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.rollout.demos import expert_episodes
from tests.builders.nlac import CHAT, SAMPLING, episode, troupe
from tests.builders.stepagent import OTHER, SHOWN, implicit, inverse, shown

USUAL = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@USUAL
@given(st.lists(st.text("abcxyz?", min_size=1, max_size=12), min_size=1, max_size=5, unique=True))
def test_trajectory_has_one_fragment_per_action(actions: list[str]):
    demo = episode("any", [f"<{action}>" for action in actions], success=True)
    found = [fragment_at(place, CHAT, "turn") for place in all_turns([demo])]
    assert [one.turn.turn for one in found] == list(range(len(actions)))
    states = [one.state_ids for one in found]
    for state, later, one in zip(states, states[1:], found, strict=False):
        assert later[: len(state)] == state
        assert later[len(state) : len(state) + len(one.expert_ids)] == one.expert_ids
    for state, turn in zip(states, demo.turns, strict=True):
        assert turn.action not in CHAT.text_of(state)  # no practice prompt holds its answer


def test_inspection_is_one_generator_call(model_folder: Path):
    speakers, algo = troupe(), implicit()
    shown(algo, model_folder, [SHOWN, OTHER], speakers)
    algo.context.probe = pytest.fail  # type: ignore[assignment]
    tries = attempt_fragments(algo.context, fragments(algo.context, "turn", 0))
    (call,) = speakers.calls
    assert call.model == "policy" and call.sampling == SAMPLING
    assert call.prompts == [e.state_ids(t) for e in (SHOWN, OTHER) for t in range(len(e.turns))]
    assert {t.action for t in tries} <= {"Is it a dog?", "Is it a cat?"}
    assert [t.fragment.expert_action for t in tries][:3] == [turn.action for turn in SHOWN.turns]
    assert all(t.action_ids == CHAT.encode_action(t.action) for t in tries)


def whole(turn: int) -> Fragment:
    """A turn of SHOWN that is tried as a whole."""
    return fragment_at(all_turns([SHOWN])[turn], CHAT, "turn")


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
def test_match_ignores_layout(own: str, text: bool, last_line: bool):
    attempt = Attempt(whole(1), [], own)
    assert (attempt.matches(), attempt.matches(last_line=True)) == (text, last_line)


def test_match_metrics_by_hand():
    texts = ("Is it big?", "No.\nIs it red?", "Is it a dog?")
    found = match_metrics([Attempt(whole(i), [], text) for i, text in enumerate(texts)])
    assert found == {
        "stepagent/expert_states": 3, "stepagent/match": 1 / 3, "stepagent/last_line_match": 2 / 3,
    }  # fmt: skip
    assert match_metrics([])["stepagent/match"] == 0


def test_last_line_follows_the_thought(model_folder: Path):
    speakers, algo = troupe(act="Is it old?"), implicit()
    shown(algo, model_folder, [SHOWN], speakers)
    first, second, _ = fragments(algo.context, "last_line", 0)
    assert first.thought == "" and first.state_ids == SHOWN.state_ids(0)
    assert second.thought == "Maybe.\n" and second.expert_action == "Is it red?"
    assert second.state_ids[: len(SHOWN.state_ids(1))] == SHOWN.state_ids(1)
    thought_ids = second.state_ids[len(SHOWN.state_ids(1)) :]
    assert CHAT.text_of(thought_ids) == "Maybe.\n"
    assert thought_ids + second.expert_ids == SHOWN.turns[1].action_ids
    assert "red" not in CHAT.text_of(second.state_ids)
    attempt = attempt_fragments(algo.context, [second])[0]
    assert speakers.calls[0].prompts == [second.state_ids]
    assert not attempt.matches() and replace(attempt, action="Is  it red?").matches()


def test_thought_must_tokenize_alone():
    demo = episode("odd", ["Hm.\n \n", "Hm.\nIs it red?"], success=True)
    demo.turns[1].action_ids = [9, *demo.turns[1].action_ids]  # as another tokenizer would cut it
    for place in all_turns([demo]):
        assert fragment_at(place, CHAT, "last_line").state_ids == place.state_ids
        assert fragment_at(place, CHAT, "last_line").expert_action == demo.turns[place.turn].action


def numbers(found: list[Fragment]) -> list[int]:
    return [one.turn.turn for one in found]


def test_fragments_are_drawn_anew(model_folder: Path):
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


def test_state_without_room_is_skipped(model_folder: Path):
    algo = implicit()
    shown(algo, model_folder, [SHOWN])
    assert numbers(fragments(algo.context, "turn", 0)) == [0, 1, 2]
    most = len(SHOWN.state_ids(1))
    algo.context.sampling = replace(SAMPLING, max_tokens=2048 - most)
    assert numbers(fragments(algo.context, "turn", 0)) == [0, 1]
    assert numbers(fragments(algo.context, "last_line", 0)) == [0]


# replies that the world cuts into turns

REPLY = "3+3=6\n\n6+1=7\n\n\\boxed{7}"


def thinking(model_folder: Path, reply: str) -> StepAgentInverse:
    """Return the algorithm and a model that always replies `reply`, on env=arithmetic."""
    env = build(check(compose(["env=arithmetic", "env.problems=2", "env.test_problems=2"])).env)
    demos = expert_episodes(env, 4, 0)
    for demo in demos:
        CHAT.encode_turns(demo.turns)
    algo = inverse()
    shown(algo, model_folder, demos, troupe(act=reply))
    algo.context.turn_delimiter = env.turn_delimiter
    return algo


def test_sample_is_cut_at_the_delimiter(model_folder: Path):
    algo = thinking(model_folder, REPLY)
    found = fragments(algo.context, "turn", 0)
    assert len(found) > 8 and any(len(one.turn.episode.turns) > 2 for one in found)
    for one in attempt_fragments(algo.context, found):
        assert one.action == "3+3=6\n\n" and one.action_ids == CHAT.encode_action(one.action)[:-1]


def test_unfinished_reply_is_not_closed(model_folder: Path):
    algo = thinking(model_folder, REPLY)
    for one in fragments(algo.context, "turn", 0):
        (sample,) = labelled_actions([(one.turn.state_ids, one.turn.action)], 0.0, algo.context)
        assert sample.ids == one.state_ids + one.expert_ids
        assert (sample.ids[-1] == CHAT.end_of_turn) == (not one.expert_action.endswith("\n\n"))
