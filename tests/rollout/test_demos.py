"""Demonstrations: reading back, dialogues, and invalid or hostile lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl_cli.cli.environment import write_demos
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.envs.base import Env
from agentrl_cli.rollout.demos import (
    DemoReader,
    InvalidDemo,
    expert_episodes,
    read_demos,
    read_lines,
)
from tests.builders.demos import COIN, GOOD, SAID, SEEN, SYSTEM, twentyq
from tests.builders.nlac import CHAT


def row(*messages: dict[str, Any], **more: Any) -> str:
    return json.dumps({"messages": list(messages), **more})


def written(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "demos.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def read(
    file: Path, env: Env = COIN, *, skip_invalid: bool = False, room: int = 200
) -> list[Episode]:
    return read_demos(
        str(file), read_lines(file), DemoReader(env, CHAT, room), skip_invalid=skip_invalid
    )


def test_expert_file_is_read_back_with_ids(tmp_path: Path):
    out = tmp_path / "demos.jsonl"
    file, count = write_demos(["env=twentyq", "n=5", f"out={out}", "seed=4"])
    assert (file, count) == (out, 5)
    found = read(out, twentyq(), room=512)
    for episode, line in zip(found, out.read_text().splitlines(), strict=True):
        stored = Episode.from_json(json.loads(line))
        assert [t.action for t in episode.turns] == [t.action for t in stored.turns]
        assert episode.task == stored.task and episode.success
        assert all(t.reward == 0 and set(t.info) == {"success"} for t in episode.turns)
        state = episode.state_ids(len(episode.turns) - 1)
        text = CHAT.text_of(state)
        for turn in episode.turns:
            assert CHAT.decode(turn.action_ids) == turn.action
            assert turn.action_ids[-1] == CHAT.end_of_turn
        assert all(turn.action in text for turn in episode.turns[:-1])


def test_dialogue_equals_a_played_episode(tmp_path: Path):
    (episode,) = read(written(tmp_path, row(*GOOD, task="train-0")))
    assert episode.task == COIN.tasks("train")[0] and episode.success
    assert [turn.action for turn in episode.turns] == ["Is it  a dog?"] * 2
    assert [m.content for m in episode.turns[0].observation] == [
        "Say something.", "This is train-0.",
    ]  # fmt: skip
    assert [m.content for m in episode.final_observation] == ["Go on."]
    first = CHAT.start(episode.turns[0].observation)
    assert episode.state_ids(0) == first
    action = CHAT.encode_action("Is it  a dog?")
    later = first + action + CHAT.extend(episode.turns[1].observation, action[-1])
    assert episode.state_ids(1) == later


def test_missing_system_message_is_added(tmp_path: Path):
    lines = (row(*GOOD), row(*GOOD[1:]))
    first, second = read(written(tmp_path, *lines))
    assert first.state_ids(1) == second.state_ids(1)
    assert first.task.id == "line-000001"


BAD = {
    "{": "it is not JSON",
    "[" * 100_000: "it is not JSON",
    "[]": 'it has neither "messages" nor "turns"',
    row(SYSTEM, SEEN): "it has no action",
    row(): "it has no action",
    row(SYSTEM, SEEN, {"role": "assistant", "content": " \n"}): "it has no action in turn 1",
    row(SYSTEM, SEEN, {"role": "bot", "content": "x"}): "unknown role 'bot': there is system, user",
    row(SYSTEM, SEEN, {"role": "assistant", "content": None}): "a message of assistant has no text",
    row(SYSTEM, SEEN, {"role": "assistant", "content": "\ud800"}): "a message of assistant has no",
    row(SYSTEM, SEEN, {"role": ["x"], "content": "x"}): "unknown role ['x']",
    row(SYSTEM, SEEN, {**SAID, "tool_calls": [{"id": "1"}]}): "a message of assistant calls tools",
    row(SYSTEM, SEEN, SAID, SAID): "two actions follow each other",
    row({"role": "system", "content": "Play chess."}, SEEN, SAID): "its system message is that of",
    row(SYSTEM, SYSTEM, SEEN, SAID): "its system message is that of another environment",
    row(SYSTEM, SEEN, SAID, SYSTEM, SAID): "a message of system stands in observation 2",
    row(*GOOD, task="chess-1"): "its task 'chess-1' is of another environment",
    row(*GOOD, task="test-0"): "its task 'test-0' is of the test split",
    row(*GOOD, task="val-0"): "its task 'val-0' is of the val split",
    row(*GOOD, task=3): "its task 3 is of another environment",
    row(*GOOD, task=[]): "its task [] is of another environment",
    row(SYSTEM, SEEN, {"role": "assistant", "content": "x" * 900}): "action 1 ends at token 9",
    row("x"): "its messages are not a list",  # type: ignore[arg-type]
    json.dumps({"messages": 3}): "its messages are not a list",
    json.dumps({"turns": 3}): "it is not an episode",
    json.dumps({"turns": []}): "it is not an episode",
}
BAD[row(SAID, SEEN)] = "nothing was observed before its first action"


@pytest.mark.parametrize("line", BAD, ids=[text[:40] for text in BAD.values()])
def test_invalid_line_is_one_sentence_with_its_number(tmp_path: Path, line: str):
    file = written(tmp_path, row(*GOOD), line, row(*GOOD))
    with pytest.raises(UserError) as refused:
        read(file)
    assert refused.value.code == "invalid-demos" and "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"{file} line 2: {BAD[line]}")


def test_invalid_lines_are_skipped_only_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = written(tmp_path, "{", row(*GOOD), row(SEEN))
    with pytest.raises(UserError) as refused:
        read(file)
    assert [line.split(":")[0] for line in str(refused.value).splitlines()] == [
        f"{file} line 1", f"{file} line 3",
    ]  # fmt: skip
    assert len(read(file, skip_invalid=True)) == 1
    assert len(capsys.readouterr().err.splitlines()) == 2
    with pytest.raises(UserError) as refused:
        read(written(tmp_path, *["{"] * 25), skip_invalid=True)
    lines = str(refused.value).splitlines()
    assert len(lines) == 11 and lines[-1].startswith("15 ")


def test_blank_lines_are_skipped_and_counted(tmp_path: Path):
    found = read(written(tmp_path, row(*GOOD), "", "  ", row(*GOOD)))
    assert [episode.id for episode in found] == ["line-000001", "line-000004"]


@pytest.mark.parametrize("skip_invalid", [False, True])
@pytest.mark.parametrize("text", ["", "\n\n"])
def test_empty_file_is_refused(tmp_path: Path, text: str, skip_invalid: bool):
    (tmp_path / "demos.jsonl").write_text(text)
    with pytest.raises(UserError) as refused:
        read(tmp_path / "demos.jsonl", skip_invalid=skip_invalid)
    assert refused.value.code == "empty-demos"


def test_unreadable_file_is_refused(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"\xff\xfe\xff")
    for file in (Path("none.jsonl"), tmp_path / "x", tmp_path):
        with pytest.raises(UserError) as refused:
            read(file)
        assert refused.value.code == "unreadable-demos" and str(file) in str(refused.value)


def test_failed_or_foreign_episodes_are_refused(tmp_path: Path):
    (demo,) = expert_episodes(twentyq(), 1, seed=0)
    whole = demo.to_json()
    broken, elsewhere = {**whole, "error": "KeyError: 1"}, json.loads(json.dumps(whole))
    elsewhere["turns"][0]["observation"][0]["content"] = "Play chess."
    lines = [json.dumps(one) for one in (broken, elsewhere, {**whole, "seeds": 1})]
    with pytest.raises(UserError) as refused:
        read(written(tmp_path, *lines), twentyq(), room=512)
    reasons = [line.split(": ", 1)[1] for line in str(refused.value).splitlines()]
    assert "KeyError: 1" in reasons[0] and "system message" in reasons[1] and len(reasons) == 3
    with pytest.raises(UserError, match="is of another environment"):
        read(written(tmp_path, json.dumps(whole)))


def test_test_task_is_refused(tmp_path: Path):
    lines = [json.dumps(e.to_json()) for e in expert_episodes(twentyq(), 56, seed=0)]
    with pytest.raises(UserError, match="is of the test split"):
        read(written(tmp_path, *lines), twentyq(split_seed=1), room=512)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
keys = st.sampled_from(["messages", "turns", "role", "content", "task", "id", "error", "x"])


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(keys, values | st.lists(st.dictionaries(keys, values), max_size=3)))
def test_any_line_is_read_or_refused(found: dict[str, Any]):
    reader = DemoReader(COIN, CHAT, 200)
    try:
        assert reader.read(json.dumps(found), 1).turns
    except InvalidDemo as reason:
        assert str(reason)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_broken_episode_is_read_or_refused(data: st.DataObject):
    turn: dict[str, Any] = {
        "observation": [SYSTEM, SEEN], "action": "Hm?", "observation_ids": [], "action_ids": [],
        "logprobs": [], "info": {},
    }  # fmt: skip
    task = {"id": "train-1", "split": "train", "data": {}}
    whole: dict[str, Any] = {
        "id": "x", "task": task, "group": "x", "seed": 0, "turns": [turn], "closing": [],
    }  # fmt: skip
    where = data.draw(st.sampled_from([turn, task, whole]))
    where[data.draw(st.sampled_from(sorted(where)))] = data.draw(values)
    reader = DemoReader(COIN, CHAT, 200)
    try:
        assert reader.read(json.dumps(whole), 1).turns[0].action_ids
    except InvalidDemo as reason:
        assert str(reason)
