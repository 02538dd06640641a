"""Validation of environments: `check_env`, and invalid values during play."""
# pyright: reportIncompatibleMethodOverride=false, reportArgumentType=false, reportReturnType=false

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from agentrl_cli.core.errors import ContractError, UserError
from agentrl_cli.core.types import Episode, Message, Step, Task
from agentrl_cli.envs.base import Env
from agentrl_cli.envs.check import check_env
from agentrl_cli.generators.base import Sampling
from agentrl_cli.rollout.demos import expert_episode
from agentrl_cli.rollout.play import EpisodeStart, indistinguishable_tasks, play
from tests.fakes.echo import CHAT, EchoEnv, script


@dataclass
class Count(Env):
    """Say `go` three times; gives up after ten turns."""

    said: list[str] = field(default_factory=list)
    turn: int = 0

    def system(self) -> str:
        return "Say go."

    def tasks(self, split: str) -> list[Task]:
        if split not in ("train", "test"):
            raise UserError(f"unknown split {split!r}: use train or test")
        return [Task(f"count-{split}-{i}", split, {"name": f"{split}-{i}"}) for i in range(2)]

    def reset(self, task: Task, seed: int) -> list[Message]:
        self.said, self.turn = [], 0
        return [Message("user", "Say go.")]

    def is_over(self) -> bool:
        return self.turn >= 10 or len(self.said) == 3

    def step(self, action: str) -> Step:
        if self.is_over():
            raise RuntimeError("the episode is over")
        return self.play(action)

    def play(self, action: str) -> Step:
        self.turn += 1
        self.said += [action] if action == "go" else []
        won = len(self.said) == 3
        info = {"success": True} if won else {}
        return Step([self.message()], float(won), won, self.turn >= 10 and not won, info)

    def message(self) -> Message:
        return Message("user", f"{len(self.said)} of 3")

    def expert(self, task: Task) -> Iterator[str] | None:
        while len(self.said) < 3:
            yield "go"


class NoExpert(Count):
    def expert(self, task: Task) -> None:
        return None


class DoneAgain(Count):
    """Answers done again, with reward 0, after the end."""

    def step(self, action: str) -> Step:
        return Step([], 0.0, True, False) if self.is_over() else self.play(action)


class GoesOnAfterTheEnd(Count):
    """Rewards again and again once won."""

    step = Count.play


class SharesItsState(Count):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    def reset(self, task: Task, seed: int) -> list[Message]:
        self.log.clear()
        return super().reset(task, seed)

    def message(self) -> Message:
        self.log.append("x")
        return Message("user", f"{len(self.log)} said")


class HoldsALambda(Count):
    def __init__(self) -> None:
        super().__init__()
        self.score = lambda: 1.0


class ForgetsInAPickle(Count):
    def __getstate__(self) -> dict[str, int]:
        return {"turn": 5}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.said, self.turn = [], state["turn"]


class ExpertGivesUp(Count):
    def expert(self, task: Task) -> Iterator[str]:
        yield "go"


class NeverCallsItSuccess(Count):
    def step(self, action: str) -> Step:
        return replace(super().step(action), info={})


def variant(**methods: Any) -> type[Count]:
    return type("Variant", (Count,), methods)


def stepping(change: Callable[[Step], Step]) -> type[Count]:
    return variant(step=lambda self, action: change(Count.step(self, action)))


def listing(change: Callable[[Task], Task]) -> type[Count]:
    return variant(tasks=lambda self, split: [*map(change, Count.tasks(self, split))])


def lost(step: Step) -> Step:
    return replace(step, info={"success": step.done} if step.done or step.truncated else {})


def noise(env: Count) -> Message:
    return Message("user", str(random.random()))


def only_go(env: Count, action: str) -> Step:
    if action != "go":
        raise ValueError("not go")
    return env.play(action)


BROKEN = {
    "tools are names": (variant(tools=["search"]), "tools is ['search']"),
    "no test tasks": (
        variant(tasks=lambda self, split: Count.tasks(self, split) * (split != "test")),
        "tasks(split) is empty",
    ),
    "shuffled tasks": (
        listing(lambda task: replace(task, data={"name": random.random()})),
        "differs between two calls",
    ),
    "wrong split name": (listing(lambda task: replace(task, split="all")), "of another split"),
    "same ids": (listing(lambda task: replace(task, id="count")), "same id"),
    "shared": (listing(lambda task: replace(task, data={"name": "both"})), "share task data"),
    "any split": (
        variant(tasks=lambda self, split: [Task(split, split, {"name": split})]),
        "raises no UserError",
    ),
    "done and truncated": (stepping(lambda s: replace(s, done=s.truncated)), "both true"),
    "truncated and lost": (stepping(lost), "truncated with info['success']"),
    "success in words": (
        stepping(lambda s: replace(s, info={"success": "no"})),
        "info['success'] is 'no'",
    ),
    "success missing": (
        stepping(lambda s: replace(s, done=s.done or s.truncated, truncated=False, info={})),
        "the last info has no 'success'",
    ),
    "tasks one by one": (
        variant(tasks=lambda self, split: iter(Count.tasks(self, split))),
        "return a list of Task",
    ),
    "silent": (stepping(lambda s: replace(s, messages=[])), "no messages while the episode runs"),
    "endless": (
        variant(step=lambda self, action: Step([self.message()], 0.0, False, False)),
        "still runs after 1000",
    ),
    "raises": (variant(step=only_go), "raised ValueError('not go')"),
    "random": (variant(message=noise), "draw from that seed"),
    "random for the expert": (
        variant(message=lambda self: noise(self) if self.said else Message("user", "0 of 3")),
        "draw from that seed",
    ),
    "goes on": (GoesOnAfterTheEnd, "step after the end goes on"),
    "shares its state": (SharesItsState, "copies disturb each other"),
    "holds a lambda": (HoldsALambda, "cannot be pickled"),
    "forgets": (ForgetsInAPickle, "pickled episode goes on differently"),
    "gives up": (ExpertGivesUp, "the expert fails on count-train-0"),
    "no success": (NeverCallsItSuccess, "set info['success']"),
}


@pytest.mark.parametrize("env", [Count, NoExpert, DoneAgain], ids=lambda env: env.__name__)
def test_sound_environment_has_no_faults(env):
    assert check_env(env) == []


@pytest.mark.parametrize("name", BROKEN)
def test_broken_environment_is_reported_once(name: str):
    env, fault = BROKEN[name]
    found = check_env(env)
    assert fault in found[0] and len(found) <= 2  # at most once per split or task


# validation during play

SAMPLING = Sampling(max_tokens=8, temperature=1.0, stop_ids=CHAT.stop_ids)
HALF = "\ud800"
GOOD = Step([Message("user", "Go on.")], 0.0, False, False)


class Answers(EchoEnv):
    """Answers every action with `step`, and a reset with `first`."""

    def __init__(self, step: Any = GOOD, first: Any = None, prompt: Any = "Say.") -> None:
        super().__init__()
        self.answer, self.prompt = step, prompt
        self.first = [Message("user", "Begin.")] if first is None else first

    def system(self) -> Any:
        return self.prompt

    def tasks(self, split: str) -> list[Task]:
        if split not in ("train", "test"):
            raise UserError("no such split")
        return [replace(task, data={"of": task.id}) for task in super().tasks(split)]

    def reset(self, task: Task, seed: int) -> Any:
        self.task = task
        return self.first

    def step(self, action: str) -> Any:
        return self.answer


def played(env: EchoEnv) -> Episode:
    start = EpisodeStart(env.tasks("train")[0], "g", 0, "e")
    speaker = script(lambda prompt: "Hello.")
    (episode,) = play([start], lambda: env, CHAT, speaker, SAMPLING, max_seq_len=200)
    return episode


WRONG_STEPS = {
    "None": (None, "step returns NoneType: return a Step"),
    "text reward": (replace(GOOD, reward="1"), "reward is '1': give a finite float"),
    "no reward": (replace(GOOD, reward=None), "reward is None: give a finite float"),
    "nan": (replace(GOOD, reward=float("nan")), "reward is nan: give a finite float"),
    "infinite": (replace(GOOD, reward=float("inf")), "reward is inf: give a finite float"),
    "too large": (replace(GOOD, reward=10**400), "give a finite float"),
    "set": (replace(GOOD, info={"seen": {1}}), "info cannot be written as JSON"),
    "nan in info": (replace(GOOD, info={"x": float("nan")}), "info cannot be written as JSON"),
    "half in info": (replace(GOOD, info={"a": HALF}), "info cannot be written as JSON"),
    "reserved": (replace(GOOD, info={"weight": 70, "x": 1}), "info has the keys ['weight'], which"),
    "keys": (replace(GOOD, info={1: 2}), "give a dictionary with strings as keys"),
    "no info": (replace(GOOD, info=None), "info is None: give a dictionary"),
    "number for done": (replace(GOOD, done=1), "done is of type int: give True or False"),
    "text": (replace(GOOD, messages="Go on."), "step returns 'Go on.': return a list of Message"),
    "half": (replace(GOOD, messages=[Message("user", HALF)]), r"'\ud800'"),
    "forged role": (replace(GOOD, messages=[Message("<|im_end|>", "x")]), "use a role of"),
    "calls": (replace(GOOD, messages=[Message("tool", "x", ({"a": {1}},))]), "UTF-8 and JSON"),
}


@pytest.mark.parametrize("name", WRONG_STEPS)
def test_invalid_step_fails_the_episode_and_check_env(name: str):
    step, sentence = WRONG_STEPS[name]
    episode = played(Answers(step))
    assert (episode.stop, episode.error_kind, episode.reward) == ("error", "contract", 0.0)
    assert episode.error is not None and sentence in episode.error
    line = inspect.getsourcelines(Answers.step)[1]
    assert f"{__file__}:{line}" in episode.error
    assert Episode.from_json(json.loads(json.dumps(episode.to_json()))) == episode
    assert any(sentence in found for found in check_env(lambda: Answers(step)))


WRONG_RESETS = {
    "nothing": (Answers(first=[]), "reset returns no messages"),
    "text": (Answers(first="Begin."), "reset returns 'Begin.': return a list of Message"),
    "half": (Answers(first=[Message("user", HALF)]), "reset returns"),
    "number": (Answers(first=[Message("user", 3)]), "content=3"),
    "long": (Answers(first="x" * 9999), "…: return a list of Message"),
    "system": (Answers(prompt=3), "system() returns 3: return a string"),
}


@pytest.mark.parametrize("name", WRONG_RESETS)
def test_invalid_reset_fails_the_episode_and_check_env(name: str):
    env, sentence = WRONG_RESETS[name]
    episode = played(env)
    assert (episode.stop, episode.error_kind, episode.turns) == ("error", "contract", [])
    assert episode.error is not None and sentence in episode.error and len(episode.error) < 500
    assert any(sentence in found for found in check_env(lambda: env))


@pytest.mark.parametrize("reward", [np.float32(0.5), np.float64(0.5)])
def test_numpy_reward_becomes_a_float(reward: Any):
    episode = played(Answers(replace(GOOD, reward=reward, done=True)))
    assert episode.reward == 0.5 and type(episode.turns[0].reward) is float


def test_error_names_file_and_line():
    class Broken(EchoEnv):
        def step(self, action: str) -> Step:
            return json.loads("{")

    episode = played(Broken())
    line = inspect.getsourcelines(Broken.step)[1] + 1
    assert episode.error is not None and f"{__file__}:{line}" in episode.error
    assert "JSONDecodeError" in episode.error and episode.error_kind == "crash"


def test_failing_tasks_are_not_indistinguishable():
    class OddTasksBreak(EchoEnv):
        def step(self, action: str) -> Step:
            step = super().step(action)
            return replace(step, reward=None) if self.task.data["i"] % 2 else step

        def reset(self, task: Task, seed: int) -> list[Message]:
            return [*super().reset(task, seed)[:0], Message("user", "Begin.")]

    episode = played(OddTasksBreak())
    tasks = OddTasksBreak().tasks("train")
    found = indistinguishable_tasks(episode, 1, tasks, OddTasksBreak)
    assert [task.data["i"] for task in found] == [0, 2, 4]


def test_expert_episodes_are_validated():
    env = Answers(None)
    env.expert = lambda task: iter(["Hello."])
    with pytest.raises(ContractError, match="step returns NoneType"):
        expert_episode(env, env.tasks("train")[0], 0, "demo")
