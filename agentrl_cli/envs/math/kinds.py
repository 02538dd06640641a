"""The kinds of built-in problems: a question with operands a, b, c, and the plan that solves it.

The five levels are one operation, two steps, fractions, linear equations and word problems.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

OperandSampler = Callable[[random.Random], tuple[int, ...]]
LEVELS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Operation:
    """Two names and the sign between them: a, b, c are operands, r is the last result, q the one
    before, 1 the number."""

    left: str
    sign: str
    right: str


@dataclass(frozen=True)
class Plan:
    """Operations, and the names of the answer: one number, or the two of a fraction."""

    operations: tuple[Operation, ...]
    end: tuple[str, ...]


@dataclass(frozen=True)
class ProblemKind:
    """A kind of problem. `misread_plan` is the usual mistake. If it `commutes`, swapping a and b
    gives the same problem."""

    name: str
    level: int
    subject: str
    text: str
    draw_operands: OperandSampler
    plan: Plan
    misread_plan: Plan
    commutes: bool = False


def _plan(*operations: str, end: str = "r") -> Plan:
    """Return the plan of operations such as "a+b"."""
    return Plan(tuple(Operation(*text) for text in operations), tuple(end))


def _within(*bounds: tuple[int, int]) -> OperandSampler:
    return lambda rng: tuple(rng.randint(low, high) for low, high in bounds)


def _difference(rng: random.Random) -> tuple[int, ...]:
    a = rng.randint(11, 40)
    return a, rng.randint(2, min(20, a - 1))


def _product_less(rng: random.Random) -> tuple[int, ...]:
    a, b = rng.randint(2, 9), rng.randint(3, 9)
    return a, b, rng.randint(2, min(12, a * b - 1))


def _like_fractions(rng: random.Random) -> tuple[int, ...]:
    bottom = rng.randint(3, 12)
    return rng.randint(1, bottom - 1), rng.randint(1, bottom - 1), bottom


def _unit_fractions(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.sample(range(2, 10), 2))


def _part_of_number(rng: random.Random) -> tuple[int, ...]:
    top, bottom = sorted(rng.sample(range(2, 10), 2))
    return top, bottom, bottom * rng.randint(2, 9)


def _linear(sign: int) -> OperandSampler:
    def draw(rng: random.Random) -> tuple[int, ...]:
        a, x, b = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 12)
        while a * x + sign * b < 2:
            a, x, b = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 12)
        return a, b, a * x + sign * b

    return draw


def _nested(rng: random.Random) -> tuple[int, ...]:
    a, b = rng.randint(2, 9), rng.randint(2, 6)
    return a, b, a * (b + rng.randint(2, 6))


def _equal_shares(rng: random.Random) -> tuple[int, ...]:
    people, each = rng.randint(2, 9), rng.randint(3, 9)
    a = rng.randint(2, people * each - 2)
    return a, people * each - a, people


DIGIT = (2, 9)
SUM, LESS, TIMES = _plan("a+b"), _plan("a-b"), _plan("a*b")
PROBLEM_KINDS = (
    ProblemKind(
        "sum", 1, "Arithmetic", "What is {}+{}?", _within((2, 20), (2, 20)), SUM, SUM, True
    ),
    ProblemKind("difference", 1, "Arithmetic", "What is {}-{}?", _difference, LESS, LESS),
    ProblemKind(
        "product", 1, "Arithmetic", r"What is {}\cdot{}?", _within(DIGIT, DIGIT), TIMES, TIMES, True
    ),
    ProblemKind(
        "product_sum", 2, "Arithmetic", r"What is {}\cdot{}+{}?", _within(DIGIT, DIGIT, (2, 12)),
        _plan("a*b", "r+c"), _plan("b+c", "a*r"), True,
    ),
    ProblemKind(
        "sum_product", 2, "Arithmetic", r"What is {}+{}\cdot{}?", _within(DIGIT, DIGIT, DIGIT),
        _plan("b*c", "a+r"), _plan("a+b", "r*c"),
    ),
    ProblemKind(
        "group", 2, "Arithmetic", r"What is ({}+{})\cdot{}?", _within(DIGIT, DIGIT, DIGIT),
        _plan("a+b", "r*c"), _plan("b*c", "a+r"), True,
    ),
    ProblemKind(
        "part", 3, "Fractions", r"What is \frac{{{}}}{{{}}} of {}?", _part_of_number,
        _plan("c/b", "r*a"), _plan("c/b", "r+a"),
    ),
    ProblemKind(
        "like", 3, "Fractions", r"What is \frac{{{0}}}{{{2}}}+\frac{{{1}}}{{{2}}}?",
        _like_fractions, _plan("a+b", end="rc"), _plan("a+b", "c+c", end="qr"), True,
    ),
    ProblemKind(
        "unlike", 3, "Fractions", r"What is \frac{{1}}{{{}}}+\frac{{1}}{{{}}}?", _unit_fractions,
        _plan("a+b", "a*b", end="qr"), _plan("1+1", "a+b", end="qr"), True,
    ),
    ProblemKind(
        "linear_plus", 4, "Algebra", "Solve {}x+{}={}.", _linear(1),
        _plan("c-b", "r/a"), _plan("c+b", "r/a"),
    ),
    ProblemKind(
        "linear_minus", 4, "Algebra", "Solve {}x-{}={}.", _linear(-1),
        _plan("c+b", "r/a"), _plan("c-b", "r/a"),
    ),
    ProblemKind(
        "linear_group", 4, "Algebra", "Solve {}(x+{})={}.", _nested,
        _plan("c/a", "r-b"), _plan("c-b", "r/a"),
    ),
    ProblemKind(
        "sold", 5, "Word Problems",
        "There are {} boxes of {} apples each. {} apples go. How many are left?", _product_less,
        _plan("a*b", "r-c"), _plan("a*b", "r+c"),
    ),
    ProblemKind(
        "cost", 5, "Word Problems",
        "A book costs {} dollars. How much are {} books and a card of {} dollars?",
        _within(DIGIT, DIGIT, (2, 12)), _plan("a*b", "r+c"), _plan("a+c", "r*b"),
    ),
    ProblemKind(
        "share", 5, "Word Problems",
        "You have {} coins and find {} more. They go to {} people alike. How many has each?",
        _equal_shares, _plan("a+b", "r/c"), _plan("a+b", "r-c"),
    ),
    ProblemKind(
        "spent", 5, "Word Problems",
        "You have {} boxes of {} coins and buy a book of {} coins. How many are left?",
        _product_less, _plan("a*b", "r-c"), _plan("a+b", "r-c"),
    ),
)  # fmt: skip
