"""The interface of environments. One instance plays one episode, deterministic given task, seed and
actions."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Message, Step, Task

SPLITS = ("train", "val", "test")


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
