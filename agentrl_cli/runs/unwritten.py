"""A run as the ranks see it that do not own its folder: they take part in all that is done to it
and write nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_cli.core.types import Episode
from agentrl_cli.runs.checkpoints import Checkpoint
from agentrl_cli.runs.run import Logger, Run

if TYPE_CHECKING:
    from omegaconf import DictConfig


class UnwrittenRun(Run):
    """Nothing is read either: what the folder says, rank 0 knows."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.meta = folder, {}
        self.loggers: list[Logger] = []

    @property
    def has_metrics(self) -> bool:
        """What is missing is not for this rank to find."""
        return True

    def is_evaluated(self, step: int) -> bool:
        """Likewise."""
        return True

    def checkpoints(self) -> list[Path]:
        """Likewise."""
        return []

    @contextmanager
    def track(self) -> Iterator[None]:
        """The status is rank 0's to set."""
        yield

    def attach(self, loggers: list[Logger], cfg: DictConfig) -> None:
        """What is logged, rank 0 logs."""

    def append_log(self, text: str) -> None:
        """Not written."""

    def set_status(self, status: str, error: str | None = None) -> None:
        """Not written."""

    def update_meta(self, **facts: Any) -> None:
        """Not written."""

    def record_resume(self, cfg: DictConfig, step: int) -> None:
        """Not written."""

    def truncate_logs(self, checkpoint: Checkpoint) -> None:
        """Not cut."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Not written."""

    def write_episodes(self, kind: str, step: int, episodes: list[Episode]) -> Path:
        """Not written."""
        return self.folder
