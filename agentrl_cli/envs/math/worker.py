"""A grading process, started as `python -P worker.py`. It imports math-verify, and nothing of ours.

It reads one JSON list per line (answer, correct answer, whether the answer is a whole reply,
tolerance) and writes one word: verified, refused, timeout or crash. A fork does the comparing. The
kernel ends it at the limits, because a Python signal handler cannot interrupt C code. A new fork
costs milliseconds, a new process more than a second.
"""

from __future__ import annotations

import ast
import gc
import json
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TextIO

CPU_SECONDS = 0.2  # processor time for one answer
REPLY_CPU_SECONDS = 1.0  # processor time for a whole reply
WALL_SECONDS = 3.0
MAX_ANSWERS = 1000  # of one fork, because its caches grow
AGAIN = 0  # exit status of a fork that has done its share
MEMORY_BYTES = 2 * 2**30  # address space
WARM_UP_PAIRS = (  # fill imports and caches before the first fork
    (r"\frac{1}{2}+x", "x+0.5"), (r"\sqrt{8}", r"2\sqrt{2}"), (r"(x+1)^2", "x^2+2x+1"),
    (r"(-\infty,2]\cup[3,5)", r"(-\infty,2]\cup[3,4)"), ("(2,1)", "(1,2)"), (r"\{1,2\}", "2,1"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
    ("x=3", "y=2x+1"), (r"\frac{\pi}{6}", r"30"), ("3+2i", "2i+3"), ("x<2", "x>2"),
    (r"\sin x", r"\cos x"), ("2^{10}", "1024x"), (r"\text{Ann}", "5"),
)  # fmt: skip
WARM_UP_REPLIES = (
    (r"It is $\boxed{1}$ and $\boxed{2}$.", "1,2"), ("The final answer is 3/4.", "0.75"),
)  # fmt: skip
DELIMITED = re.compile(r"(?<!\\)\$[^$]+(?<!\\)\$|\\[(\[]|\\(?:boxed|fbox)\b")
PLAIN = re.compile(
    r"[$€£]?-?(?:\d+(?:[ ,]\d{3})*)?(?:[.,]\d+)?\s*(?:%|[Pp]ercent(?:age)?|[Pp]ct)?|[-+*/^().\d\s]+"
)
Check = Callable[[str, str, bool, float], bool]


def load_checker() -> Check:
    """Return the comparison. It parses an answer as LaTeX, and a reply with math-verify's
    defaults."""
    import math_verify.parser  # pyright: ignore[reportMissingImports]
    from math_verify import (  # pyright: ignore[reportMissingImports]
        LatexExtractionConfig,
        parse,
        verify,
    )

    logging.disable(logging.CRITICAL)
    math_verify.parser.parse_expr = parse_arithmetic  # sympy's own parser calls `eval`
    latex = [LatexExtractionConfig()]

    def parse_answer(text: str) -> Any:
        return parse(f"${text}$", latex, fallback_mode="no_fallback", parsing_timeout=0)

    def parse_reply(text: str) -> Any:
        return parse(text, parsing_timeout=0)

    @lru_cache(256)
    def parse_gold(text: str, whole_reply: bool) -> Any:
        if not whole_reply:
            return parse_answer(text)
        if DELIMITED.search(text):
            return parse_reply(text)
        return parse_reply(f"${text}$") + (parse_reply(text) if PLAIN.fullmatch(text) else [])

    def check(answer: str, gold: str, whole_reply: bool, tolerance: float) -> bool:
        right = parse_gold(gold, whole_reply)
        mine = (parse_reply if whole_reply else parse_answer)(answer)
        if right and mine and verify(right, mine, timeout_seconds=0):
            return True
        return tolerance > 0 and any(are_close(a, b, tolerance) for a in right for b in mine)

    for answer, gold in WARM_UP_PAIRS:
        check(answer, gold, False, 0.01)
    for answer, gold in WARM_UP_REPLIES:
        check(answer, gold, True, 0.01)
    return check


def are_close(right: Any, mine: Any, tolerance: float) -> bool:
    """Return whether two sympy numbers, or equations that end in one, differ by at most
    `tolerance` times the first."""
    values = [getattr(one, "rhs", one) for one in (right, mine)]
    if not all(getattr(one, "is_number", False) for one in values):
        return False
    wanted, found = (complex(one.doit().evalf()) for one in values)
    return abs(wanted - found) <= tolerance * abs(wanted)


def parse_arithmetic(text: str, **_: Any) -> Any:
    """Return an expression of numbers and `+ - * / **` as an unevaluated sympy expression. Raises
    ValueError or SyntaxError for anything else. Unlike sympy's parser it runs no code."""
    from sympy import Add, Float, Integer, Mul, Pow  # pyright: ignore[reportMissingImports]

    operations: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
        ast.Add: lambda x, y: Add(x, y, evaluate=False),
        ast.Sub: lambda x, y: Add(x, Mul(-1, y, evaluate=False), evaluate=False),
        ast.Mult: lambda x, y: Mul(x, y, evaluate=False),
        ast.Div: lambda x, y: Mul(x, Pow(y, -1, evaluate=False), evaluate=False),
        ast.Pow: lambda x, y: Pow(x, y, evaluate=False),
    }

    def build(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() as value):
                written = ast.get_source_segment(text, node)
                return (Integer if isinstance(value, int) else Float)(written)
            case ast.UnaryOp(op=ast.UAdd()):
                return build(node.operand)
            case ast.UnaryOp(op=ast.USub()):
                return Mul(-1, build(node.operand), evaluate=False)
            case ast.BinOp() if operation := operations.get(type(node.op)):
                return operation(build(node.left), build(node.right))
        raise ValueError(f"{text[:40]!r} is not arithmetic")

    text = text.strip()
    return build(ast.parse(text, mode="eval").body)


def serve(check: Check, outcomes: TextIO) -> bool:
    """Grade up to MAX_ANSWERS lines under limits. Return whether the input goes on."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for _ in range(MAX_ANSWERS):
        if not (line := sys.stdin.readline()):
            return False
        answer, gold, whole_reply, tolerance = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        signal.setitimer(signal.ITIMER_PROF, REPLY_CPU_SECONDS if whole_reply else CPU_SECONDS)
        try:
            outcome = "verified" if check(answer, gold, whole_reply, tolerance) else "refused"
        except Exception:
            outcome = "crash"
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(outcome, file=outcomes, flush=True)
    return True


def main() -> None:
    """Grade until the input ends. The fork that grades answers for itself; if a limit ends it, this
    process answers in its place."""
    with os.fdopen(os.dup(1), "w") as outcomes:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is not an outcome
        check, status = load_checker(), AGAIN
        gc.collect()
        gc.freeze()
        print("ready", file=outcomes, flush=True)
        while status == AGAIN or os.WIFSIGNALED(status):
            if not (child := os.fork()):
                try:
                    os._exit(AGAIN if serve(check, outcomes) else 1)
                finally:
                    os._exit(2)
            status = os.waitpid(child, 0)[1]
            if os.WIFSIGNALED(status):
                is_late = os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGPROF)
                print("timeout" if is_late else "crash", file=outcomes, flush=True)


if __name__ == "__main__":
    main()
