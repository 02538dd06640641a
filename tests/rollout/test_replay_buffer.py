"""The replay buffer: priorities computed by hand, capacity, the file and its state."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Message, Task, Turn
from agentrl_cli.rollout.replay_buffer import ReplayBuffer, TurnKey, read_episodes


def episode(name, turns=2, error=None):
    """An episode with `turns` turns and awkward text."""
    rows = [
        Turn([Message("user", "é\u2028\n")], "yes", [1, 2], [3, 4], [-0.1, -1 / 3], reward=float(i))
        for i in range(turns)
    ]
    return Episode(name, Task("t", "train", {}), "g", 7, rows, error=error)


def filled(path=None, capacity=10, names="abc", priorities=None):
    buffer = ReplayBuffer(path, capacity)
    buffer.add([episode(name) for name in names])
    if priorities:
        buffer.set_priorities(keys(buffer), priorities)
    return buffer


def keys(buffer):
    return [TurnKey(e.id, i) for e in buffer.episodes() for i in range(len(e.turns))]


def test_capacity_drops_the_oldest_and_skips_failed():
    buffer = filled(capacity=2)
    buffer.add([episode("d", turns=3), episode("x", error="boom"), episode("y", turns=0)])
    assert [e.id for e in buffer.episodes()] == ["c", "d"]
    assert (len(buffer), buffer.turns) == (2, 5)
    with pytest.raises(KeyError):
        buffer.episode(TurnKey("a", 0))
    with pytest.raises(ValueError, match="'d'"):
        buffer.add([episode("d")])


def test_new_turns_get_the_highest_stored_priority():
    buffer = filled(names="a")
    assert buffer.priority(TurnKey("a", 0)) == 1.0
    buffer.set_priorities(keys(buffer), [0.25, 3.0])
    buffer.add([episode("b")])
    assert [buffer.priority(key) for key in keys(buffer)] == [0.25, 3.0, 3.0, 3.0]
    buffer.set_priorities(keys(buffer), [0.25, 0.5, 0.125, 0.5])
    buffer.add([episode("c")])
    assert buffer.priority(TurnKey("c", 1)) == 0.5


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_draw_is_proportional_to_priority_to_the_exponent(exponent):
    priorities = [1.0, 2.0, 4.0, 9.0]
    buffer = filled(names="ab", priorities=priorities)
    counts = Counter(buffer.sample_turns(1, seed, exponent)[0] for seed in range(8000))
    total = sum(p**exponent for p in priorities)
    for key, priority in zip(keys(buffer), priorities, strict=True):
        # three standard deviations of a share of 8000 draws are at most 0.017
        assert counts[key] / 8000 == pytest.approx(priority**exponent / total, abs=0.017)


def test_draws_without_replacement_follow_the_sequential_law():
    priorities = [1.0, 2.0, 4.0, 9.0]
    buffer = filled(names="ab", priorities=priorities)
    weights = dict(zip(keys(buffer), priorities, strict=True))
    total = sum(priorities)
    counts = Counter(tuple(buffer.sample_turns(2, seed, 1.0)) for seed in range(8000))
    for first, second in itertools.permutations(weights, 2):
        p = weights[first] / total * weights[second] / (total - weights[first])
        assert counts[first, second] / 8000 == pytest.approx(p, abs=0.017)


def test_turns_repeat_only_if_there_are_too_few():
    buffer = filled()
    assert sorted(buffer.sample_turns(6, 0, 1.0)) == keys(buffer)
    assert buffer.sample_turns(4, 3, 0.6) == filled().sample_turns(4, 3, 0.6)
    drawn = filled(names="a").sample_turns(50, 0, 1.0)
    assert len(drawn) == 50 and set(drawn) == {TurnKey("a", 0), TurnKey("a", 1)}


def test_zero_priority_is_drawn_last():
    buffer = filled(names="a", priorities=[0.0, 1.0])
    assert {buffer.sample_turns(1, seed, 1.0)[0].turn for seed in range(50)} == {1}
    assert {buffer.sample_turns(1, seed, 0.0)[0].turn for seed in range(50)} == {0, 1}
    buffer.set_priorities(keys(buffer), [0.0, 0.0])
    assert {buffer.sample_turns(1, seed, 1.0)[0].turn for seed in range(50)} == {0, 1}


def test_episodes_are_drawn_uniformly_without_replacement():
    buffer = filled(names="abcd")
    drawn = [tuple(e.id for e in buffer.sample_episodes(2, seed)) for seed in range(400)]
    assert all(len(set(names)) == 2 for names in drawn)
    counts = Counter(name for names in drawn for name in names)
    assert all(160 < counts[name] < 240 for name in "abcd")  # 200, give or take four deviations
    assert sorted(e.id for e in buffer.sample_episodes(9, 0)) == list("abcd")
    assert drawn[7] == tuple(e.id for e in buffer.sample_episodes(2, 7))


def test_invalid_calls_raise():
    for draw in (
        lambda: ReplayBuffer(None, 1).sample_turns(1, 0, 1.0),
        lambda: ReplayBuffer(None, 1).sample_episodes(1, 0),
        lambda: filled(names="a", priorities=[1.0, -1.0]),
        lambda: filled(names="a", priorities=[1.0, float("nan")]),
        lambda: filled(names="a", priorities=[1.0, float("inf")]),
    ):
        with pytest.raises(ValueError, match=r"empty|priority"):
            draw()
    with pytest.raises(UserError, match="0"):
        ReplayBuffer(None, 0)


@pytest.mark.parametrize("in_file", [True, False])
def test_state_restores_episodes_and_priorities(tmp_path, in_file):
    path = tmp_path / "buffer.jsonl" if in_file else None
    buffer = filled(path, capacity=3, names="abcd")
    buffer.set_priorities([TurnKey("c", 1)], [0.1])
    state = json.loads(json.dumps(buffer.state()))
    buffer.add([episode("late")])
    fresh = ReplayBuffer(path, 3)
    fresh.load(state)
    assert [e.id for e in fresh.episodes()] == ["b", "c", "d"]
    assert fresh.episodes()[0] == episode("b")
    assert json.loads(json.dumps(fresh.state())) == state
    fresh.add([episode("late")])
    assert fresh.state() == buffer.state()
    assert fresh.sample_turns(3, 1, 1.0) == buffer.sample_turns(3, 1, 1.0)


def test_load_cuts_off_later_lines(tmp_path):
    path = tmp_path / "buffer.jsonl"
    empty = ReplayBuffer(path, 10).state()
    buffer = filled(path)
    state, before = buffer.state(), path.read_bytes()
    buffer.add([episode("late")])
    with path.open("ab") as file:
        file.write(b'{"half a li')
    assert [e.id for e in read_episodes(path, 2)] == ["c", "late"]
    ReplayBuffer(path, 10).load(state)
    assert path.read_bytes() == before
    ReplayBuffer(path, 10).load(empty)
    assert path.read_bytes() == b""
    with pytest.raises(UserError, match=r"0 lines .* 3"):
        ReplayBuffer(path, 10).load(state)


@pytest.mark.parametrize("line", ["{", "[]", '{"id": 1}', "null", "[" * 100_000])
def test_unreadable_line_is_named(tmp_path, line):
    path = tmp_path / "buffer.jsonl"
    path.write_text(f"{json.dumps(episode('a').to_json())}\n{line}\n")
    state = {"priorities": [[1, 1], [1, 1]], "lines": 2}
    for read in (lambda: ReplayBuffer(path, 10).load(state), lambda: read_episodes(path, 10)):
        with pytest.raises(UserError, match=r"buffer\.jsonl line 2") as refused:
            read()
        assert refused.value.code == "invalid-episode"


@pytest.mark.parametrize("row", [[1.0], [1.0, -1.0], [1.0, float("nan")], [1.0, "high"], 5])
def test_invalid_stored_priorities_are_refused(tmp_path, row):
    path = tmp_path / "buffer.jsonl"
    state = filled(path, names="a").state()
    with pytest.raises((ValueError, TypeError)):
        ReplayBuffer(path, 10).load({**state, "priorities": [row]})
