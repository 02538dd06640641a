"""The built-in problems, as rows of the MATH benchmark: kinds of problems with operands a, b, c.

The five levels are one operation, two steps, fractions, linear equations and word problems. The
answer and the worked solution follow from the kind's plan. No operands are in two splits.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from itertools import chain, cycle, zip_longest
from typing import Any, TypeVar

from agentrl_cli.core.types import derive_seed

Value = TypeVar("Value", str, Fraction)
Key = tuple[str, tuple[int, ...]]
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": Fraction}
LATEX_SIGNS = {"+": "+", "-": "-", "*": r"\cdot", "/": "/"}
MAX_DRAWS = 100_000  # per level, which has a few thousand different problems
TEST_ONE_IN = 5  # sets of operands belong to the test split
OperandSampler = Callable[[random.Random], tuple[int, ...]]
SUBJECTS = {
    1: "Arithmetic", 2: "Arithmetic", 3: "Fractions", 4: "Algebra", 5: "Word Problems",
}  # fmt: skip
LEVELS = tuple(SUBJECTS)


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


def _plan(text: str) -> Plan:
    """Return the plan of a text such as "a*b r+c" or, for a fraction, "a+b a*b=qr"."""
    operations, _, end = text.partition("=")
    return Plan(tuple(Operation(*operation) for operation in operations.split()), tuple(end or "r"))


def _kind(
    name: str, level: int, text: str, draw: OperandSampler, plan: str, misread: str, *,
    commutes: bool = False,
) -> ProblemKind:  # fmt: skip
    plans = _plan(plan), _plan(misread)
    return ProblemKind(name, level, SUBJECTS[level], text, draw, *plans, commutes)


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
TWO, THREE = _within(DIGIT, DIGIT), _within(DIGIT, DIGIT, DIGIT)
DIGITS = _within(DIGIT, DIGIT, (2, 12))
PROBLEM_KINDS = (
    _kind("sum", 1, "What is {}+{}?", _within((2, 20), (2, 20)), "a+b", "a+b", commutes=True),
    _kind("difference", 1, "What is {}-{}?", _difference, "a-b", "a-b"),
    _kind("product", 1, r"What is {}\cdot{}?", TWO, "a*b", "a*b", commutes=True),
    _kind("product_sum", 2, r"What is {}\cdot{}+{}?", DIGITS, "a*b r+c", "b+c a*r", commutes=True),
    _kind("sum_product", 2, r"What is {}+{}\cdot{}?", THREE, "b*c a+r", "a+b r*c"),
    _kind("group", 2, r"What is ({}+{})\cdot{}?", THREE, "a+b r*c", "b*c a+r", commutes=True),
    _kind("part", 3, r"What is \frac{{{}}}{{{}}} of {}?", _part_of_number, "c/b r*a", "c/b r+a"),
    _kind("like", 3, r"What is \frac{{{0}}}{{{2}}}+\frac{{{1}}}{{{2}}}?", _like_fractions,
          "a+b=rc", "a+b c+c=qr", commutes=True),
    _kind("unlike", 3, r"What is \frac{{1}}{{{}}}+\frac{{1}}{{{}}}?", _unit_fractions,
          "a+b a*b=qr", "1+1 a+b=qr", commutes=True),
    _kind("linear_plus", 4, "Solve {}x+{}={}.", _linear(1), "c-b r/a", "c+b r/a"),
    _kind("linear_minus", 4, "Solve {}x-{}={}.", _linear(-1), "c+b r/a", "c-b r/a"),
    _kind("linear_group", 4, "Solve {}(x+{})={}.", _nested, "c/a r-b", "c-b r/a"),
    _kind("sold", 5, "There are {} boxes of {} apples each. {} apples go. How many are left?",
          _product_less, "a*b r-c", "a*b r+c"),
    _kind("cost", 5, "A book costs {} dollars. How much are {} books and a card of {} dollars?",
          DIGITS, "a*b r+c", "a+c r*b"),
    _kind("share", 5, "You have {} coins and find {} more. They go to {} people alike. How many "
          "has each?", _equal_shares, "a+b r/c", "a+b r-c"),
    _kind("spent", 5, "You have {} boxes of {} coins and buy a book of {} coins. How many are "
          "left?", _product_less, "a*b r-c", "a+b r-c"),
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A kind of problem with operands."""

    kind: ProblemKind
    operands: tuple[int, ...]

    @property
    def id(self) -> str:
        return "-".join([self.kind.name, *map(str, self.operands)])

    @property
    def text(self) -> str:
        return self.kind.text.format(*self.operands)

    @property
    def answer(self) -> Fraction:
        values = self.values_by_name(plan_results(self.kind.plan, self))
        return reduce(operator.truediv, (values[name] for name in self.kind.plan.end))

    def values_by_name(self, results: Sequence[Fraction]) -> dict[str, Fraction]:
        """Return the values of a plan's names, given the results so far."""
        return bind_names([*map(Fraction, self.operands)], results) | {"1": Fraction(1)}

    def operands_of(
        self, operation: Operation, results: Sequence[Fraction]
    ) -> tuple[Fraction, Fraction]:
        """Return the two numbers of an operation, given the results so far."""
        values = self.values_by_name(results)
        return values[operation.left], values[operation.right]

    def row(self) -> dict[str, Any]:
        """Return the problem as a row of MATH, with blank lines between the solution's steps."""
        return {
            "problem": self.text,
            "level": self.kind.level,
            "subject": self.kind.subject,
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


def bind_names(operands: Sequence[Value], results: Sequence[Value]) -> dict[str, Value]:
    """Return the values of a, b, c (operands), r (last result) and q (the one before)."""
    last = zip("rq", reversed(results), strict=False)
    return dict(zip("abc", operands, strict=False)) | dict(last)


def plan_results(plan: Plan, problem: Problem) -> list[Fraction]:
    results: list[Fraction] = []
    for operation in plan.operations:
        x, y = problem.operands_of(operation, results)
        results.append(apply_operation(x, operation.sign, y))
    return results


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
    plan, results = problem.kind.plan, plan_results(problem.kind.plan, problem)
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
    operands, terms = [*map(str, problem.operands)], []
    for operation in problem.kind.plan.operations:
        names, sign = bind_names(operands, terms), operation.sign
        x, y = (_parenthesised(names[name], sign) for name in (operation.left, operation.right))
        terms.append(f"{x}{LATEX_SIGNS[sign]}{y}")
    parts = [bind_names(operands, terms)[name] for name in problem.kind.plan.end]
    return rf"\frac{{{parts[0]}}}{{{parts[1]}}}" if len(parts) == 2 else parts[0]


def _parenthesised(text: str, sign: str) -> str:
    return f"({text})" if sign in "*/" and ("+" in text or "-" in text) else text


def draw_problem(
    kinds: Sequence[ProblemKind], rng: random.Random, split: str | None, seed: int
) -> Problem:
    """Draw a problem of one of these kinds, of a split or (None) of both."""
    while True:
        kind = rng.choice(kinds)
        problem = Problem(kind, kind.draw_operands(rng))
        if split in (None, split_of(problem, seed)):
            return problem


@lru_cache(maxsize=8)
def built_in_rows(
    split: str, count: int, levels: tuple[int, ...], seed: int, trained: int = 0
) -> tuple[dict[str, Any], ...]:
    """Return `count` different problems per level as rows with ids, or fewer if a level has no
    more. Levels alternate. The `val` split is drawn like `train`, without the first `trained`
    problems of each level. The rows are shared: do not change them."""
    by_level: list[list[Problem]] = []
    for level in levels:
        others = _of_level("train", level, trained, seed) if split == "val" else []
        by_level.append(_of_level(split, level, count, seed, others))
    in_turn = chain.from_iterable(zip_longest(*by_level))
    return tuple({"id": problem.id, **problem.row()} for problem in in_turn if problem)


def _of_level(
    split: str, level: int, count: int, seed: int, others: Sequence[Problem] = ()
) -> list[Problem]:
    kinds = [kind for kind in PROBLEM_KINDS if kind.level == level]
    rng = random.Random(derive_seed("math", split, level, seed))
    operands_of = "test" if split == "test" else "train"
    seen, known = dict[Key, Problem](), {*map(_key, others)}
    draws = range(min(20 * count, MAX_DRAWS))
    for kind, _ in zip(cycle(kinds), draws, strict=False):
        problem = draw_problem([kind], rng, operands_of, seed)
        if _key(problem) not in known:
            seen.setdefault(_key(problem), problem)
        if len(seen) == count:
            break
    return list(seen.values())


def _key(problem: Problem) -> Key:
    """Return the same key for problems that ask the same."""
    return problem.kind.name, canonical_operands(problem)


def split_of(problem: Problem, seed: int) -> str:
    """Return `train` or `test`, which depends on the kind and the operands only."""
    number = derive_seed("math", "split", seed, problem.kind.name, *canonical_operands(problem))
    return "test" if number % TEST_ONE_IN == 0 else "train"


def canonical_operands(problem: Problem) -> tuple[int, ...]:
    """Return the operands, sorted if they commute."""
    pair, rest = problem.operands[:2], problem.operands[2:]
    return (*(sorted(pair) if problem.kind.commutes else pair), *rest)
