"""The built-in problems, as rows of the MATH benchmark: kinds of problems with operands a, b, c.

The kinds are in problems.json. The five levels are one operation, two steps, fractions, linear
equations and word problems. The answer and the worked solution follow from the kind's plan. No
problem is in two splits.
"""

from __future__ import annotations

import json
import operator
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache, reduce
from itertools import chain, cycle, islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from agentrl_cli.core.types import derive_seed

Key = tuple[str | int, ...]
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": Fraction}
LATEX_SIGNS = {"+": "+", "-": "-", "*": r"\cdot", "/": "/"}
MAX_DRAWS = 100_000  # per level, which has a few thousand different problems
TEST_ONE_IN = 5  # sets of operands belong to the test split
SUBJECTS = {
    1: "Arithmetic", 2: "Arithmetic", 3: "Fractions", 4: "Algebra", 5: "Word Problems",
}  # fmt: skip
LEVELS = tuple(SUBJECTS)


class Operation(NamedTuple):
    """Two names and the sign between them: a, b, c are operands, r is the last result, q the one
    before, 1 the number."""

    left: str
    sign: str
    right: str


class Plan(NamedTuple):
    """Operations, and the names of the answer: one number, or the two of a fraction."""

    operations: tuple[Operation, ...]
    end: str


@cache
def plan_of(text: str) -> Plan:
    """Return the plan of a text such as "a*b r+c" or, for a fraction, "a+b a*b=qr"."""
    operations, _, end = text.partition("=")
    return Plan(tuple(Operation(*operation) for operation in operations.split()), end or "r")


@dataclass(frozen=True)
class ProblemKind:
    """A kind of problem. `steps` is the text of its plan. If it `commutes`, swapping a and b gives
    the same problem."""

    name: str
    level: int
    text: str
    steps: str
    commutes: bool = False

    @property
    def plan(self) -> Plan:
        return plan_of(self.steps)

    def draw_operands(self, rng: random.Random) -> tuple[int, ...]:
        """Draw operands in whole numbers, with a result in positive ones."""
        between = rng.randint
        match self.name:
            case "sum":
                return between(2, 20), between(2, 20)
            case "difference":
                a = between(11, 40)
                return a, between(2, min(20, a - 1))
            case "product":
                return between(2, 9), between(2, 9)
            case "product_sum" | "cost":
                return between(2, 9), between(2, 9), between(2, 12)
            case "sum_product" | "group":
                return between(2, 9), between(2, 9), between(2, 9)
            case "part":
                top, bottom = sorted(rng.sample(range(2, 10), 2))
                return top, bottom, bottom * between(2, 9)
            case "like":
                bottom = between(3, 12)
                return between(1, bottom - 1), between(1, bottom - 1), bottom
            case "unlike":
                return tuple(rng.sample(range(2, 10), 2))
            case "linear_plus" | "linear_minus":
                c = 0
                while c < 2:
                    a, x, b = between(2, 9), between(2, 9), between(2, 12)
                    c = a * x + (b if self.name == "linear_plus" else -b)
                return a, b, c
            case "linear_group":
                a, b = between(2, 9), between(2, 6)
                return a, b, a * (b + between(2, 6))
            case "share":
                people, each = between(2, 9), between(3, 9)
                a = between(2, people * each - 2)
                return a, people * each - a, people
            case _:  # sold, spent
                a, b = between(2, 9), between(3, 9)
                return a, b, between(2, min(12, a * b - 1))


KINDS_FILE = Path(__file__).with_name("problems.json")
PROBLEM_KINDS = tuple(ProblemKind(**row) for row in json.loads(KINDS_FILE.read_bytes()))


@dataclass(frozen=True)
class Problem:
    """A kind of problem with operands."""

    kind: ProblemKind
    operands: tuple[int, ...]

    @property
    def text(self) -> str:
        return self.kind.text.format(*self.operands)

    @property
    def key(self) -> Key:
        """The kind and the operands, sorted if they commute: equal for problems that ask the
        same."""
        pair, rest = self.operands[:2], self.operands[2:]
        return (self.kind.name, *(sorted(pair) if self.kind.commutes else pair), *rest)

    @property
    def results(self) -> list[Fraction]:
        """The results of the plan's operations."""
        results: list[Fraction] = []
        for operation in self.kind.plan.operations:
            x, y = self.operands_of(operation, results)
            results.append(apply_operation(x, operation.sign, y))
        return results

    @property
    def answer(self) -> Fraction:
        values = self.values_by_name(self.results)
        return reduce(operator.truediv, (values[name] for name in self.kind.plan.end))

    def split(self, seed: int) -> str:
        """Return `train` or `test`, which depends on the kind and the operands only."""
        number = derive_seed("math", "split", seed, *self.key)
        return "test" if number % TEST_ONE_IN == 0 else "train"

    def values_by_name(self, results: Sequence[Fraction]) -> dict[str, Fraction]:
        """Return the values of a plan's names, given the results so far."""
        values = dict(zip("abc", map(Fraction, self.operands), strict=False))
        return values | dict(zip("rq", reversed(results), strict=False)) | {"1": Fraction(1)}

    def operands_of(
        self, operation: Operation, results: Sequence[Fraction]
    ) -> tuple[Fraction, Fraction]:
        """Return the two numbers of an operation, given the results so far."""
        values = self.values_by_name(results)
        return values[operation.left], values[operation.right]

    def row(self) -> dict[str, Any]:
        """Return the problem as a row of MATH, with blank lines between the solution's steps."""
        return {
            "id": "-".join([self.kind.name, *map(str, self.operands)]),
            "problem": self.text,
            "level": self.kind.level,
            "subject": SUBJECTS[self.kind.level],
            "solution": "\n\n".join(expert_steps(self)),
            "answer": latex(self.answer),
        }


def latex(value: Fraction | int) -> str:
    """Return a number in LaTeX: an integer or a reduced fraction."""
    value = Fraction(value)
    if value.denominator == 1:
        return str(value)
    sign = "-" if value < 0 else ""
    return rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def apply_operation(x: Fraction, sign: str, y: Fraction) -> Fraction:
    return Fraction(OPERATIONS[sign](x, y))


def equation(x: Fraction, sign: str, y: Fraction, result: Fraction) -> str:
    return f"{latex(x)}{LATEX_SIGNS[sign]}{latex(y)}={latex(result)}"


def boxed_line(parts: Sequence[Fraction]) -> str:
    return rf"\boxed{{{final_number(parts)}}}"


def final_number(parts: Sequence[Fraction]) -> str:
    """Return a number in LaTeX, or the unreduced fraction of two."""
    return rf"\frac{{{parts[0]}}}{{{parts[1]}}}" if len(parts) == 2 else latex(parts[0])


def expert_steps(problem: Problem) -> list[str]:
    """Return the worked solution: the formula, each operation in mental arithmetic, the box."""
    plan, results = problem.kind.plan, problem.results
    steps = [f"Find {expression(problem)}."]
    for i, operation in enumerate(plan.operations):
        x, y = problem.operands_of(operation, results[:i])
        steps += mental_steps(x, operation.sign, y)
    values = problem.values_by_name(results)
    unreduced = final_number([values[name] for name in plan.end])
    if unreduced != latex(problem.answer):
        steps.append(f"{unreduced}={latex(problem.answer)}")
    return [*steps, boxed_line([problem.answer])]


def mental_steps(x: Fraction, sign: str, y: Fraction) -> list[str]:
    """Return an operation in parts: tens before units, fives before the rest, division as a
    product."""
    tens, units = y // 10 * 10, y % 10
    result = apply_operation(x, sign, y)
    if sign in "+-" and tens and units:
        middle = apply_operation(x, sign, Fraction(tens))
        first = equation(x, sign, Fraction(tens), middle)
        return [first, equation(middle, sign, Fraction(units), result)]
    if sign == "*" and x > 5:
        five, rest = 5 * y, (x - 5) * y
        parts = [equation(Fraction(5), "*", y, five), equation(x - 5, "*", y, rest)]
        return [*parts, equation(five, "+", rest, result)]
    if sign == "/" and result.denominator == 1:
        return [equation(y, "*", result, x)]
    return [equation(x, sign, y, result)]


def expression(problem: Problem) -> str:
    """Return the plan as one formula."""
    terms = dict(zip("abc", map(str, problem.operands), strict=False))
    for left, sign, right in problem.kind.plan.operations:
        x, y = terms[left], terms[right]
        if sign in "*/":
            x, y = (f"({term})" if "+" in term or "-" in term else term for term in (x, y))
        terms |= {"q": terms.get("r", ""), "r": f"{x}{LATEX_SIGNS[sign]}{y}"}
    parts = [terms[name] for name in problem.kind.plan.end]
    return rf"\frac{{{parts[0]}}}{{{parts[1]}}}" if len(parts) == 2 else parts[0]


def draw_problem(
    kinds: Sequence[ProblemKind], rng: random.Random, split: str | None, seed: int
) -> Problem:
    """Draw a problem of one of these kinds, of a split or (None) of both."""
    while True:
        kind = rng.choice(kinds)
        problem = Problem(kind, kind.draw_operands(rng))
        if split in (None, problem.split(seed)):
            return problem


@lru_cache(maxsize=8)
def built_in_rows(
    split: str, count: int, levels: tuple[int, ...], seed: int, trained: int = 0
) -> tuple[dict[str, Any], ...]:
    """Return `count` different problems per level as rows with ids, or fewer if a level has no
    more. Levels alternate. The `val` split is drawn like `train`, without the first `trained`
    problems of each level. The rows are shared: do not change them."""
    by_level = []
    for level in levels:
        others = _of_level("train", level, trained, seed) if split == "val" else ()
        by_level.append(_of_level(split, level, count, seed, others).values())
    in_turn = chain.from_iterable(zip_longest(*by_level))
    return tuple(problem.row() for problem in in_turn if problem)


def _of_level(
    split: str, level: int, count: int, seed: int, others: Collection[Key] = ()
) -> dict[Key, Problem]:
    kinds = [kind for kind in PROBLEM_KINDS if kind.level == level]
    rng = random.Random(derive_seed("math", split, level, seed))
    drawn_as = "test" if split == "test" else "train"
    found: dict[Key, Problem] = {}
    for kind in islice(cycle(kinds), min(20 * count, MAX_DRAWS)):
        problem = draw_problem([kind], rng, drawn_as, seed)
        if problem.key not in others:
            found.setdefault(problem.key, problem)
        if len(found) == count:
            break
    return found
