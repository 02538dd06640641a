r"""Is an answer the right one: exact after normalisation, numbers and fractions, then math-verify.

math-verify runs in processes of its own (pool.py); without it the first two stages still grade
every problem whose answer is a number.
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
MAX_ANSWER_LENGTH = 512  # characters of an answer that is read at all
MAX_REPLY_LENGTH = 4096  # of the end of a reply, in which math-verify looks for an answer
DECIMAL_POINT = re.compile(r"\d*\.\d")


@dataclass(frozen=True)
class Grade:
    """Whether an answer is right and which stage said so: `exact`, `number`, `verified`; wrong are
    `empty`, `long`, `label`, `number`, `refused`, and apart from these `timeout`, `crash` and
    `unread`. Truthy when correct."""

    correct: bool
    reason: str

    def __bool__(self) -> bool:
        return self.correct


def grade(answer: str, gold: str, extract: Extract = "boxed", tolerance: float = 0.0) -> Grade:
    r"""Compare an answer, or the last box of a reply, with the right answer; with
    `extract="last_math"` whatever math-verify's own defaults find in the reply. Where one of them
    is written as a decimal, numbers may differ by `tolerance`, a share of the right one. Safe in
    threads and on hostile text. Raises UserError where only math-verify can tell and it is not
    installed, and for an unknown `extract` or a tolerance outside of 0 to 1."""
    if extract not in get_args(Extract):
        choices = " or ".join(get_args(Extract))
        raise UserError(f"extract is '{extract}'; give {choices}")
    require_fraction(tolerance=tolerance)
    tolerance = tolerance if DECIMAL_POINT.search(f"{answer}\n{gold}") else 0.0
    return (_grade_reply if extract == "last_math" else _grade_box)(answer, gold, tolerance)


def _grade_reply(reply: str, gold: str, tolerance: float) -> Grade:
    """The grade of a reply as math-verify's defaults read it: boxes beside each other are a set,
    without a box the last formula or number counts."""
    if not reply.strip():
        return Grade(False, "empty")
    if len(boxed(reply) or "") > MAX_ANSWER_LENGTH:
        return Grade(False, "long")
    if reply.strip() == gold.strip():
        return Grade(True, "exact")
    if not pool.available():
        line = "extract=last_math reads replies through math-verify"
        raise UserError(f"{line}; pip install 'agentrl-cli[math]'")
    outcome = pool.verify(reply[-MAX_REPLY_LENGTH:], gold, whole_reply=True, tolerance=tolerance)
    return Grade(outcome == "verified", outcome)


def _grade_box(answer: str, gold: str, tolerance: float) -> Grade:
    """The grade of the last box, or of the text where there is none."""
    answer, gold = _boxed_or_text(answer), _boxed_or_text(gold)
    if not answer.strip():
        return Grade(False, "empty")
    if len(answer) > MAX_ANSWER_LENGTH:
        return Grade(False, "long")
    mine, right = labels(answer), labels(gold)
    if _differ(mine.name, right.name) or _differ(mine.unit, right.unit):
        return Grade(False, "label")
    # equations, of which one at most names a value: `y=2x+1` and `2x+1=y` are compared whole
    whole = "=" in answer and "=" in gold and None in (mine.name, right.name)
    mine_read, right_read = (normalise(text, keep_name=whole) for text in (answer, gold))
    return _compare(mine_read, right_read, tolerance)


def _compare(answer: str, gold: str, tolerance: float) -> Grade:
    """The grade of a normalised answer."""
    if answer == gold:
        return Grade(True, "exact")
    value, wanted = number(answer), number(gold)
    if value is not None and wanted is not None:
        return Grade(abs(value - wanted) <= Fraction(tolerance) * abs(wanted), "number")
    return _verify(answer, gold, tolerance, gold_is_number=wanted is not None)


def _differ(mine: str | None, right: str | None) -> bool:
    """Whether both are given and not the same."""
    return None not in (mine, right) and mine != right


def _boxed_or_text(text: str) -> str:
    """What the last box holds, or the text itself where there is none."""
    content = boxed(text)
    return text if content is None else content


def _verify(answer: str, gold: str, tolerance: float, *, gold_is_number: bool) -> Grade:
    if pool.available():
        outcome = pool.verify(answer, gold, tolerance=tolerance)
        return Grade(outcome == "verified", outcome)
    if gold_is_number:
        return Grade(False, "unread")
    raise UserError(
        f"only math-verify can compare with '{gold[:60]}'; pip install 'agentrl-cli[math]'"
    )
