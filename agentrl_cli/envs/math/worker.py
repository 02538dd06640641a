"""A grading process: `python worker.py LIMIT WALL MEMORY`, one JSON pair a line in, one word out.

It loads math-verify once and forks a child that does the comparing. The kernel ends a child that
has used LIMIT seconds of processor time on one pair, however deep in C code it is: a signal that
Python handles could not. WALL seconds without an answer, or more than MEMORY bytes, end it too. A
fork costs milliseconds where a new process would load for a second.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

MAX_ANSWERS = 1000  # of one child, whose caches grow
WARM_UP_PAIRS = (  # what is imported and cached on first use is so for every child
    (r"\frac{1}{2}+x", "x+0.5"), (r"\sqrt{8}", r"2\sqrt{2}"), (r"(x+1)^2", "x^2+2x+1"),
    (r"(-\infty,2]\cup[3,5)", r"(-\infty,2]\cup[3,4)"), ("(2,1)", "(1,2)"), (r"\{1,2\}", "2,1"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
    ("x=3", "y=2x+1"), (r"\frac{\pi}{6}", r"30"), ("3+2i", "2i+3"), ("x<2", "x>2"),
    (r"\sin x", r"\cos x"), ("2^{10}", "1024x"), (r"\text{Ann}", "5"),
)  # fmt: skip
Check = Callable[[str, str], bool]


def load_checker() -> Check:
    """math-verify's comparison of (answer, gold), on LaTeX alone: its reader of plain expressions
    goes through Python's `eval`."""
    from math_verify import (  # pyright: ignore[reportMissingImports]
        LatexExtractionConfig,
        parse,
        verify,
    )

    logging.disable(logging.CRITICAL)
    latex = [LatexExtractionConfig()]

    def read(text: str) -> Any:
        return parse(f"${text}$", latex, fallback_mode="no_fallback", parsing_timeout=0)

    golds = lru_cache(256)(read)

    def check(answer: str, gold: str) -> bool:
        right, mine = golds(gold), read(answer)
        return bool(right and mine and verify(right, mine, timeout_seconds=0))

    for answer, gold in WARM_UP_PAIRS:
        check(answer, gold)
    return check


@dataclass
class Child:
    """A forked process that compares; it dies of its limits."""

    pid: int
    to_child: int
    from_child: int
    answers_left: int = MAX_ANSWERS

    def ask(self, line: bytes, wall: float) -> str:
        """verified, refused, timeout or crash; after the last two the child is gone."""
        try:
            os.write(self.to_child, line)
        except BrokenPipeError:
            self.end()
            return "crash"
        ready, _, _ = select.select([self.from_child], [], [], wall)
        word = os.read(self.from_child, 1) if ready else b""
        self.answers_left -= 1
        if word:
            return {b"1": "verified", b"0": "refused"}.get(word, "crash")
        return "timeout" if self.end() == signal.SIGPROF or not ready else "crash"

    def end(self) -> int:
        """Make sure that it is gone; the signal that it died of."""
        os.kill(self.pid, signal.SIGKILL)  # it waits to be reaped, so the number is still its own
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.to_child)
        os.close(self.from_child)
        self.answers_left = -1
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def fork(check: Check, limit: float, memory: int) -> Child:
    """A child with pipes to and from it."""
    (inbox, to_child), (from_child, outbox) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid:
        os.close(inbox)
        os.close(outbox)
        return Child(pid, to_child, from_child)
    try:
        os.close(to_child)
        os.close(from_child)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)  # what a library prints must not pass for an answer
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        serve(check, inbox, outbox, limit)
    finally:
        os._exit(1)


def serve(check: Check, inbox: int, outbox: int, limit: float) -> None:
    """Answer 1, 0 or ! for each line until the pipe closes."""
    with os.fdopen(inbox, encoding="ascii") as lines:
        for line in lines:
            answer, gold = json.loads(line)
            signal.setitimer(signal.ITIMER_PROF, limit)
            try:
                word = b"1" if check(answer, gold) else b"0"
            except Exception:
                word = b"!"
            signal.setitimer(signal.ITIMER_PROF, 0)
            os.write(outbox, word)


def main() -> None:
    """Read lines until the input ends."""
    limit, wall, memory = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    check, child = load_checker(), None
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin.buffer:
        if child is not None and child.answers_left == 0:
            child.end()
        if child is None or child.answers_left < 0:
            child = fork(check, limit, memory)
        print(child.ask(line, wall), flush=True)
    if child is not None and child.answers_left >= 0:
        child.end()


if __name__ == "__main__":
    main()
