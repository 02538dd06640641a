"""Environments in the shape of Gymnasium with text observations."""

from __future__ import annotations

import importlib
import inspect
import json
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.limits import check_limits
from agentrl_cli.core.types import Message, Step, Task
from agentrl_cli.envs.base import Env, require_split


@dataclass(kw_only=True)
class GymText(Env):
    """Plays an environment with `reset(seed=…)`, which returns (text, info), and `step(action)`,
    which returns (text, reward, terminated, truncated, info).

    A task is a seed, and the splits share none. A limit of the environment (`truncated`) ends an
    episode like any other end."""

    entry: Annotated[str | None, Field(description="Factory, such as my_games:Maze.")]
    options: Annotated[dict[str, Any], Field(description="Arguments of the factory.")]
    instruction: Annotated[str, Field(description="System message.")]
    episodes: Annotated[int, Field(ge=1, description="Number of train seeds.")]
    test_episodes: Annotated[int, Field(ge=1, description="Number of test seeds.")]
    success_reward: Annotated[float, Field(description="Sum of rewards of a success.")]
    val_episodes: Annotated[int, Field(ge=0, description="Number of val seeds.")] = 0
    environment: Any = field(default=None, init=False, repr=False)
    total: float = field(default=0.0, init=False, repr=False)

    __post_init__ = check_limits

    def system(self) -> str:
        return self.instruction

    def tasks(self, split: str) -> list[Task]:
        """Return one task per seed. Raises UserError if the environment cannot be made."""
        require_split(split)
        _close(self._make())
        end = 2 * max(self.episodes, self.test_episodes)
        seeds = {
            "train": range(0, 2 * self.episodes, 2), "test": range(1, 2 * self.test_episodes, 2),
            "val": range(end, end + self.val_episodes),
        }[split]  # fmt: skip
        return [Task(f"gym-{split}-{seed}", split, {"seed": seed}) for seed in seeds]

    def reset(self, task: Task, seed: int) -> list[Message]:
        """Make an environment and reset it with the task's seed."""
        self.environment, self.total = self._make(), 0.0
        text, _ = self.environment.reset(seed=task.data["seed"])
        return [Message("user", str(text))]

    def step(self, action: str) -> Step:
        """Pass the agent's text on. Raises RuntimeError before `reset` and after the end."""
        if self.environment is None:
            raise RuntimeError("no episode is open: call reset on a fresh instance")
        text, reward, terminated, truncated, info = self.environment.step(action)
        self.total += float(reward)
        done = bool(terminated or truncated)
        shown = {key: value for key, value in dict(info).items() if _is_json(value)}
        if done:
            shown["success"] = self.total >= self.success_reward
            self.close()
        return Step([Message("user", str(text))], float(reward), done, False, shown)

    def close(self) -> None:
        environment, self.environment = self.environment, None
        _close(environment)

    def _make(self) -> Any:
        """Return a new environment. Raises UserError for an unknown entry or wrong options."""
        module, _, name = (self.entry or "").partition(":")
        if not module or not name:
            line = f"env.entry is {self.entry!r}; give the factory as package.module:name"
            raise UserError(line, code="invalid-entry")
        try:
            factory = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            line = f"env.entry '{self.entry}' cannot be imported ({error})"
            raise UserError(f"{line}; install it or correct the name", code="import") from None
        try:
            inspect.signature(factory).bind(**self.options)
        except TypeError as error:
            line = f"env.options do not fit '{self.entry}' ({error}); correct them"
            raise UserError(line, code="invalid-options") from None
        except ValueError:  # a callable without a signature
            pass
        return factory(**self.options)


def _close(environment: Any) -> None:
    if environment is not None and hasattr(environment, "close"):
        environment.close()


def _is_json(value: object) -> bool:
    try:
        return bool(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return False
