"""The built-in problems, in MATH's row form: worked solutions, splits disjoint by operands.

A problem is a kind (kinds.py) with operands; its answer and worked solution follow from the plan.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import cycle, zip_longest
from typing import Any, TypeVar

from agentrl_cli.core.types import derive_seed
from agentrl_cli.envs.math.kinds import KINDS, Kind, Plan

Value = TypeVar("Value", str, Fraction)
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": Fraction}
SIGNS = {"+": "+", "-": "-", "*": r"\cdot", "/": "/"}
TEST_SHARE = 5  # one in so many sets of operands is a test problem's


@dataclass(frozen=True)
class Problem:
    """A kind with operands."""

    kind: Kind
    operands: tuple[int, ...]

    @property
    def id(self) -> str:
        """The kind and the operands."""
        return "-".join([self.kind.name, *map(str, self.operands)])

    @property
    def text(self) -> str:
        """The sentence."""
        return self.kind.text.format(*self.operands)

    @property
    def answer(self) -> Fraction:
        """The exact answer."""
        plan = self.kind.plan
        top, *bottom = (self.named(results(plan, self))[name] for name in plan.end)
        return top / bottom[0] if bottom else top

    def named(self, found: Sequence[Fraction]) -> dict[str, Fraction]:
        """The numbers behind the names of a plan, after lines with these results."""
        return name_all([*map(Fraction, self.operands)], found) | {"1": Fraction(1)}

    def row(self) -> dict[str, Any]:
        """The problem as a row of MATH; the solution's steps are parted by blank lines."""
        return {
            "problem": self.text,
            "level": self.kind.level,
            "subject": self.kind.subject,
            "solution": "\n\n".join(worked(self)),
            "answer": latex(self.answer),
        }


def latex(value: Fraction | int) -> str:
    """A number as MATH writes it: a whole number or a reduced fraction."""
    value = Fraction(value)
    sign = "-" if value < 0 else ""
    if value.denominator == 1:
        return str(value)
    return rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def name_all(operands: Sequence[Value], found: Sequence[Value]) -> dict[str, Value]:
    """a, b, c: the operands; r, q: the last result and the one before it."""
    return dict(zip("abc", operands, strict=False)) | dict(zip("rq", reversed(found), strict=False))


def results(plan: Plan, problem: Problem) -> list[Fraction]:
    """The result of every line of a plan."""
    found: list[Fraction] = []
    for left, operation, right in plan.lines:
        named = problem.named(found)
        found.append(compute(named[left], operation, named[right]))
    return found


def compute(x: Fraction, operation: str, y: Fraction) -> Fraction:
    """The exact result."""
    return Fraction(OPERATIONS[operation](x, y))


def equation(x: Fraction, operation: str, y: Fraction, result: Fraction) -> str:
    """One line of a solution."""
    return f"{latex(x)}{SIGNS[operation]}{latex(y)}={latex(result)}"


def box(parts: Sequence[Fraction]) -> str:
    """The last line: a number, or the fraction of two as they are."""
    return rf"\boxed{{{quotient(parts)}}}"


def quotient(parts: Sequence[Fraction]) -> str:
    """A number, or the fraction of two, not reduced."""
    return rf"\frac{{{parts[0]}}}{{{parts[1]}}}" if len(parts) == 2 else latex(parts[0])


def worked(problem: Problem) -> list[str]:
    """The expert's steps: what to find, each operation in easy parts, the box."""
    plan, steps, found = problem.kind.plan, [f"Find {expression(problem)}."], []
    for left, operation, right in plan.lines:
        named = problem.named(found)
        steps += easy(named[left], operation, named[right])
        found.append(compute(named[left], operation, named[right]))
    whole = quotient([problem.named(found)[name] for name in plan.end])
    if whole != latex(problem.answer):
        steps.append(f"{whole}={latex(problem.answer)}")
    return [*steps, box([problem.answer])]


def easy(x: Fraction, operation: str, y: Fraction) -> list[str]:
    """An operation in parts: tens before units, fives before the rest, division as a product."""
    tens, units = y // 10 * 10, y % 10
    result = compute(x, operation, y)
    if operation in "+-" and tens and units:
        middle = compute(x, operation, Fraction(tens))
        first = equation(x, operation, Fraction(tens), middle)
        return [first, equation(middle, operation, Fraction(units), result)]
    if operation == "*" and x > 5:
        five, rest = 5 * y, (x - 5) * y
        parts = [equation(Fraction(5), "*", y, five), equation(x - 5, "*", y, rest)]
        return [*parts, equation(five, "+", rest, result)]
    if operation == "/" and result.denominator == 1:
        return [equation(y, "*", result, x)]
    return [equation(x, operation, y, result)]


def expression(problem: Problem) -> str:
    """What the plan computes, as one formula."""
    operands, found = [*map(str, problem.operands)], []
    for left, operation, right in problem.kind.plan.lines:
        named = name_all(operands, found)
        x, y = (_grouped(named[name], operation) for name in (left, right))
        found.append(f"{x}{SIGNS[operation]}{y}")
    parts = [name_all(operands, found)[name] for name in problem.kind.plan.end]
    return rf"\frac{{{parts[0]}}}{{{parts[1]}}}" if len(parts) == 2 else parts[0]


def _grouped(text: str, operation: str) -> str:
    return f"({text})" if operation in "*/" and ("+" in text or "-" in text) else text


def drawn(kinds: Sequence[Kind], rng: random.Random, split: str | None, seed: int) -> Problem:
    """A random problem of any of these kinds; of either split where `split` is None."""
    while True:
        kind = rng.choice(kinds)
        problem = Problem(kind, kind.draw(rng))
        if split in (None, split_of(problem, seed)):
            return problem


@lru_cache(maxsize=8)
def rows(split: str, count: int, levels: tuple[int, ...], seed: int) -> tuple[dict[str, Any], ...]:
    """The problems of a split as rows, with ids; not to be changed."""
    return tuple({"id": one.id, **one.row()} for one in problems(split, count, levels, seed))


def problems(split: str, count: int, levels: tuple[int, ...], seed: int) -> tuple[Problem, ...]:
    """`count` different problems of each level (fewer where its operands allow no more), the levels
    in turn, so that the first few are of all."""
    rows: list[list[Problem]] = []
    for level in levels:
        kinds = [kind for kind in KINDS if kind.level == level]
        rng = random.Random(derive_seed("math", split, level, seed))
        rows.append(_distinct(kinds, count, rng, split, seed))
    return tuple(one for turn in zip_longest(*rows) for one in turn if one is not None)


def _distinct(
    kinds: list[Kind], count: int, rng: random.Random, split: str, seed: int
) -> list[Problem]:
    seen: dict[tuple[str, tuple[int, ...]], Problem] = {}
    for kind, _ in zip(cycle(kinds), range(20 * count), strict=False):
        problem = drawn([kind], rng, split, seed)
        seen.setdefault((kind.name, canonical(problem)), problem)
        if len(seen) == count:
            break
    return list(seen.values())


def split_of(problem: Problem, seed: int) -> str:
    """`train` or `test`, by the kind and its operands alone."""
    number = derive_seed("math", "split", seed, problem.kind.name, *canonical(problem))
    return "test" if number % TEST_SHARE == 0 else "train"


def canonical(problem: Problem) -> tuple[int, ...]:
    """The operands, those that commute in order."""
    a, b, *rest = problem.operands
    if problem.kind.commutes and a > b:
        a, b = b, a
    return (a, b, *rest)
