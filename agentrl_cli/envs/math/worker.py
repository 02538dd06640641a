"""A grading process: `python worker.py LIMIT WALL MEMORY`, one JSON list a line in, one word out:
answer, right answer, whether the answer is a whole reply, and the tolerance of numbers.

It loads math-verify once and forks a child that does the comparing. The kernel ends a child that
has used LIMIT seconds of processor time on one pair, however deep in C code it is: a signal that
Python handles could not. WALL seconds without an answer, or more than MEMORY bytes, end it too. A
fork costs milliseconds where a new process would load for a second.
"""

from __future__ import annotations

import ast
import gc
import json
import logging
import os
import re
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
WARM_UP_REPLIES = (
    (r"It is $\boxed{1}$ and $\boxed{2}$.", "1,2"), ("The final answer is 3/4.", "0.75"),
)  # fmt: skip
REPLY_FACTOR = 5  # how much longer a whole reply may take than an answer
DELIMITED = re.compile(r"(?<!\\)\$[^$]+(?<!\\)\$|\\[(\[]|\\(?:boxed|fbox)\b")
PLAIN = re.compile(
    r"[$€£]?-?(?:\d+(?:[ ,]\d{3})*)?(?:[.,]\d+)?\s*(?:%|[Pp]ercent(?:age)?|[Pp]ct)?|[-+*/^().\d\s]+"
)
Check = Callable[[str, str, bool, float], bool]


def load_checker() -> Check:
    """The comparison of (answer, gold, whether the answer is a whole reply, tolerance). An answer
    is read as LaTeX alone, a reply as math-verify's own defaults read it."""
    import math_verify.parser  # pyright: ignore[reportMissingImports]
    from math_verify import (  # pyright: ignore[reportMissingImports]
        LatexExtractionConfig,
        parse,
        verify,
    )

    logging.disable(logging.CRITICAL)
    math_verify.parser.parse_expr = read_arithmetic  # its own goes through Python's `eval`
    latex = [LatexExtractionConfig()]

    def read(text: str) -> Any:
        return parse(f"${text}$", latex, fallback_mode="no_fallback", parsing_timeout=0)

    def read_reply(text: str) -> Any:
        return parse(text, parsing_timeout=0)

    @lru_cache(256)
    def read_gold(text: str, as_reply: bool) -> Any:
        if not as_reply:
            return read(text)
        if DELIMITED.search(text):
            return read_reply(text)
        return read_reply(f"${text}$") + (read_reply(text) if PLAIN.fullmatch(text) else [])

    def check(answer: str, gold: str, whole_reply: bool, tolerance: float) -> bool:
        right, mine = read_gold(gold, whole_reply), (read_reply if whole_reply else read)(answer)
        if right and mine and verify(right, mine, timeout_seconds=0):
            return True
        return tolerance > 0 and any(near(a, b, tolerance) for a in right for b in mine)

    for answer, gold in WARM_UP_PAIRS:
        check(answer, gold, False, 0.01)
    for answer, gold in WARM_UP_REPLIES:
        check(answer, gold, True, 0.01)
    return check


def near(right: Any, mine: Any, tolerance: float) -> bool:
    """Whether two sympy objects are real numbers, or equations that end in one, that differ by at
    most `tolerance` times the first."""
    values = [getattr(one, "rhs", one) for one in (right, mine)]
    if not all(getattr(one, "is_number", False) for one in values):
        return False
    wanted, found = (complex(one.doit().evalf()) for one in values)
    return abs(wanted - found) <= tolerance * abs(wanted)


def read_arithmetic(text: str, **_: Any) -> Any:
    """An expression of numbers and `+ - * / **` as a sympy expression that is not worked out: in
    place of sympy's reader, which runs what it reads. Raises ValueError for anything else."""
    import sympy  # pyright: ignore[reportMissingImports]

    def power(a: Any, b: Any) -> Any:
        return sympy.Pow(a, b, evaluate=False)

    def times(a: Any, b: Any) -> Any:
        return sympy.Mul(a, b, evaluate=False)

    def plus(a: Any, b: Any) -> Any:
        return sympy.Add(a, b, evaluate=False)

    binary: dict[type, Callable[[Any, Any], Any]] = {
        ast.Add: plus, ast.Mult: times, ast.Pow: power,
        ast.Sub: lambda a, b: plus(a, times(-1, b)), ast.Div: lambda a, b: times(a, power(b, -1)),
    }  # fmt: skip

    def build(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            written = ast.get_source_segment(text, node)
            return (sympy.Integer if isinstance(node.value, int) else sympy.Float)(written)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
            value = build(node.operand)
            return times(-1, value) if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.BinOp) and type(node.op) in binary:
            return binary[type(node.op)](build(node.left), build(node.right))
        raise ValueError(f"{text[:40]!r} is no arithmetic")

    text = text.strip()
    return build(ast.parse(text, mode="eval").body)


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
            answer, gold, whole_reply, tolerance = json.loads(line)
            seconds = limit * REPLY_FACTOR if whole_reply else limit
            signal.setitimer(signal.ITIMER_PROF, seconds)
            try:
                word = b"1" if check(answer, gold, whole_reply, tolerance) else b"0"
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
