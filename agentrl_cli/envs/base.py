"""What an environment is. One instance plays one episode; given task, seed and actions it is
deterministic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Message, Step, Task

SPLITS = ("train", "val", "test")


class Env(ABC):
    """A world: keyword-only dataclass fields are its configuration; `reset` starts the one episode
    it plays."""

    @property
    def tools(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools the agent may call; none by default."""
        return []

    @property
    def turn_delimiter(self) -> str:
        """The text at which a sampled action is cut into turns, kept at the end of each; "": never.
        An action that ends with it may be answered without a message: the same reply goes on."""
        return ""

    @abstractmethod
    def system(self) -> str:
        """The instructions or policy, sent as the system message."""

    @abstractmethod
    def tasks(self, split: str) -> list[Task]:
        """All tasks of a split in a fixed order: of `train`, of `test`, and where the world has it
        of `val`, by which settings and checkpoints are chosen. No task is in two of them. UserError
        for an unknown split."""

    @abstractmethod
    def reset(self, task: Task, seed: int) -> list[Message]:
        """Start the episode and return the first messages after the system message."""

    @abstractmethod
    def step(self, action: str) -> Step:
        """Answer the agent's raw text. Text that cannot be parsed is reported, never raised for.
        Every end that the world itself has an outcome for is `done`, its own limit of turns among
        them; `truncated` says that the outcome stays unknown."""

    def expert(self, task: Task) -> Iterator[str] | None:
        """Expert actions for this instance's episode in progress; None without an expert."""
        return None

    def digest(self) -> str | None:
        """A hash of the world's present state, for tests of exactness; None without one."""
        return None

    def summarise(self, episodes: list[Episode]) -> dict[str, float]:
        """Metrics of played episodes that only this world knows how to count; an evaluation of a
        split logs each as `eval/SPLIT_NAME` beside its own."""
        return {}

    def close(self) -> None:
        """Release what the instance holds."""


def require_split(split: str, known: Sequence[str] = SPLITS) -> None:
    """Raise UserError where the split is none of those."""
    if split not in known:
        *first, last = map(repr, known)
        raise UserError(f"unknown split {split!r}: use {', '.join(first)} or {last}")


def episodes_by_task(episodes: list[Episode]) -> list[list[Episode]]:
    """The episodes of each task, in the order in which they were played."""
    by_task: dict[str, list[Episode]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task.id, []).append(episode)
    return list(by_task.values())


def train_tasks(env: Env) -> list[Task]:
    """All tasks to train on. Raises UserError where there are none."""
    tasks = env.tasks("train")
    if not tasks:
        raise UserError("the environment has no train tasks; choose one that does")
    return tasks
