r"""Is an answer the right one: exact after normalisation, numbers and fractions, then math-verify.

math-verify runs in processes of its own (pool.py); without it the first two stages still grade
every problem whose answer is a number.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_cli.core.errors import UserError
from agentrl_cli.envs.math import pool
from agentrl_cli.envs.math.answers import boxed, labels, normalise, number

LONGEST = 512  # characters of an answer that is read at all


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
    answer, gold = _inner(answer), _inner(gold)
    if not answer.strip():
        return Grade(False, "empty")
    if len(answer) > LONGEST:
        return Grade(False, "long")
    names, units = zip(labels(answer), labels(gold), strict=True)
    if any(None not in pair and pair[0] != pair[1] for pair in (names, units)):
        return Grade(False, "label")
    both = "=" in answer and "=" in gold and None in names  # equations, of which one names a value
    mine, right = normalise(answer, keep_name=both), normalise(gold, keep_name=both)
    if mine == right:
        return Grade(True, "exact")
    value, wanted = number(mine), number(right)
    if value is not None and wanted is not None:
        return Grade(value == wanted, "number")
    return _verified(mine, right, wanted is not None)


def _inner(text: str) -> str:
    """What the last box holds, or the text itself where there is none."""
    found = boxed(text)
    return text if found is None else found


def _verified(answer: str, gold: str, plain: bool) -> Grade:
    if pool.available():
        verdict = pool.verify(answer, gold)
        return Grade(verdict == "verified", verdict)
    if plain:
        return Grade(False, "unread")
    raise UserError(
        f"only math-verify can compare with '{gold[:60]}'; pip install 'agentrl-cli[math]'"
    )
