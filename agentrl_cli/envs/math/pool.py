"""A small pool of grading processes (worker.py), started at the first use, safe in threads.

A pair that takes too long or breaks its worker is counted apart from wrong ones; a worker that does
not answer is replaced.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock

from agentrl_cli.core.errors import UserError

WORKERS = 2
CPU_SECONDS = 0.2  # of processor time for one pair
WALL_SECONDS = 3.0  # of waiting for one pair, on however busy a machine
MEMORY_BYTES = 2 * 2**30  # of address space
START_SECONDS = 300.0  # for a worker to load, on however busy a machine
REMEDY = "try python -c 'import math_verify', or pip install 'agentrl-cli[math]' anew"
WORKER = Path(__file__).with_name("worker.py")


@cache
def available() -> bool:
    """Whether math-verify is installed, on a system that can fork."""
    return hasattr(os, "fork") and find_spec("math_verify") is not None


class Worker:
    """One process and its pipes. Raises UserError where it ends while it loads, or takes longer
    than START_SECONDS."""

    def __init__(self) -> None:
        limits = map(str, (CPU_SECONDS, WALL_SECONDS, MEMORY_BYTES))
        command = [sys.executable, "-P", str(WORKER), *limits]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            bufsize=0,  # what select says of a pipe must be all there is
            start_new_session=True,  # Ctrl-C lets a step be finished, grading included
        )  # fmt: skip
        if self._read(START_SECONDS) != "ready":
            how = "ended" if self._ended() else f"was not ready within {START_SECONDS:.0f} seconds"
            self.close()
            raise UserError(f"the process in which math-verify loads {how}; {REMEDY}")

    def ask(self, question: Sequence[object]) -> str:
        """verified, refused, timeout or crash; `lost` where the process itself is gone."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
        except OSError:
            return "lost"
        return self._read(2 * WALL_SECONDS) or "lost"

    def close(self) -> None:
        """End the process: its input ends, and what does not stop by that is killed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(2 * WALL_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def _ended(self) -> bool:
        """Whether the process has ended, or does so within a second."""
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _read(self, seconds: float) -> str:
        """One line; "" where none comes in time."""
        pipe = self.process.stdout
        assert pipe is not None
        ready, _, _ = select.select([pipe], [], [], seconds)
        return pipe.readline().decode().strip() if ready else ""


class Pool:
    """`workers` processes and the tally of their outcomes."""

    def __init__(self, workers: int = WORKERS) -> None:
        self.tally: Counter[str] = Counter()
        self.lock = Lock()
        self.idle: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self.idle.put(None)

    def verify(
        self, answer: str, gold: str, *, whole_reply: bool = False, tolerance: float = 0.0
    ) -> str:
        """verified, refused, timeout or crash."""
        worker = self.idle.get()
        outcome = "lost"
        try:
            worker = worker or Worker()
            outcome = worker.ask([answer, gold, whole_reply, tolerance])
        finally:
            if outcome == "lost" and worker is not None:
                worker.close()
            self.idle.put(None if outcome == "lost" else worker)
        with self.lock:
            self.tally[outcome] += 1
        return "crash" if outcome == "lost" else outcome

    def close(self) -> None:
        """End all processes; the next use starts new ones."""
        for _ in range(self.idle.qsize()):
            worker = self.idle.get()
            if worker is not None:
                worker.close()
            self.idle.put(None)


@cache
def _pool(process: int) -> Pool:
    """This process's pool: pipes must not be shared with a forked parent."""
    pool = Pool()
    atexit.register(pool.close)
    return pool


def verify(answer: str, gold: str, *, whole_reply: bool = False, tolerance: float = 0.0) -> str:
    """How math-verify judges normalised answers, or a reply as it stands: verified, refused,
    timeout or crash."""
    pool = _pool(os.getpid())
    return pool.verify(answer, gold, whole_reply=whole_reply, tolerance=tolerance)


def close() -> None:
    """End this process's workers; the next pair starts new ones."""
    _pool(os.getpid()).close()


def tally() -> dict[str, int]:
    """How often each outcome came since this process began, and how many workers were `lost`."""
    return dict(_pool(os.getpid()).tally)
