"""Other people's worlds in the shape of Gymnasium, whose observations are texts: `reset(seed=…)`
answers (text, info), `step(action)` (text, reward, terminated, truncated, info). Nothing is
installed for it: `entry` names what makes one, as `gem:make` or a class of your own."""

from __future__ import annotations

import importlib
import inspect
import json
from dataclasses import dataclass, field
from typing import Any

from agentrl_cli.core.errors import UserError, require_at_least
from agentrl_cli.core.types import Message, Step, Task
from agentrl_cli.envs.base import Env, require_split


@dataclass(kw_only=True)
class GymText(Env):
    """A task is a seed; no seed is in two splits. An episode is a success where its rewards add up
    to `success_reward`. A limit of the foreign world's own (`truncated`) is an end like others."""

    entry: str | None
    options: dict[str, Any]
    instruction: str
    episodes: int
    test_episodes: int
    success_reward: float
    val_episodes: int = 0
    world: Any = field(default=None, init=False, repr=False)
    total: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        require_at_least(1, episodes=self.episodes, test_episodes=self.test_episodes)
        require_at_least(0, val_episodes=self.val_episodes)

    def system(self) -> str:
        """The instruction."""
        return self.instruction

    def tasks(self, split: str) -> list[Task]:
        """Even seeds to train on, odd ones to test on, and those behind all of these for `val`.
        Raises UserError where no world can be made, so that nothing is begun with it."""
        require_split(split)
        _close(self._make())
        end = 2 * max(self.episodes, self.test_episodes)
        seeds = {
            "train": range(0, 2 * self.episodes, 2),
            "test": range(1, 2 * self.test_episodes, 2),
            "val": range(end, end + self.val_episodes),
        }[split]
        return [Task(f"gym-{split}-{seed}", split, {"seed": seed}) for seed in seeds]

    def reset(self, task: Task, seed: int) -> list[Message]:
        """Make a world and begin at the task's seed."""
        self.world, self.total = self._make(), 0.0
        text, _ = self.world.reset(seed=task.data["seed"])
        return [Message("user", str(text))]

    def step(self, action: str) -> Step:
        """Hand the agent's text on. Raises RuntimeError before `reset` and after the end."""
        if self.world is None:
            raise RuntimeError("no episode is open: call reset on a fresh instance")
        text, reward, terminated, truncated, info = self.world.step(action)
        self.total += float(reward)
        done = bool(terminated or truncated)
        shown = {key: value for key, value in dict(info).items() if _is_json(value)}
        if done:
            shown["success"] = self.total >= self.success_reward
            self.close()
        return Step([Message("user", str(text))], float(reward), done, False, shown)

    def close(self) -> None:
        """Release the foreign world."""
        world, self.world = self.world, None
        _close(world)

    def _make(self) -> Any:
        """A new world. Raises UserError where the options are none of it."""
        maker = self._maker()
        try:
            inspect.signature(maker).bind(**self.options)
        except TypeError as error:
            line = f"env.options do not fit '{self.entry}' ({error})"
            raise UserError(f"{line}; give what it takes") from None
        except ValueError:  # it does not say what it takes
            pass
        return maker(**self.options)

    def _maker(self) -> Any:
        """What `entry` names. Raises UserError where it cannot be imported."""
        module, _, name = (self.entry or "").partition(":")
        if not module or not name:
            given = f"is {self.entry!r}" if self.entry else "is missing"
            raise UserError(f"env.entry {given}; give package.module:name of what makes the world")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            line = f"env.entry '{self.entry}' cannot be imported ({error})"
            raise UserError(f"{line}; install it, or correct the name") from None


def _close(world: Any) -> None:
    """Release a foreign world that can be released."""
    if world is not None and hasattr(world, "close"):
        world.close()


def _is_json(value: object) -> bool:
    """Whether a record can keep the value."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
