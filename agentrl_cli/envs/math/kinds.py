"""The kinds of built-in problems: a sentence with operands a, b, c, and the operations to solve it.

Five levels: one operation; two steps; fractions; a linear equation; a word problem.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

Line = tuple[str, str, str]  # operand, operation, operand; r: the last line's result, q: before it
Draw = Callable[[random.Random], tuple[int, ...]]
LEVELS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Plan:
    """Operations and the names of what they end with: one number, or the two of a fraction."""

    lines: tuple[Line, ...]
    end: tuple[str, ...] = ("r",)


@dataclass(frozen=True)
class Kind:
    """`wrong` is the plan of the usual misunderstanding; `commutes`: a and b in the other order are
    the same problem."""

    name: str
    level: int
    subject: str
    text: str
    draw: Draw
    plan: Plan
    wrong: Plan
    commutes: bool = False


def _pair(low: int, high: int, second: tuple[int, int]) -> Draw:
    return lambda rng: (rng.randint(low, high), rng.randint(*second))


def _difference(rng: random.Random) -> tuple[int, ...]:
    a = rng.randint(11, 40)
    return a, rng.randint(2, min(20, a - 1))


def _three(first: tuple[int, int], last: tuple[int, int]) -> Draw:
    return lambda rng: (rng.randint(*first), rng.randint(*first), rng.randint(*last))


def _product_less(rng: random.Random) -> tuple[int, ...]:
    a, b = rng.randint(2, 9), rng.randint(3, 9)
    return a, b, rng.randint(2, min(12, a * b - 1))


def _like(rng: random.Random) -> tuple[int, ...]:
    bottom = rng.randint(3, 12)
    return rng.randint(1, bottom - 1), rng.randint(1, bottom - 1), bottom


def _unlike(rng: random.Random) -> tuple[int, ...]:
    a, b = rng.sample(range(2, 10), 2)
    return a, b


def _part(rng: random.Random) -> tuple[int, ...]:
    top, bottom = sorted(rng.sample(range(2, 10), 2))
    return top, bottom, bottom * rng.randint(2, 9)


def _linear(sign: int) -> Draw:
    def draw(rng: random.Random) -> tuple[int, ...]:
        a, x, b = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 12)
        while a * x + sign * b < 2:
            a, x, b = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 12)
        return a, b, a * x + sign * b

    return draw


def _nested(rng: random.Random) -> tuple[int, ...]:
    a, b = rng.randint(2, 9), rng.randint(2, 6)
    return a, b, a * (b + rng.randint(2, 6))


def _shared(rng: random.Random) -> tuple[int, ...]:
    people, each = rng.randint(2, 9), rng.randint(3, 9)
    a = rng.randint(2, people * each - 2)
    return a, people * each - a, people


SUM, LESS, TIMES = Plan((("a", "+", "b"),)), Plan((("a", "-", "b"),)), Plan((("a", "*", "b"),))
KINDS = (
    Kind("sum", 1, "Arithmetic", "What is {}+{}?", _pair(2, 20, (2, 20)), SUM, SUM, True),
    Kind("difference", 1, "Arithmetic", "What is {}-{}?", _difference, LESS, LESS),
    Kind(
        "product", 1, "Arithmetic", r"What is {}\cdot{}?", _pair(2, 9, (2, 9)), TIMES, TIMES,
        True,
    ),
    Kind(
        "product_sum", 2, "Arithmetic", r"What is {}\cdot{}+{}?", _three((2, 9), (2, 12)),
        Plan((("a", "*", "b"), ("r", "+", "c"))), Plan((("b", "+", "c"), ("a", "*", "r"))), True,
    ),
    Kind(
        "sum_product", 2, "Arithmetic", r"What is {}+{}\cdot{}?", _three((2, 9), (2, 9)),
        Plan((("b", "*", "c"), ("a", "+", "r"))), Plan((("a", "+", "b"), ("r", "*", "c"))),
    ),
    Kind(
        "group", 2, "Arithmetic", r"What is ({}+{})\cdot{}?", _three((2, 9), (2, 9)),
        Plan((("a", "+", "b"), ("r", "*", "c"))), Plan((("b", "*", "c"), ("a", "+", "r"))), True,
    ),
    Kind(
        "part", 3, "Fractions", r"What is \frac{{{}}}{{{}}} of {}?", _part,
        Plan((("c", "/", "b"), ("r", "*", "a"))), Plan((("c", "/", "b"), ("r", "+", "a"))),
    ),
    Kind(
        "like", 3, "Fractions", r"What is \frac{{{0}}}{{{2}}}+\frac{{{1}}}{{{2}}}?", _like,
        Plan((("a", "+", "b"),), ("r", "c")),
        Plan((("a", "+", "b"), ("c", "+", "c")), ("q", "r")), True,
    ),
    Kind(
        "unlike", 3, "Fractions", r"What is \frac{{1}}{{{}}}+\frac{{1}}{{{}}}?", _unlike,
        Plan((("a", "+", "b"), ("a", "*", "b")), ("q", "r")),
        Plan((("1", "+", "1"), ("a", "+", "b")), ("q", "r")), True,
    ),
    Kind(
        "linear_plus", 4, "Algebra", "Solve {}x+{}={}.", _linear(1),
        Plan((("c", "-", "b"), ("r", "/", "a"))), Plan((("c", "+", "b"), ("r", "/", "a"))),
    ),
    Kind(
        "linear_minus", 4, "Algebra", "Solve {}x-{}={}.", _linear(-1),
        Plan((("c", "+", "b"), ("r", "/", "a"))), Plan((("c", "-", "b"), ("r", "/", "a"))),
    ),
    Kind(
        "linear_group", 4, "Algebra", "Solve {}(x+{})={}.", _nested,
        Plan((("c", "/", "a"), ("r", "-", "b"))), Plan((("c", "-", "b"), ("r", "/", "a"))),
    ),
    Kind(
        "sold", 5, "Word Problems",
        "There are {} boxes of {} apples each. {} apples go. How many are left?", _product_less,
        Plan((("a", "*", "b"), ("r", "-", "c"))), Plan((("a", "*", "b"), ("r", "+", "c"))),
    ),
    Kind(
        "cost", 5, "Word Problems",
        "A book costs {} dollars. How much are {} books and a card of {} dollars?",
        _three((2, 9), (2, 12)),
        Plan((("a", "*", "b"), ("r", "+", "c"))), Plan((("a", "+", "c"), ("r", "*", "b"))),
    ),
    Kind(
        "share", 5, "Word Problems",
        "You have {} coins and find {} more. They go to {} people alike. How many has each?",
        _shared, Plan((("a", "+", "b"), ("r", "/", "c"))), Plan((("a", "+", "b"), ("r", "-", "c"))),
    ),
    Kind(
        "spent", 5, "Word Problems",
        "You have {} boxes of {} coins and buy a book of {} coins. How many are left?",
        _product_less,
        Plan((("a", "*", "b"), ("r", "-", "c"))), Plan((("a", "+", "b"), ("r", "-", "c"))),
    ),
)  # fmt: skip
