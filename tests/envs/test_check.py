"""check_env: silent about a sound environment, and one telling message for each broken one."""
# pyright: reportIncompatibleMethodOverride=false, reportArgumentType=false, reportReturnType=false

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

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


class SystemIsNone(Sound):
    def system(self) -> None:
        return None


class ToolsAreNames(Sound):
    @property
    def tools(self) -> list[str]:
        return ["search"]


class NoTestTasks(Sound):
    def tasks(self, split: str) -> list[Task]:
        return super().tasks(split) if split != "test" else []


class ShuffledTasks(Sound):
    def tasks(self, split: str) -> list[Task]:
        super().tasks(split)
        names = [f"{split}-{random.random()}" for _ in range(3)]
        return [Task(name, split, {"name": name}) for name in names]


class WrongSplitName(Sound):
    def tasks(self, split: str) -> list[Task]:
        return [Task(task.id, "all", task.data) for task in super().tasks(split)]


class SameIds(Sound):
    def tasks(self, split: str) -> list[Task]:
        return [Task("count", split, task.data) for task in super().tasks(split)]


class SharedTasks(Sound):
    def tasks(self, split: str) -> list[Task]:
        return [Task(task.id, split, {"name": "both"}) for task in super().tasks(split)]


class AnySplit(Sound):
    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{i}", split, {"name": f"{split}-{i}"}) for i in range(2)]


class ResetReturnsText(Sound):
    def reset(self, task: Task, seed: int) -> str:
        super().reset(task, seed)
        return "Say go."


class ResetIsSilent(Sound):
    def reset(self, task: Task, seed: int) -> list[Message]:
        super().reset(task, seed)
        return []


class StrangeRole(Sound):
    def message(self) -> Message:
        return Message("oracle", "no")


class ContentIsNumber(Sound):
    def message(self) -> Message:
        return Message("user", 3)


class RewardIsNan(Sound):
    def step(self, action: str) -> Step:
        step = super().step(action)
        return Step(step.messages, float("nan"), step.done, step.truncated)


class DoneIsNumber(Sound):
    def step(self, action: str) -> Step:
        step = super().step(action)
        return Step(step.messages, 0.0, int(step.done), step.truncated)


class DoneAndTruncated(Sound):
    def step(self, action: str) -> Step:
        step = super().step(action)
        return Step(step.messages, 0.0, step.truncated, step.truncated)


class TruncatedAndLost(Sound):
    def step(self, action: str) -> Step:
        step = super().step(action)
        info = {"success": step.done} if step.done or step.truncated else {}
        return Step(step.messages, step.reward, step.done, step.truncated, info)


class SilentStep(Sound):
    def step(self, action: str) -> Step:
        step = super().step(action)
        return Step([], step.reward, step.done, step.truncated, step.info)


class InfoHoldsObjects(Sound):
    def step(self, action: str) -> Step:
        step = super().step(action)
        return Step(step.messages, 0.0, step.done, step.truncated, {"env": self})


class StepIsTuple(Sound):
    def step(self, action: str) -> tuple[str, float, bool]:
        step = super().step(action)
        return "", step.reward, step.truncated


class Endless(Count):
    def step(self, action: str) -> Step:
        return Step([self.message()], 0.0, False, False)


class RaisesForNonsense(Sound):
    def step(self, action: str) -> Step:
        if action != "go":
            raise ValueError("not go")
        return super().step(action)


class Random(Sound):
    def message(self) -> Message:
        return Message("user", str(random.random()))


class RandomForTheExpert(Sound):
    def message(self) -> Message:
        return Message("user", str(random.random()) if self.said else "0 of 3")


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
    ResetIsSilent: "reset returns no messages",
    StrangeRole: "role='oracle'",
    ContentIsNumber: "content=3",
    RewardIsNan: "reward is nan",
    DoneIsNumber: "not a bool",
    DoneAndTruncated: "both true",
    TruncatedAndLost: "truncated with info['success']",
    SilentStep: "no messages while the episode runs",
    InfoHoldsObjects: "info cannot be written as JSON",
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
            world=world, max_turns=13, reward=reward, final_hint="graded", test_objects=40, split_seed=0,
            show_turns_left=True,
        )  # fmt: skip

    assert check_env(make) == []
