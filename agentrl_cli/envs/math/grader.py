r"""Grading: exact match after normalisation, then numbers, then math-verify.

math-verify runs in separate processes (worker.py), which are started at first use. Without it the
first two stages still grade every problem whose answer is a number.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from agentrl_cli.core.errors import UserError, require_fraction
from agentrl_cli.envs.math.answers import (
    WORDS,
    boxed,
    formulas,
    labels,
    last_formula,
    normalise,
    number,
)
from agentrl_cli.envs.math.replies import readable

Extract = Literal["boxed", "last_math"]
MAX_ANSWER_LENGTH = 512  # characters; longer answers are wrong
MAX_LETTERS = 3  # of a product of variables; more letters are a word
LISTS = (re.compile(r"^\\\{.*,.*\\\}$"), re.compile(r"^[(\[].*,.*[)\]]$"))  # a set, a point
MAX_PRINTED_BITS = 400  # of a number that is shown
MAX_REPLY_LENGTH = 4096  # characters at the end of a reply in which math-verify looks for an answer
DECIMAL_POINT = re.compile(r"\.\d")
INSTALL = "pip install 'agentrl-cli[math]'"
WORKERS = 2
START_SECONDS = 300.0  # to import math-verify, however busy the machine is
ANSWER_SECONDS = 10.0  # of waiting for a worker, more than its own limit
WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Grade:
    """A verdict and its reason, truthy if correct. Correct answers are `exact`, `number` or
    `verified`. Wrong ones are `unboxed`, `empty`, `long`, `label`, `number`, `unevaluated` or
    `refused`; answers that could not be graded, which count as wrong, are `timeout`, `crash` or
    `unread`. `scored` is the verdict of Reasoning Gym."""

    correct: bool
    reason: str

    def __bool__(self) -> bool:
        return self.correct


def grade(answer: str, gold: str, extract: Extract = "boxed", tolerance: float = 0.0) -> Grade:
    r"""Compare an answer, or the last box of a reply, with the correct answer.

    With `extract="last_math"` math-verify's defaults find the answer in the reply. If one of the
    answers is a decimal, numbers may differ by `tolerance`, relative to the correct one. Safe in
    threads and on hostile text. Raises UserError if only math-verify can compare and it is not
    installed, for an unknown `extract`, for a tolerance outside 0 to 1, and for an answer that is
    no text."""
    if extract not in get_args(Extract):
        choices = " or ".join(get_args(Extract))
        raise UserError(f"extract is '{extract}'; give {choices}", code="unknown-option")
    require_fraction(tolerance=tolerance)
    for name, text in (("answer", answer), ("gold", gold)):
        if not isinstance(text, str):
            raise UserError(f"{name} is {text!r}; give text", code="invalid-value")
    tolerance = tolerance if DECIMAL_POINT.search(f"{answer}\n{gold}") else 0.0
    return (_grade_reply if extract == "last_math" else _grade_box)(answer, gold, tolerance)


def _grade_reply(reply: str, gold: str, tolerance: float) -> Grade:
    """Grade a reply as math-verify's defaults do: several boxes are a set, and without a box the
    last formula or number counts. Several numbers joined by "or" or "and" are a set, too."""
    if not reply.strip():
        return Grade(False, "empty")
    if len(boxed(reply) or "") > MAX_ANSWER_LENGTH:
        return Grade(False, "long")
    if reply.strip() == gold.strip():
        return Grade(True, "exact")
    _require_math_verify()
    reply = reply[-MAX_REPLY_LENGTH:]
    found = _verify(readable(reply), gold, True, tolerance)
    has_formula = boxed(reply) is not None or formulas(reply)
    answer = last_formula(reply) if has_formula else reply
    difference = _difference(answer, boxed(gold) or gold) if found else None
    return found if difference is None else difference


def _grade_box(answer: str, gold: str, tolerance: float) -> Grade:
    """Grade the last box, or the whole text if it has none."""
    inside = boxed(answer), boxed(gold)
    answer = answer if inside[0] is None else inside[0]
    gold = gold if inside[1] is None else inside[1]
    if not answer.strip():
        return Grade(False, "empty")
    if len(answer) > MAX_ANSWER_LENGTH:
        return Grade(False, "long")
    if (difference := _difference(answer, gold)) is not None:
        return difference
    answer, gold = _normalise_both(answer, gold)
    if answer == gold:
        return Grade(True, "exact")
    value, wanted = number(answer), number(gold)
    if value is not None and wanted is not None:
        return Grade(abs(value - wanted) <= Fraction(tolerance) * abs(wanted), "number")
    if available():
        return _verify(answer, gold, False, tolerance)
    if wanted is not None:
        return Grade(False, "unread")
    line = f"only math-verify can compare with '{gold[:60]}'; {INSTALL}"
    raise UserError(line, code="missing-extra")


def _difference(answer: str, gold: str) -> Grade | None:
    """Return the verdict on answers that math-verify must not compare: with other labels; words,
    which it reads as products of letters; a set with a point or interval; a wrong equation, 5 = 6.
    None for all others."""
    mine, right = labels(answer), labels(gold)
    if any(None not in pair and pair[0] != pair[1] for pair in zip(mine, right, strict=True)):
        return Grade(False, "label")
    is_text = bool(WORDS.search(gold))
    answer, gold = _normalise_both(answer, gold)
    is_word = gold.isalpha() and answer.isalpha() and (is_text or len(gold) > MAX_LETTERS)
    is_list = {LISTS[0].match(text) is None for text in (answer, gold)} == {True, False}
    is_list = is_list and any(LISTS[1].match(text) for text in (answer, gold))
    values = {number(part) for part in re.split(r"(?<![<>!\\])=|\\equiv(?![A-Za-z])", answer)}
    is_wrong = "=" not in gold and len(values - {None}) > 1
    return Grade(False, "refused") if answer != gold and (is_word or is_list or is_wrong) else None


def _normalise_both(*texts: str) -> list[str]:
    """Return both texts normalised. `y=2x+1` and `2x+1=y` are compared as equations, because at
    most one of them names a value."""
    is_equation = all("=" in text for text in texts)
    is_equation = is_equation and None in [labels(text).name for text in texts]
    return [normalise(text, keep_name=is_equation) for text in texts]


def explain(answer: str, gold: str, extract: Extract = "boxed") -> dict[str, str]:
    """Return how `gold` and `answer` are read: the normalised text, its exact value or else
    math-verify's expression, and the unit, base or name that is not part of it."""
    if extract == "last_math":
        _require_math_verify()
        readings = [
            _verify(None, gold, True, 0.0).reason,
            _verify(readable(answer[-MAX_REPLY_LENGTH:]), None, True, 0.0).reason,
        ]
    else:
        texts = [text if (box := boxed(text)) is None else box for text in (gold, answer)]
        texts = [text[:MAX_ANSWER_LENGTH] for text in texts]
        readings = list(map(_reading, texts, _normalise_both(*texts)))
    return dict(zip(("gold", "answer"), readings, strict=True))


def _reading(text: str, normalised: str) -> str:
    parts = [normalised]
    if (value := number(normalised)) is None:
        parts += [_verify(normalised, None, False, 0.0).reason] if available() else []
    elif max(map(int.bit_length, value.as_integer_ratio())) <= MAX_PRINTED_BITS:
        parts += [f"exactly {value}"] if str(value) != normalised else []
    else:
        parts += ["an exact number"]
    marks = [f"{name} {mark}" for name, mark in labels(text)._asdict().items() if mark]
    return ", ".join([" read as ".join(parts), *marks])


def _require_math_verify() -> None:
    if not available():
        line = f"extract=last_math needs math-verify; {INSTALL}"
        raise UserError(line, code="missing-extra")


def _verify(answer: str | None, gold: str | None, whole_reply: bool, tolerance: float) -> Grade:
    outcome = pool_of(os.getpid()).verify(answer, gold, whole_reply, tolerance)
    return Grade(outcome == "verified", outcome)


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

    def grade(self, question: tuple[str | None, str | None, bool, float]) -> str:
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

    def verify(
        self, answer: str | None, gold: str | None, whole_reply: bool, tolerance: float
    ) -> str:
        """Return verified, refused, timeout or crash, or how one text is read if the other is None.
        `answer` is normalised, or a whole reply."""
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
def pool_of(process: int) -> Pool:
    """Return the pool of a process: a fork must not share its parent's pipes."""
    pool = Pool()
    atexit.register(pool.close)
    return pool
