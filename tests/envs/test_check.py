"""check_env: silent about a sound environment, and one telling message for each broken one."""
# pyright: reportIncompatibleMethodOverride=false, reportArgumentType=false, reportReturnType=false

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Message, Step, Task
from agentrl_cli.envs.base import Env
from agentrl_cli.envs.check import check_env
from agentrl_cli.envs.twentyq.env import TwentyQ


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

    def step(self, action: str) -> Step:
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


class Sound(Count):
    def step(self, action: str) -> Step:
        if self.turn >= 10 or len(self.said) == 3:
            raise RuntimeError("the episode is over")
        return super().step(action)


class NoExpert(Sound):
    def expert(self, task: Task) -> None:
        return None


class DoneAgain(Count):
    """Answers done again, with reward 0, after the end."""

    def step(self, action: str) -> Step:
        if self.turn >= 10 or len(self.said) == 3:
            return Step([], 0.0, True, False)
        return super().step(action)


def variant(name: str, **methods: Any) -> type[Count]:
    """A sound environment with some methods replaced."""
    return type(name, (Sound,), methods)


def stepping(name: str, change: Callable[[Step], Any]) -> type[Count]:
    """A sound environment with changed steps."""
    return variant(name, step=lambda self, action: change(Sound.step(self, action)))


def listing(name: str, change: Callable[[Task], Task]) -> type[Count]:
    """A sound environment with changed tasks."""
    return variant(name, tasks=lambda self, split: [*map(change, Sound.tasks(self, split))])


def lost(step: Step) -> Step:
    return replace(step, info={"success": step.done} if step.done or step.truncated else {})


def noise(env: Count) -> Message:
    return Message("user", str(random.random()))


SystemIsNone = variant("SystemIsNone", system=lambda self: None)
ToolsAreNames = variant("ToolsAreNames", tools=["search"])
NoTestTasks = variant(
    "NoTestTasks", tasks=lambda self, split: [] if split == "test" else Sound.tasks(self, split)
)
WrongSplitName = listing("WrongSplitName", lambda task: replace(task, split="all"))
SameIds = listing("SameIds", lambda task: replace(task, id="count"))
SharedTasks = listing("SharedTasks", lambda task: replace(task, data={"name": "both"}))
AnySplit = variant("AnySplit", tasks=lambda self, split: [Task(split, split, {"name": split})])
ResetReturnsText = variant("ResetReturnsText", reset=lambda self, task, seed: "Say go.")
RewardIsNan = stepping("RewardIsNan", lambda step: replace(step, reward=float("nan")))
DoneAndTruncated = stepping("DoneAndTruncated", lambda s: replace(s, done=s.truncated))
TruncatedAndLost = stepping("TruncatedAndLost", lost)
SilentStep = stepping("SilentStep", lambda step: replace(step, messages=[]))
StepIsTuple = stepping("StepIsTuple", lambda step: ("", step.reward, step.truncated))
Random = variant("Random", message=noise)
RandomForTheExpert = variant(
    "RandomForTheExpert",
    message=lambda self: noise(self) if self.said else Message("user", "0 of 3"),
)


class ShuffledTasks(Sound):
    def tasks(self, split: str) -> list[Task]:
        super().tasks(split)
        names = [f"{split}-{random.random()}" for _ in range(3)]
        return [Task(name, split, {"name": name}) for name in names]


class Endless(Count):
    def step(self, action: str) -> Step:
        return Step([self.message()], 0.0, False, False)


class RaisesForNonsense(Sound):
    def step(self, action: str) -> Step:
        if action != "go":
            raise ValueError("not go")
        return super().step(action)


class GoesOnAfterTheEnd(Count):
    """Rewards again and again once won."""


class SharesItsState(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    def reset(self, task: Task, seed: int) -> list[Message]:
        self.log.clear()
        return super().reset(task, seed)

    def message(self) -> Message:
        self.log.append("x")
        return Message("user", f"{len(self.log)} said")


class HoldsALambda(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.score = lambda: 1.0


class ForgetsInAPickle(Sound):
    def __getstate__(self) -> dict[str, int]:
        return {"turn": 5}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.said, self.turn = [], state["turn"]


class ExpertGivesUp(Sound):
    def expert(self, task: Task) -> Iterator[str]:
        yield "go"


class NeverCallsItSuccess(Sound):
    def step(self, action: str) -> Step:
        step = super().step(action)
        return Step(step.messages, step.reward, step.done, step.truncated)


BROKEN = {
    SystemIsNone: "system() returns None",
    ToolsAreNames: "tools is ['search']",
    NoTestTasks: "tasks(split) is empty",
    ShuffledTasks: "differs between two calls",
    WrongSplitName: "of another split",
    SameIds: "same id",
    SharedTasks: "share task data",
    AnySplit: "raises no UserError",
    ResetReturnsText: "reset returns 'Say go.'",
    RewardIsNan: "reward is nan",
    DoneAndTruncated: "both true",
    TruncatedAndLost: "truncated with info['success']",
    SilentStep: "no messages while the episode runs",
    StepIsTuple: "step returns tuple",
    Endless: "still runs after 1000",
    RaisesForNonsense: "raised ValueError('not go')",
    Random: "draw from that seed",
    RandomForTheExpert: "draw from that seed",
    GoesOnAfterTheEnd: "step after the end goes on",
    SharesItsState: "copies disturb each other",
    HoldsALambda: "cannot be pickled",
    ForgetsInAPickle: "pickled episode goes on differently",
    ExpertGivesUp: "the expert fails on count-train-0",
    NeverCallsItSuccess: "set info['success']",
}


@pytest.mark.parametrize("env", [Sound, NoExpert, DoneAgain], ids=lambda env: env.__name__)
def test_a_sound_environment_is_not_blamed(env):
    assert check_env(env) == []


@pytest.mark.parametrize("env", BROKEN, ids=lambda env: env.__name__)
def test_a_broken_environment_is_named_by_its_message(env):
    found = check_env(env)
    assert any(BROKEN[env] in text for text in found), found


@pytest.mark.parametrize("env", [RewardIsNan, Random, HoldsALambda, SameIds, ExpertGivesUp])
def test_one_mistake_is_told_once_and_alone(env):
    found = check_env(env)
    assert len(found) == (2 if env is ExpertGivesUp else 1), found  # told for each of two tasks


@pytest.mark.parametrize("world", ["small", "full"])
@pytest.mark.parametrize("reward", ["win", "graded", "lmrl"])
def test_twenty_questions_keeps_the_contract(world, reward):
    def make() -> TwentyQ:
        return TwentyQ(
            world=world,
            max_turns=13,
            reward=reward,
            final_hint="graded",
            test_objects=40,
            split_seed=0,
            show_turns_left=True,
        )

    assert check_env(make) == []
