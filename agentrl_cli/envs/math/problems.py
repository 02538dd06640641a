"""The built-in problems, in MATH's row form: worked solutions, splits disjoint by operands.

A problem is a kind (kinds.py) with operands; its answer and worked solution follow from the plan.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from itertools import chain, cycle, zip_longest
from typing import Any, TypeVar

from agentrl_cli.core.types import derive_seed
from agentrl_cli.envs.math.kinds import PROBLEM_KINDS, Operation, Plan, ProblemKind

Value = TypeVar("Value", str, Fraction)
Key = tuple[str, tuple[int, ...]]
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": Fraction}
LATEX_SIGNS = {"+": "+", "-": "-", "*": r"\cdot", "/": "/"}
MAX_DRAWS = 100_000  # of a level's problems; there are some thousand different ones
TEST_ONE_IN = 5  # one in so many sets of operands is a test problem's


@dataclass(frozen=True)
class Problem:
    """A kind with operands."""

    kind: ProblemKind
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
        values = self.values_by_name(plan_results(self.kind.plan, self))
        return reduce(operator.truediv, (values[name] for name in self.kind.plan.end))

    def values_by_name(self, results: Sequence[Fraction]) -> dict[str, Fraction]:
        """The numbers behind the names of a plan, after operations with these results."""
        return bind_names([*map(Fraction, self.operands)], results) | {"1": Fraction(1)}

    def operands_of(
        self, operation: Operation, results: Sequence[Fraction]
    ) -> tuple[Fraction, Fraction]:
        """The two numbers of a plan's operation, after operations with these results."""
        values = self.values_by_name(results)
        return values[operation.left], values[operation.right]

    def row(self) -> dict[str, Any]:
        """The problem as a row of MATH; the solution's steps are parted by blank lines."""
        return {
            "problem": self.text,
            "level": self.kind.level,
            "subject": self.kind.subject,
            "solution": "\n\n".join(expert_steps(self)),
            "answer": latex(self.answer),
        }


def latex(value: Fraction | int) -> str:
    """A number as MATH writes it: a whole number or a reduced fraction."""
    value = Fraction(value)
    if value.denominator == 1:
        return str(value)
    sign = "-" if value < 0 else ""
    return rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def bind_names(operands: Sequence[Value], results: Sequence[Value]) -> dict[str, Value]:
    """a, b, c: the operands; r, q: the last result and the one before it."""
    last = zip("rq", reversed(results), strict=False)
    return dict(zip("abc", operands, strict=False)) | dict(last)


def plan_results(plan: Plan, problem: Problem) -> list[Fraction]:
    """The result of every operation of a plan."""
    results: list[Fraction] = []
    for operation in plan.operations:
        x, y = problem.operands_of(operation, results)
        results.append(apply_operation(x, operation.sign, y))
    return results


def apply_operation(x: Fraction, sign: str, y: Fraction) -> Fraction:
    """The exact result."""
    return Fraction(OPERATIONS[sign](x, y))


def equation(x: Fraction, sign: str, y: Fraction, result: Fraction) -> str:
    """An operation and its result in LaTeX."""
    return f"{latex(x)}{LATEX_SIGNS[sign]}{latex(y)}={latex(result)}"


def boxed_line(parts: Sequence[Fraction]) -> str:
    """The last line: a number, or the fraction of two as they are."""
    return rf"\boxed{{{final_number(parts)}}}"


def final_number(parts: Sequence[Fraction]) -> str:
    """A number, or the fraction of two, not reduced."""
    return rf"\frac{{{parts[0]}}}{{{parts[1]}}}" if len(parts) == 2 else latex(parts[0])


def expert_steps(problem: Problem) -> list[str]:
    """The expert's steps: what to find, each operation as mental arithmetic does it, the box."""
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
    """An operation in parts: tens before units, fives before the rest, division as a product."""
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
    """What the plan computes, as one formula."""
    operands, terms = [*map(str, problem.operands)], []
    for operation in problem.kind.plan.operations:
        names, sign = bind_names(operands, terms), operation.sign
        x, y = (_parenthesised(names[name], sign) for name in (operation.left, operation.right))
        terms.append(f"{x}{LATEX_SIGNS[sign]}{y}")
    parts = [bind_names(operands, terms)[name] for name in problem.kind.plan.end]
    return rf"\frac{{{parts[0]}}}{{{parts[1]}}}" if len(parts) == 2 else parts[0]


def _parenthesised(text: str, sign: str) -> str:
    """A sum in parentheses where `sign` binds more strongly."""
    return f"({text})" if sign in "*/" and ("+" in text or "-" in text) else text


def draw_problem(
    kinds: Sequence[ProblemKind], rng: random.Random, split: str | None, seed: int
) -> Problem:
    """A random problem of any of these kinds; of either split where `split` is None."""
    while True:
        kind = rng.choice(kinds)
        problem = Problem(kind, kind.draw_operands(rng))
        if split in (None, split_of(problem, seed)):
            return problem


@lru_cache(maxsize=8)
def built_in_rows(
    split: str, count: int, levels: tuple[int, ...], seed: int, trained: int = 0
) -> tuple[dict[str, Any], ...]:
    """The problems of a split as rows, with ids; not to be changed."""
    problems = built_in_problems(split, count, levels, seed, trained)
    return tuple({"id": problem.id, **problem.row()} for problem in problems)


def built_in_problems(
    split: str, count: int, levels: tuple[int, ...], seed: int, trained: int = 0
) -> tuple[Problem, ...]:
    """`count` different problems of each level (fewer where its operands allow no more), the levels
    in turn, so that the first few are of all. Those of `val` are as those of `train`, without the
    `trained` first ones of each level."""
    by_level: list[list[Problem]] = []
    for level in levels:
        others = _of_level("train", level, trained, seed) if split == "val" else []
        by_level.append(_of_level(split, level, count, seed, others))
    in_turn = chain.from_iterable(zip_longest(*by_level))
    return tuple(problem for problem in in_turn if problem is not None)


def _of_level(
    split: str, level: int, count: int, seed: int, others: Sequence[Problem] = ()
) -> list[Problem]:
    """Different problems, and none of the others."""
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
    """What two problems that ask the same have in common."""
    return problem.kind.name, canonical_operands(problem)


def split_of(problem: Problem, seed: int) -> str:
    """`train` or `test`, by the kind and its operands alone."""
    number = derive_seed("math", "split", seed, problem.kind.name, *canonical_operands(problem))
    return "test" if number % TEST_ONE_IN == 0 else "train"


def canonical_operands(problem: Problem) -> tuple[int, ...]:
    """The operands, those that commute in order."""
    pair, rest = problem.operands[:2], problem.operands[2:]
    return (*(sorted(pair) if problem.kind.commutes else pair), *rest)
