"""Environments in the shape of Gymnasium: play, contract, errors."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.envs import GymText, check_env
from tests.builders.command_line import agentrl, refused


def world(**changes: Any) -> GymText:
    settings: dict[str, Any] = {
        "entry": "tests.fakes.higher_lower:HigherLower", "options": {"limit": 4},
        "instruction": "Find it.",
        "episodes": 20, "test_episodes": 5, "success_reward": 1.0,
    }  # fmt: skip
    return GymText(**(settings | changes))


def test_a_game_is_played_to_its_end_by_halving():
    for task in world().tasks("test"):
        env = world()
        assert env.reset(task, 0)[0].content == "A number from 1 to 8?"
        low, high = 1, 8
        while True:
            guess = (low + high) // 2
            step = env.step(str(guess))
            if step.done:
                break
            low, high = (
                (guess + 1, high) if "Higher" in step.messages[0].content else (low, guess - 1)
            )
        assert step.info["success"] and step.reward == 1.0 and "model" not in step.info
        assert step.messages[0].content == "Right." and not step.truncated


def test_limit_of_the_environment_is_a_loss():
    env = world(options={"limit": 2})
    env.reset(env.tasks("train")[0], 0)
    last = [env.step("none") for _ in range(2)][-1]
    assert last.done and not last.truncated and last.info["success"] is False
    with pytest.raises(RuntimeError):
        env.step("1")


def test_it_keeps_the_contract():
    env = world()
    assert check_env(lambda: copy.copy(env), tasks=3) == []
    train, test = ({t.data["seed"] for t in env.tasks(split)} for split in ("train", "test"))
    assert len(train) == 20 and len(test) == 5 and not train & test


@pytest.mark.parametrize(("entry", "code"), [
    (None, "invalid-entry"), ("gem", "invalid-entry"), ("nowhere.at_all:make", "import"),
    ("json:make", "import"),
])  # fmt: skip
def test_invalid_entry_is_refused(entry: str | None, code: str):
    with pytest.raises(UserError) as error:
        world(entry=entry).tasks("train")
    assert error.value.code == code and str(entry) in str(error.value)


@pytest.mark.parametrize(("name", "package"), [
    ("textarena", "textarena"), ("gem", "gem"), ("verifiers", "verifiers.legacy"),
])  # fmt: skip
def test_missing_package_is_refused_before_writing(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)  # as where the extra is not installed
    named = ["env.name=other"] if name == "verifiers" else []
    done = agentrl("train", f"env={name}", *named, "algo=grpo", "model.weights=null", "steps=1")
    refused(done, f"env={name} needs ")
    assert f"pip install 'agentrl-cli[{name}]'" in done.stderr
    assert not list(tmp_path.rglob("*.*"))


def test_unknown_options_are_refused():
    with pytest.raises(UserError, match="size") as error:
        world(options={"size": 3}).tasks("train")
    assert error.value.code == "invalid-options"
