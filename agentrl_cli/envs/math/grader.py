r"""Grading: exact match after normalisation, then numbers, then math-verify.

math-verify runs in separate processes (pool.py). Without it the first two stages still grade every
problem whose answer is a number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from agentrl_cli.core.errors import UserError, require_fraction
from agentrl_cli.envs.math import pool
from agentrl_cli.envs.math.answers import boxed, labels, normalise, number

Extract = Literal["boxed", "last_math"]
MAX_ANSWER_LENGTH = 512  # characters; longer answers are wrong
MAX_REPLY_LENGTH = 4096  # characters at the end of a reply in which math-verify looks for an answer
DECIMAL_POINT = re.compile(r"\d*\.\d")
INSTALL = "pip install 'agentrl-cli[math]'"


@dataclass(frozen=True)
class Grade:
    """A verdict and its reason, truthy if correct. Correct answers are `exact`, `number` or
    `verified`. Wrong ones are `empty`, `long`, `label`, `number` or `refused`; answers that could
    not be graded, which count as wrong, are `timeout`, `crash` or `unread`."""

    correct: bool
    reason: str

    def __bool__(self) -> bool:
        return self.correct


def grade(answer: str, gold: str, extract: Extract = "boxed", tolerance: float = 0.0) -> Grade:
    r"""Compare an answer, or the last box of a reply, with the correct answer.

    With `extract="last_math"` math-verify's defaults find the answer in the reply. If one of the
    answers is a decimal, numbers may differ by `tolerance`, relative to the correct one. Safe in
    threads and on hostile text. Raises UserError if only math-verify can compare and it is not
    installed, for an unknown `extract`, and for a tolerance outside 0 to 1."""
    if extract not in get_args(Extract):
        choices = " or ".join(get_args(Extract))
        raise UserError(f"extract is '{extract}'; give {choices}", code="unknown-option")
    require_fraction(tolerance=tolerance)
    tolerance = tolerance if DECIMAL_POINT.search(f"{answer}\n{gold}") else 0.0
    return (_grade_reply if extract == "last_math" else _grade_box)(answer, gold, tolerance)


def _grade_reply(reply: str, gold: str, tolerance: float) -> Grade:
    """Grade a reply as math-verify's defaults do: several boxes are a set, and without a box the
    last formula or number counts."""
    if not reply.strip():
        return Grade(False, "empty")
    if len(boxed(reply) or "") > MAX_ANSWER_LENGTH:
        return Grade(False, "long")
    if reply.strip() == gold.strip():
        return Grade(True, "exact")
    if not pool.available():
        line = f"extract=last_math needs math-verify; {INSTALL}"
        raise UserError(line, code="missing-extra")
    outcome = pool.pool().verify(reply[-MAX_REPLY_LENGTH:], gold, True, tolerance)
    return Grade(outcome == "verified", outcome)


def _grade_box(answer: str, gold: str, tolerance: float) -> Grade:
    """Grade the last box, or the whole text if it has none."""
    inside = boxed(answer), boxed(gold)
    answer = answer if inside[0] is None else inside[0]
    gold = gold if inside[1] is None else inside[1]
    if not answer.strip():
        return Grade(False, "empty")
    if len(answer) > MAX_ANSWER_LENGTH:
        return Grade(False, "long")
    mine, right = labels(answer), labels(gold)
    if any(None not in pair and pair[0] != pair[1] for pair in zip(mine, right, strict=True)):
        return Grade(False, "label")
    # `y=2x+1` and `2x+1=y` are compared as equations: at most one of them names a value
    is_equation = "=" in answer and "=" in gold and None in (mine.name, right.name)
    answer, gold = (normalise(text, keep_name=is_equation) for text in (answer, gold))
    if answer == gold:
        return Grade(True, "exact")
    value, wanted = number(answer), number(gold)
    if value is not None and wanted is not None:
        return Grade(abs(value - wanted) <= Fraction(tolerance) * abs(wanted), "number")
    if pool.available():
        outcome = pool.pool().verify(answer, gold, False, tolerance)
        return Grade(outcome == "verified", outcome)
    if wanted is not None:
        return Grade(False, "unread")
    line = f"only math-verify can compare with '{gold[:60]}'; {INSTALL}"
    raise UserError(line, code="missing-extra")
