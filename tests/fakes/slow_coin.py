"""The coin's world on a bad day: it takes its time, or takes its process with it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from agentrl_cli.core.types import Message, Step, Task
from tests.fakes.coin import CoinEnv


@dataclass(kw_only=True)
class SlowCoinEnv(CoinEnv):
    """Waits `seconds` in every step."""

    seconds: float

    def step(self, action: str) -> Step:
        time.sleep(self.seconds)
        return super().step(action)


@dataclass(kw_only=True)
class DeadlyCoinEnv(CoinEnv):
    """Kills its process in the second step of the first episode of task `deadly`, as an operating
    system does; the file `marker` says that this one was chosen."""

    deadly: str
    marker: str

    def reset(self, task: Task, seed: int) -> list[Message]:
        self.is_deadly = task.id == self.deadly and self._is_first()
        return super().reset(task, seed)

    def _is_first(self) -> bool:
        try:
            Path(self.marker).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def step(self, action: str) -> Step:
        if self.is_deadly and self.played == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)
