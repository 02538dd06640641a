r"""Is an answer the right one: exact after normalisation, numbers and fractions, then math-verify.

math-verify runs in processes of its own (pool.py); without it the first two stages still grade
every problem whose answer is a number.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_cli.core.errors import UserError
from agentrl_cli.envs.math import pool
from agentrl_cli.envs.math.answers import boxed, labels, normalise, number

MAX_ANSWER_LENGTH = 512  # characters of an answer that is read at all


@dataclass(frozen=True)
class Grade:
    """Whether an answer is right and which stage said so: `exact`, `number`, `verified`; wrong are
    `empty`, `long`, `label`, `number`, `refused`, and apart from these `timeout`, `crash` and
    `unread`. Truthy when correct."""

    correct: bool
    reason: str

    def __bool__(self) -> bool:
        return self.correct


def grade(answer: str, gold: str) -> Grade:
    r"""Compare an answer, or the last box of a reply, with the right answer. Safe in threads and on
    hostile text. Raises UserError where only math-verify can tell and it is not installed."""
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
    return _compare(normalise(answer, keep_name=whole), normalise(gold, keep_name=whole))


def _compare(answer: str, gold: str) -> Grade:
    """The grade of a normalised answer."""
    if answer == gold:
        return Grade(True, "exact")
    value, wanted = number(answer), number(gold)
    if value is not None and wanted is not None:
        return Grade(value == wanted, "number")
    return _verify(answer, gold, gold_is_number=wanted is not None)


def _differ(mine: str | None, right: str | None) -> bool:
    """Whether both are given and not the same."""
    return None not in (mine, right) and mine != right


def _boxed_or_text(text: str) -> str:
    """What the last box holds, or the text itself where there is none."""
    content = boxed(text)
    return text if content is None else content


def _verify(answer: str, gold: str, *, gold_is_number: bool) -> Grade:
    if pool.available():
        outcome = pool.verify(answer, gold)
        return Grade(outcome == "verified", outcome)
    if gold_is_number:
        return Grade(False, "unread")
    raise UserError(
        f"only math-verify can compare with '{gold[:60]}'; pip install 'agentrl-cli[math]'"
    )
