"""A mediocre scripted solver, which the bundled model of `arithmetic` imitates.

It writes one line per operation. It misunderstands problems, forgets carries and borrows, takes a
neighbour in the times table, stops too early, and forgets the box. These mistakes are habits that
depend on the numbers, so most of them repeat.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from fractions import Fraction

from agentrl_cli.envs.math import problems
from agentrl_cli.envs.math.problems import Plan, Problem, plan_of
from tools.tiny_models.base import Habits

MISREADINGS = {  # the plan of the usual mistake in each kind of problem
    "sum": "a+b", "difference": "a-b", "product": "a*b", "product_sum": "b+c a*r",
    "sum_product": "a+b r*c", "group": "b*c a+r", "part": "c/b r+a", "like": "a+b c+c=qr",
    "unlike": "1+1 a+b=qr", "linear_plus": "c+b r/a", "linear_minus": "c-b r/a",
    "linear_group": "c-b r/a", "sold": "a*b r+c", "cost": "a+c r*b", "share": "a+b r-c",
    "spent": "a+b r-c",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SolverHabits(Habits):
    """The solver's mistakes and their occasions: a problem (`plan`: the kind and the first
    operand's units), an operation with a carry or a borrow (`carry`: both units), a product or a
    quotient (`table`: both numbers), the place between two operations (`early`: the last result's
    units), the end (`unboxed`: the result's units)."""

    player = "solver"


@dataclass
class Solution:
    """An unfinished solution: its plan, results, written steps, and the index of the first wrong
    step. A last step without a box is wrong."""

    problem: Problem
    plan: Plan
    results: list[Fraction] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    first_wrong: int | None = None
    over: bool = False

    def text(self, begin: int = 0, end: int | None = None) -> str:
        """Return the steps from `begin` up to `end`, with a blank line after each but the last."""
        last = len(self.steps) if end is None else end
        closed = self.over and last == len(self.steps)
        return "\n\n".join(self.steps[begin:last]) + ("" if closed else "\n\n")

    def before(self, step: int) -> Solution:
        first = None if self.first_wrong is None or self.first_wrong >= step else self.first_wrong
        return Solution(self.problem, self.plan, self.results[:step], self.steps[:step], first)


@dataclass(frozen=True)
class Solver:
    """Writes solutions; the next step depends on the solution so far and the random draws."""

    habits: SolverHabits

    def start(self, problem: Problem, rng: random.Random) -> Solution:
        """Return an empty solution with a plan, sometimes a wrong one."""
        kind, units = problem.kind, problem.operands[0] % 10
        misread = rng.random() < self.habits.chance("plan", kind.name, units)
        return Solution(problem, plan_of(MISREADINGS[kind.name]) if misread else kind.plan)

    def solve(self, problem: Problem, rng: random.Random) -> Solution:
        return self.finish(self.start(problem, rng), rng)

    def finish(self, solution: Solution, rng: random.Random) -> Solution:
        """Return a finished copy of a solution. Before the first step the plan is drawn again."""
        fresh = self._begun(solution, rng)
        while not fresh.over:
            self._write_step(fresh, rng)
        return fresh

    def step(self, solution: Solution, rng: random.Random) -> Solution:
        """Return a copy with one more step. Before the first step the plan is drawn again."""
        fresh = self._begun(solution, rng)
        self._write_step(fresh, rng)
        return fresh

    def _begun(self, solution: Solution, rng: random.Random) -> Solution:
        return copy.deepcopy(solution) if solution.steps else self.start(solution.problem, rng)

    def _write_step(self, solution: Solution, rng: random.Random) -> None:
        at, right = len(solution.results), solution.problem.kind.plan.operations
        if at == len(solution.plan.operations):
            self._end(solution, rng)
        elif at and rng.random() < self.habits.chance("early", solution.results[-1] % 10):
            _write(solution, problems.boxed_line(solution.results[-1:]), True)
            solution.over = True
        else:
            operation = solution.plan.operations[at]
            x, y = solution.problem.operands_of(operation, solution.results)
            result = self.compute(x, operation.sign, y, rng)
            misread = at >= len(right) or operation != right[at]
            slipped = result != problems.apply_operation(x, operation.sign, y)
            solution.results.append(result)
            _write(solution, problems.equation(x, operation.sign, y, result), misread or slipped)

    def _end(self, solution: Solution, rng: random.Random) -> None:
        values = solution.problem.values_by_name(solution.results)
        parts = [values[name] for name in solution.plan.end]
        forgets = rng.random() < self.habits.chance("unboxed", parts[-1] % 10)
        unboxed = f"The answer is {problems.final_number(parts)}."
        _write(solution, unboxed if forgets else problems.boxed_line(parts), forgets)
        solution.over = True

    def compute(self, x: Fraction, sign: str, y: Fraction, rng: random.Random) -> Fraction:
        result = problems.apply_operation(x, sign, y)
        if any(number.denominator > 1 for number in (x, y, result)) or min(x, y) < 0:
            return result
        if sign in "*/":
            off = 1 if sign == "/" else rng.choice((x, y))
            slips = rng.random() < self.habits.chance("table", x, sign, y)
            return result + rng.choice((-off, off)) if slips else result
        units = (x % 10 + y % 10) > 9 if sign == "+" else x % 10 < y % 10
        if units and max(x, y) > 9:
            if rng.random() < self.habits.chance("carry", sign, x % 10, y % 10):
                return result - 10 if sign == "+" else result + 10
        return result


def _write(solution: Solution, step: str, wrong: bool) -> None:
    if wrong and solution.first_wrong is None:
        solution.first_wrong = len(solution.steps)
    solution.steps.append(step)
