"""Games in the shape of Gymnasium, of textarena, gem-llm and verifiers: a scripted agent plays each
to its end, it keeps the contract, and errors of users are refused."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from agentrl_cli.config.compose import build, compose_checked
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.event_loop import wait_for
from agentrl_cli.core.types import Step, Task
from agentrl_cli.envs import Env, check_env
from tests.builders.command_line import agentrl, refused

NUMBERS = "env.name=tests.fakes.verifiers_numbers"
ENTRY = "env.entry=tests.fakes.higher_lower:HigherLower"
PLAYABLE = {  # the package, overrides, the form of an action, the largest number
    "textarena": ("textarena", [], "I think [{}].", 20),
    "gem": ("gem", [], "I think \\boxed{{{}}}.", 20),
    "verifiers": ("verifiers", [NUMBERS, "env.test_tasks=2"], "{}", 8),
    "gym_text": ("pytest", [ENTRY, "env.options={limit: 4}"], "{}", 8),
}
GAMES = [
    pytest.param(name, marks=[] if name == "gym_text" else pytest.mark.extras) for name in PLAYABLE
]


def world(name: str, *overrides: str) -> Env:
    package, needed, _, _ = PLAYABLE[name]
    pytest.importorskip(package, reason=f"needs the extra '{name}'")
    return build(compose_checked([f"env={name}", *needed, *overrides]).env)


def halved(env: Env, task: Task, form: str, largest: int) -> Iterator[Step]:
    """The steps of an agent that guesses the middle of what the answers leave open."""
    env.reset(task, 0)
    low, high = 1, largest
    while True:
        guess = (low + high) // 2
        step = env.step(form.format(guess))
        yield step
        if step.done:
            return
        is_higher = re.search("higher", step.messages[-1].content, re.IGNORECASE)
        low, high = (guess + 1, high) if is_higher else (low, guess - 1)


@pytest.mark.parametrize("name", GAMES)
def test_a_number_is_found_by_halving(name: str):
    env = world(name)
    _, _, form, largest = PLAYABLE[name]
    for task in env.tasks("test")[:3]:
        steps = list(halved(copy.copy(env), task, form, largest))
        assert steps[-1].info["success"] and len(steps) <= 5
        assert sum(step.reward for step in steps) == 1.0
        assert not any("success" in step.info for step in steps[:-1])
        assert json.dumps(steps[-1].info)


@pytest.mark.parametrize("name", GAMES)
def test_it_keeps_the_contract(name: str):
    env = world(name)
    assert check_env(lambda: copy.copy(env)) == []


@pytest.mark.extras
@pytest.mark.parametrize("name", ["textarena", "gem"])
def test_a_seed_decides_a_game_whatever_else_is_drawn(name: str):
    env = world(name)
    _, _, form, largest = PLAYABLE[name]
    tasks, lengths = env.tasks("train")[:8], []
    for other in (1, 2):
        random.seed(other)
        drawn = random.getstate()
        lengths.append([len(list(halved(copy.copy(env), t, form, largest))) for t in tasks])
        assert random.getstate() == drawn  # nor does a game disturb what else is drawn
    assert lengths[0] == lengths[1] and len(set(lengths[0])) > 1


@pytest.mark.extras
def test_a_task_of_verifiers_own_is_played_and_scored():
    pytest.importorskip("reasoning_gym", reason="needs the extra 'reasoning-gym'")
    env = world("verifiers", "env.options={gym: chain_sum}")
    assert len(env.tasks("train")) == 6 and len(env.tasks("test")) == 3
    task = env.tasks("test")[0]
    (asked,) = env.reset(task, 0)
    terms = asked.content.partition(":")[2].replace("=", "")
    numbers = re.findall(r"([+-]?)\s*(\d+)", terms)
    right = sum(int(sign + number) for sign, number in numbers)
    step = env.step(f"<answer>{right}</answer>")
    assert step.done and step.reward == 1.0 and step.info["success"]
    env.reset(task, 0)
    assert not env.step(f"<answer>{right + 1}</answer>").info["success"]


@pytest.mark.extras
def test_episodes_share_an_event_loop_with_the_rubric():
    env = world("verifiers", "env.options={shared: true}")
    for task in env.tasks("train")[:3]:
        env.reset(task, 0)
        while not env.step("1").done:  # another loop raises ConnectionError
            pass


@pytest.mark.extras
def test_blocking_reward_function_stops_nothing_else():
    env, ended = world("verifiers", "env.options={blocks: true}"), Event()
    env.reset(env.tasks("train")[0], 0)
    thread = Thread(target=lambda: (env.step("1"), ended.set()))
    thread.start()
    for loop in ("calls", "verifiers"):
        wait_for(asyncio.sleep(0.01), 0.5, loop=loop)
    assert not ended.is_set()
    thread.join()


@pytest.mark.extras
def test_sum_of_weighted_rewards_is_a_success():
    env = world("verifiers", "env.options={weights: [0.7, 0.2, 0.1]}")
    env.reset(env.tasks("train")[0], 0)
    step = env.step("1")
    assert step.reward < 1.0 and step.info["success"]


@pytest.mark.extras
def test_error_of_a_reward_function_fails_the_episode():
    env = world("verifiers", "env.options={judge: true}")
    env.reset(env.tasks("train")[0], 0)
    with pytest.raises(ConnectionError, match="the judge is down"):
        env.step("1")


@pytest.mark.extras
def test_rows_to_evaluate_on_are_the_test_split_and_ctrl_c_stays_as_it_was():
    before = signal.getsignal(signal.SIGINT)
    env = world("verifiers", "env.options={evaluated: true}")
    assert [len(env.tasks(split)) for split in ("train", "test")] == [8, 3]
    assert signal.getsignal(signal.SIGINT) is before and env.system() == "Find it."


@pytest.mark.extras
@pytest.mark.parametrize(("name", "override", "code", "offender"), [
    ("textarena", "env.options.name=Nim-v9", "unknown-game", "Nim-v9"),
    ("textarena", "env.options.name=TicTacToe-v0", "several-players", "number"),
    ("gem", "env.options.name=game:Nim", "unknown-game", "game:Nim"),
    ("gem", "env.options.name=code:CodeContest", "not-a-game", "code:CodeContest"),
    ("verifiers", "env.options={tool: true}", "not-text", "verifiers_numbers"),
    ("verifiers", "env.options={size: 3}", "unknown-environment", "verifiers_numbers"),
    ("verifiers", "env.name=nowhere", "unknown-environment", "nowhere"),
    ("verifiers", "env.test_tasks=8", "too-few-rows", "8"),
])  # fmt: skip
def test_unplayable_environments_are_refused(name: str, override: str, code: str, offender: str):
    with pytest.raises(UserError) as refusal:
        world(name, override).tasks("train")
    assert refusal.value.code == code and offender in str(refusal.value)


@pytest.mark.parametrize(("override", "code", "offender"), [
    ("env.entry=null", "invalid-entry", "None"), ("env.entry=gem", "invalid-entry", "gem"),
    ("env.entry='nowhere.at_all:make'", "import", "nowhere"),
    ("env.entry='json:make'", "import", "json"),
    ("env.options={size: 3}", "invalid-options", "size"),
])  # fmt: skip
def test_invalid_factory_is_refused(override: str, code: str, offender: str):
    with pytest.raises(UserError) as error:
        world("gym_text", override).tasks("train")
    assert error.value.code == code and offender in str(error.value)


def test_limit_of_the_environment_is_a_loss():
    env = world("gym_text", "env.options={limit: 2}")
    env.reset(env.tasks("train")[0], 0)
    last = [env.step("none") for _ in range(2)][-1]
    assert last.done and not last.truncated and last.info["success"] is False
    assert "model" not in last.info
    with pytest.raises(RuntimeError):
        env.step("1")


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


class Talkative:
    """A game whose info has keys that agentrl writes."""

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        return "Go.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "Done.", 1.0, False, False, {"value": 3, "success": 0, "score": 2}


def test_reserved_keys_of_another_library_are_left_out():
    env = build(compose_checked(["env=gym_text", f"env.entry={__name__}:Talkative"]).env)
    env.reset(env.tasks("train")[0], 0)
    assert env.step("x").info == {"score": 2}
