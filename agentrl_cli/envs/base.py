"""The interface of environments. One instance plays one episode, deterministic given task, seed and
actions."""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Message, Step, Task

SPLITS = ("train", "val", "test")
ROUNDING = 1e-9  # of a sum of rewards, such as three thirds
Instructions = Annotated[
    Literal["short", "full"],
    Field(
        description="short: the texts that the bundled model was trained on; full: instructions "
        "in words and an example episode, for other models. The model's prompts choose."
    ),
]


class Env(ABC):
    """An environment. Its configuration is its keyword-only dataclass fields."""

    @property
    def tools(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools that the agent may call; none by default."""
        return []

    @property
    def turn_delimiter(self) -> str:
        """The text after which a sampled reply is cut into turns; "": never. If a turn ends with
        it, `step` may return no messages, and the same reply continues."""
        return ""

    @abstractmethod
    def system(self) -> str:
        """Return the system message: instructions or a policy."""

    def example(self) -> list[Message]:
        """Return an example episode without its last response: messages of the user and the
        assistant in turn. They stand between the system message and the first messages, and are
        never trained on. None by default."""
        return []

    @abstractmethod
    def tasks(self, split: str) -> list[Task]:
        """Return all tasks of a split in a fixed order: `train`, `test`, and optionally `val`, by
        which settings and checkpoints are selected. Splits are disjoint. Raises UserError for an
        unknown split."""

    @abstractmethod
    def reset(self, task: Task, seed: int) -> list[Message]:
        """Start the episode and return the first messages after the system message."""

    @abstractmethod
    def step(self, action: str) -> Step:
        """Play the agent's raw text. If it cannot be parsed, report that in an observation. An end
        with an outcome is `done`, also at the environment's own turn limit; `truncated` means that
        the outcome is unknown."""

    def expert(self, task: Task) -> Iterator[str] | None:
        """Yield expert actions for the episode in progress. Returns None without an expert."""
        return None

    def digest(self) -> str | None:
        """Return a hash of the current state, for tests; None if there is none."""
        return None

    def summarise(self, episodes: list[Episode]) -> dict[str, float]:
        """Return further metrics of played episodes, which an evaluation logs as
        `eval/SPLIT_NAME`."""
        return {}

    def close(self) -> None:
        """Release resources."""


@lru_cache(maxsize=1)
def full_instructions() -> dict[str, Any]:
    """Return the texts of `instructions=full` by environment."""
    file = Path(__file__).with_name("instructions.yaml")
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def expert_example(env: Env, task: Task) -> list[Message]:
    """Return the messages of an episode of the expert, without the last response."""
    messages = env.reset(task, 0)
    for action in env.expert(task) or ():
        messages = [*messages, Message("assistant", action)]
        step = env.step(action)
        if step.done:
            break
        messages += step.messages
    return messages


def require_split(split: str, known: Sequence[str] = SPLITS) -> None:
    """Raise UserError for an unknown split."""
    if split not in known:
        *first, last = map(repr, known)
        line = f"unknown split {split!r}: use {', '.join(first)} or {last}"
        raise UserError(line, code="unknown-split")


def import_extra(module: str, extra: str) -> Any:
    """Import a module of the environment's optional package. Raises UserError if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        name = extra.replace("-", "_")
        line = f"env={name} needs a package; pip install 'agentrl-cli[{extra}]'"
        raise UserError(line, code="missing-package") from None


def is_json(value: object) -> bool:
    """Return whether a value can be written as JSON, without NaN."""
    try:
        return bool(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return False


def import_entry(key: str, entry: str | None) -> Any:
    """Return the object that `package.module:name`, the value of `key`, names. Raises UserError if
    it cannot be imported."""
    module, _, name = (entry or "").partition(":")
    if not module or not name:
        line = f"{key} is {entry!r}; give a name such as package.module:name"
        raise UserError(line, code="invalid-entry")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        line = f"{key} '{entry}' cannot be imported ({error})"
        raise UserError(f"{line}; install it or correct the name", code="import") from None


def episodes_by_task(episodes: list[Episode]) -> list[list[Episode]]:
    """Return the episodes of each task, in order of play."""
    by_task: dict[str, list[Episode]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task.id, []).append(episode)
    return list(by_task.values())


def train_tasks(env: Env) -> list[Task]:
    """Return all training tasks. Raises UserError if there are none."""
    tasks = env.tasks("train")
    if not tasks:
        line = "the environment has no train tasks; choose one that does"
        raise UserError(line, code="no-train-tasks")
    return tasks
