"""A mediocre scripted solver: the level that the embedded base of `math` imitates.

It writes one line an operation and no more. It misunderstands problems, forgets carries and
borrows, takes the neighbour in the times table, stops too soon, and forgets the box. It never
writes in the expert's form.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from fractions import Fraction

from agentrl_cli.envs.math.kinds import Plan
from agentrl_cli.envs.math.problems import Problem, box, compute, equation, quotient


@dataclass(frozen=True, kw_only=True)
class Slips:
    """Chances of each mistake: at the start (`plan`), at an operation that has a carry or a borrow
    (`carry`), at a product or a quotient (`table`), between two operations (`early`), at the end
    (`unboxed`)."""

    plan: float
    carry: float
    table: float
    early: float
    unboxed: float


@dataclass
class Work:
    """A solution in the making: the plan that is followed, its results, the steps written, and the
    first wrong one."""

    problem: Problem
    plan: Plan
    found: list[Fraction] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    wrong: int | None = None
    over: bool = False

    def text(self, begin: int = 0, end: int | None = None) -> str:
        """The steps from `begin` up to `end`, as written: a blank line parts one from the next."""
        last = len(self.steps) if end is None else end
        closed = self.over and last == len(self.steps)
        return "\n\n".join(self.steps[begin:last]) + ("" if closed else "\n\n")


@dataclass(frozen=True)
class Solver:
    """Writes solutions; what it writes next depends on the work so far and the dice."""

    slips: Slips

    def start(self, problem: Problem, rng: random.Random) -> Work:
        """An empty page and a plan, at times the wrong one."""
        misread = rng.random() < self.slips.plan
        return Work(problem, problem.kind.wrong if misread else problem.kind.plan)

    def solve(self, problem: Problem, rng: random.Random) -> Work:
        """A whole solution."""
        return self.go_on(self.start(problem, rng), rng)

    def go_on(self, work: Work, rng: random.Random) -> Work:
        """The same work, finished; the one given stays as it is. Before the first step the plan is
        drawn again."""
        fresh = self.start(work.problem, rng) if not work.steps else copy.deepcopy(work)
        while not fresh.over:
            self.step(fresh, rng)
        return fresh

    def step(self, work: Work, rng: random.Random) -> None:
        """Write the next step."""
        at, right = len(work.found), work.problem.kind.plan.lines
        if at == len(work.plan.lines):
            self._end(work, rng)
        elif at and rng.random() < self.slips.early:
            self._write(work, box(work.found[-1:]), True)
            work.over = True
        else:
            left, operation, other = line = work.plan.lines[at]
            named = work.problem.named(work.found)
            x, y = named[left], named[other]
            result = self._compute(x, operation, y, rng)
            misread = at >= len(right) or line != right[at]
            slipped = result != compute(x, operation, y)
            work.found.append(result)
            self._write(work, equation(x, operation, y, result), misread or slipped)

    def _end(self, work: Work, rng: random.Random) -> None:
        parts = [work.problem.named(work.found)[name] for name in work.plan.end]
        forgets = rng.random() < self.slips.unboxed
        self._write(work, f"The answer is {quotient(parts)}." if forgets else box(parts), False)
        work.over = True

    def _write(self, work: Work, step: str, wrong: bool) -> None:
        if wrong and work.wrong is None:
            work.wrong = len(work.steps)
        work.steps.append(step)

    def _compute(self, x: Fraction, operation: str, y: Fraction, rng: random.Random) -> Fraction:
        """The result, at times a wrong one."""
        result = compute(x, operation, y)
        if any(number.denominator > 1 for number in (x, y, result)) or min(x, y) < 0:
            return result
        if operation in "*/":
            off = 1 if operation == "/" else rng.choice((x, y))
            return result + rng.choice((-off, off)) if rng.random() < self.slips.table else result
        units = (x % 10 + y % 10) > 9 if operation == "+" else x % 10 < y % 10
        carried = units and max(x, y) > 9
        if carried and rng.random() < self.slips.carry:
            return result - 10 if operation == "+" else result + 10
        return result
