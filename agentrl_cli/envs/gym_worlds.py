"""Environments in the shape of Gymnasium with text observations, and two factories of them:
single-player games of textarena, and games of gem-llm.

Both libraries draw from the process's global random generator. Here each game gets its own state,
so that its seed determines it, whatever else is drawn.
"""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Annotated, Any

from pydantic import Field

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.limits import check_limits
from agentrl_cli.core.types import ANNOTATIONS, Message, Step, Task
from agentrl_cli.envs.base import ROUNDING, Env, import_entry, import_extra, is_json, require_split

Answer = tuple[str, float, bool, bool, dict[str, Any]]
GLOBAL_RANDOM = Lock()  # held while a game uses the process's random generator
PLAYER = 0


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
        own = ANNOTATIONS | {"success"}  # keys that another library must not set
        shown = {k: v for k, v in dict(info).items() if is_json(v) and k not in own}
        if done:
            shown["success"] = self.total >= self.success_reward - ROUNDING
            self.close()
        return Step([Message("user", str(text))], float(reward), done, False, shown)

    def close(self) -> None:
        environment, self.environment = self.environment, None
        _close(environment)

    def _make(self) -> Any:
        """Return a new environment. Raises UserError for an unknown entry or wrong options."""
        factory = import_entry("env.entry", self.entry)
        try:
            inspect.signature(factory).bind(**self.options)
        except TypeError as error:
            line = f"env.options do not fit '{self.entry}' ({error}); correct them"
            raise UserError(line, code="invalid-options") from None
        except ValueError:  # a callable without a signature
            pass
        return factory(**self.options)


def _close(environment: Any) -> None:
    if hasattr(environment, "close"):
        environment.close()


class GemGame:
    """A game of gem-llm. Its own random state replaces the process's while it runs."""

    def __init__(self, package: Any, name: str, options: dict[str, Any]) -> None:
        self.state = random.Random(0).getstate()
        try:
            with self.own_random():
                self.game: Any = package.make(name, **options)
        except (ValueError, TypeError, KeyError, AssertionError, ImportError) as error:
            line = f"cannot make '{name}' ({error}); choose a game that the package registers"
            raise UserError(line, code="unknown-game") from None

    @contextmanager
    def own_random(self, seed: int | None = None) -> Iterator[None]:
        with GLOBAL_RANDOM:
            outer = random.getstate()
            random.setstate(self.state if seed is None else random.Random(seed).getstate())
            try:
                yield
            finally:
                self.state = random.getstate()
                random.setstate(outer)

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Return the first text."""
        with self.own_random(seed):
            return self.game.reset(seed=seed)

    def step(self, action: str) -> Answer:
        """Return the game's answer."""
        with self.own_random():
            return self.game.step(action)


class TextArenaGame(GemGame):
    """A single-player game of textarena without its wrappers. Only the game's own messages are
    shown."""

    def __init__(self, package: Any, name: str, options: dict[str, Any]) -> None:
        super().__init__(package, name, options)
        while isinstance(self.game, package.Wrapper):
            self.game = self.game.env
        self.reset(0)

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Return the first text. Raises UserError for a game with several players."""
        with self.own_random(seed):
            try:
                self.game.reset(num_players=1, seed=seed)
            except AssertionError as error:
                line = f"the game needs several players ({error}); choose a single-player game"
                raise UserError(line, code="several-players") from None
            return self._text(), {}

    def step(self, action: str) -> Answer:
        """Return the game's answer; its reward comes at the end."""
        with self.own_random():
            done, _ = self.game.step(action)
            text = self._text()
            if not done:
                return text, 0.0, False, False, {}
            rewards, info = self.game.close()
        facts = dict(info[PLAYER])
        return text or str(facts.get("reason", "")), float(rewards[PLAYER]), True, False, facts

    def _text(self) -> str:
        _, observations = self.game.get_observation()
        return "\n".join(text for sender, text, _ in observations if sender != PLAYER)


def textarena(*, name: str, **options: Any) -> TextArenaGame:
    """Return the game that textarena registers as `name`. Raises UserError if it is unknown or
    has several players, or if textarena is not installed."""
    return TextArenaGame(_package("textarena"), name, options)


def gem(*, name: str, **options: Any) -> GemGame:
    """Return the game that gem-llm registers as `name`. Raises UserError if it is unknown or not a
    game, or if gem-llm is not installed."""
    if not name.startswith("game:"):
        line = f"'{name}' is not a game, and gem-llm's other environments may run an answer as code"
        raise UserError(f"{line}; choose a name that begins with game:", code="not-a-game")
    return GemGame(_package("gem"), name, options)


def _package(name: str) -> Any:
    """Import a package without its changes to the root logger."""
    log = logging.getLogger()
    level, handlers = log.level, list(log.handlers)
    try:
        return import_extra(name, name)
    finally:
        log.setLevel(level)
        log.handlers[:] = handlers
