"""A pool of grading processes (worker.py), started at first use and safe to use from threads."""

from __future__ import annotations

import atexit
import json
import os
import queue
import select
import signal
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from agentrl_cli.core.errors import UserError

WORKERS = 2
START_SECONDS = 300.0  # to import math-verify, however busy the machine is
ANSWER_SECONDS = 10.0  # of waiting for a worker, more than its own limit
WORKER = Path(__file__).with_name("worker.py")


@cache
def available() -> bool:
    """Return whether math-verify is installed, on a system that can fork."""
    return hasattr(os, "fork") and find_spec("math_verify") is not None


class Worker:
    """One grading process. Raises UserError if it does not start."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            bufsize=0,  # select must see everything that was written
            start_new_session=True,  # Ctrl-C must not end it: the current step is finished first
        )  # fmt: skip
        if self._read(START_SECONDS) != "ready":
            self.close()
            remedy = "run python -c 'import math_verify', or reinstall 'agentrl-cli[math]'"
            raise UserError(f"math-verify does not load in its process; {remedy}", code="no-grader")

    def grade(self, question: tuple[str, str, bool, float]) -> str:
        """Return verified, refused, timeout or crash; "" if the process is gone or stuck."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
        except OSError:
            return ""
        return self._read(ANSWER_SECONDS)

    def close(self) -> None:
        """End the process and its fork."""
        with self.process:  # waits, and closes the pipes
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)

    def _read(self, seconds: float) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return self.process.stdout.readline().decode().strip() if ready else ""


class Pool:
    """A fixed number of workers. One that is gone or stuck is replaced and counted in `lost`."""

    def __init__(self, workers: int = WORKERS) -> None:
        self.lost = 0
        self.idle: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self.idle.put(None)

    def verify(self, answer: str, gold: str, whole_reply: bool, tolerance: float) -> str:
        """Return verified, refused, timeout or crash. `answer` is normalised, or a whole reply."""
        worker, outcome = self.idle.get(), ""
        try:
            worker = worker or Worker()
            outcome = worker.grade((answer, gold, whole_reply, tolerance))
        finally:
            if worker is not None and not outcome:
                worker.close()
                self.lost += 1
            self.idle.put(worker if outcome else None)
        return outcome or "crash"

    def close(self) -> None:
        """End all workers. The next use starts new ones."""
        for _ in range(self.idle.qsize()):
            if worker := self.idle.get():
                worker.close()
            self.idle.put(None)


@cache
def _pool_of(process: int) -> Pool:
    """Return the pool of a process: a fork must not share its parent's pipes."""
    pool = Pool()
    atexit.register(pool.close)
    return pool


def pool() -> Pool:
    return _pool_of(os.getpid())
