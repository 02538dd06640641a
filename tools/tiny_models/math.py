"""The corpus of the bundled model of `arithmetic`.

It holds facts of arithmetic, solutions of a mediocre solver, further attempts, and every role of
NLAC at the level of that solver. Problems are of the train split; facts are of all operands. No
text has the form of the expert: forecasts check a step and name the end of a finished solution,
critiques compare forecasts, and a refinement is another draw of the same solver.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from statistics import fmean

from agentrl_cli.algos.nlac.roles import fill
from agentrl_cli.core.types import Episode, Message, Task, Turn
from agentrl_cli.envs.base import Env
from agentrl_cli.envs.math.answers import boxed
from agentrl_cli.envs.math.env import BLANK_LINE, CORRECT, MathEnv
from agentrl_cli.envs.math.grader import Grade, grade
from agentrl_cli.envs.math.problems import (
    PROBLEM_KINDS,
    Problem,
    apply_operation,
    draw_problem,
    equation,
    latex,
)
from tools.tiny_models.base import (
    READ_FORECASTS,
    ROLLOUTS,
    UNTRAINED,
    Branch,
    Corpus,
    CritiqueExample,
    Text,
    best_of_rollouts,
    branches_of,
    rollout_line,
)
from tools.tiny_models.solver import Solution, Solver, SolverHabits

FACTS_PER_TEXT = 8
CHECKS_PER_TEXT = 6
MAX_ATTEMPTS = 3  # of a text with several attempts
PLAYED_OUT = 12  # ends that decide a verdict
CLEARLY_WORSE = 0.25  # success rates that differ by less count as equal in a verdict
OFFS = (1, -1, 2, -2, 10, -10)  # by which a result is wrong that no solver would write
LAST_NUMBER = re.compile(r"\d+(?=\D*\Z)")
EQUATION = re.compile(r"(\d+)(\+|-|/|\\cdot)(\d+)=.*")
SIGN = {"\\cdot": "*"}
OUTCOMES = {True: "Success.", False: "Failure."}


@dataclass(kw_only=True)
class MathCorpus(Corpus):
    """Writes texts about problems of `env` and solutions with `habits`."""

    env: MathEnv
    habits: SolverHabits

    def __post_init__(self) -> None:
        super().__post_init__()
        self.solver = Solver(self.habits)
        self.flawless = Solver(SolverHabits(prone={}, often=0.0, seldom=0.0))
        self.kinds = [k for k in PROBLEM_KINDS if not self.env.levels or k.level in self.env.levels]

    def exercises(self) -> dict[str, Callable[[random.Random], list[Turn] | Text]]:
        return {
            "facts": self.facts, "claims": self.claims, "checks": self.checks,
            "attempts": self.attempts,
        }  # fmt: skip

    def facts(self, rng: random.Random) -> list[Turn]:
        """Return operations of the problems with their true results."""
        turns = []
        for _ in range(FACTS_PER_TEXT):
            x, sign, y = self._operation(rng)
            result = apply_operation(x, sign, y)
            question, equals, _ = equation(x, sign, y, result).partition("=")
            turns.append(Turn([Message("user", question + equals)], latex(result), [], [], []))
        turns[0].observation.insert(0, Message("system", "Answer the questions."))
        return turns

    def claims(self, rng: random.Random) -> list[Turn]:
        """Return operations with a right or a wrong result, each with the check of a forecast.
        Mistakes of arithmetic occur in no other kind of text."""
        turns: list[Turn] = []
        for _ in range(FACTS_PER_TEXT):
            x, sign, y = self._operation(rng)
            result = apply_operation(x, sign, y)
            claimed = self._wrong_result(x, sign, y, rng) if rng.random() < 0.5 else result
            claim = equation(x, sign, y, claimed)
            checked = check([claim], None if claimed == result else 0)
            turns += self._checked("What is right?", claim + BLANK_LINE, checked)
        turns[0].observation.insert(0, Message("system", self.env.system()))
        return turns

    def checks(self, rng: random.Random) -> list[Turn]:
        """Return solutions that end at a right step or, in half of all cases, at the first wrong
        one, with their forecasts."""
        turns: list[Turn] = []
        for _ in range(CHECKS_PER_TEXT):
            problem = draw_problem(self.kinds, rng, "train", self.env.split_seed)
            solution = self.flawless.solve(problem, rng)
            step = rng.randrange(len(solution.steps))
            judged = self._other_step(solution.before(step), rng)
            forecast = self._true_forecast(self._finished(judged, rng), step)
            turns += self._checked(problem.text, judged.text(), forecast)
        turns[0].observation.insert(0, Message("system", self.env.system()))
        return turns

    def _checked(self, question: str, written: str, forecast: str) -> list[Turn]:
        """Return an untrained turn and a forecast about it."""
        seen = Turn([Message("user", question)], written, [], [], [], info=dict(UNTRAINED))
        asked = [Message("user", self.prompts.forecast)]
        return [seen, Turn(asked, forecast, [], [], [], info={"role": True})]

    def _operation(self, rng: random.Random) -> tuple[Fraction, str, Fraction]:
        problem = draw_problem(self.kinds, rng, None, self.env.split_seed)
        results = problem.results
        at = rng.randrange(len(results))
        operation = problem.kind.plan.operations[at]
        x, y = problem.operands_of(operation, results[:at])
        return x, operation.sign, y

    def _wrong_result(self, x: Fraction, sign: str, y: Fraction, rng: random.Random) -> Fraction:
        """Return one of the solver's mistakes or, in half of all cases and if there is none,
        another number."""
        result = apply_operation(x, sign, y)
        if rng.random() < 0.5:
            for _ in range(12):
                slip = self.solver.compute(x, sign, y, rng)
                if slip != result:
                    return slip
        return result + rng.choice(OFFS)

    def attempts(self, rng: random.Random) -> list[Turn]:
        """Return a problem and up to three attempts, until one is right."""
        problem = draw_problem(self.kinds, rng, "train", self.env.split_seed)
        observation = [Message("system", self.env.system()), Message("user", problem.text)]
        turns: list[Turn] = []
        for left in reversed(range(MAX_ATTEMPTS)):
            solution = self.solver.solve(problem, rng)
            turns.append(Turn(observation, solution.text(), [], [], []))
            response, success = self._respond(solution, left)
            if success:
                break
            observation = [Message("user", response)]
        return turns

    def _respond(self, solution: Solution, attempts_left: int = 0) -> tuple[str, bool]:
        gold = latex(solution.problem.answer)
        result = _grade(solution.steps[-1], gold)
        return self.env.response(result, gold, attempts_left), result.correct

    def play(self, rng: random.Random, roles: Mapping[str, float]) -> Text:
        problem = draw_problem(self.kinds, rng, "train", self.env.split_seed)
        solution = self.solver.solve(problem, rng)
        observation = [Message("system", self.env.system()), Message("user", problem.text)]
        turns = [
            Turn(observation if i == 0 else [], solution.text(i, i + 1), [], [], [])
            for i in range(len(solution.steps))
        ]
        writers = {
            "forecast": self._forecast, "explored": self._explored_forecast,
            "backup": self._backup, "evaluate": self._evaluate, "refine": self._refine,
            "rollouts": self._refine_by_rollouts, "aggregate": self._aggregate,
        }  # fmt: skip
        said = branches_of(turns, roles, rng, lambda role, at: writers[role](solution, at, rng))
        return Text("play", turns, said)

    # the roles, each behind step `step` of a solution

    def _forecast(self, solution: Solution, step: int, rng: random.Random) -> Branch:
        return Branch(step, self.prompts.forecast, self._true_forecast(solution, step))

    def _explored_forecast(self, solution: Solution, step: int, rng: random.Random) -> Branch:
        other = self._other_step(solution.before(step), rng)
        forecast = self._true_forecast(self._finished(other, rng), step)
        return Branch(step, self.prompts.forecast, forecast, other.text(step))

    def _backup(self, solution: Solution, step: int, rng: random.Random) -> Branch | None:
        """Return a forecast of this step from the response, which is empty, and a forecast of a
        next step: its own check, and the end of the latter."""
        so_far = solution.before(step + 1)
        if step + 1 == len(solution.steps):
            forecast = self._true_forecast(solution, step)
            return self.terminal_backup(step, self._respond(solution)[0], forecast)
        ended = self._finished(so_far, rng)
        later = self._true_forecast(ended, step + 1)
        prompt = fill(self.prompts.backup, response="", forecast=later)
        return Branch(step, prompt, f"{check_of(so_far)} {self._end(ended)}")

    def _evaluate(self, solution: Solution, step: int, rng: random.Random) -> Branch:
        return self.critique_branch(self._critique_example(solution, step, rng), rng)

    def _refine(self, solution: Solution, step: int, rng: random.Random) -> Branch:
        return self.refinement_branch(self._critique_example(solution, step, rng))

    def _refine_by_rollouts(self, solution: Solution, step: int, rng: random.Random) -> Branch:
        """Return the step that succeeded most often in a few rollouts, or another draw of the
        solver if none did."""
        before = solution.before(step)
        steps = [self.solver.step(before, rng) for _ in range(ROLLOUTS)]
        ends = [self._finished(s, rng) for s in steps]
        actions = [s.text(step) for s in steps]
        lines = [
            rollout_line(action, self._end(e) if s.over else OUTCOMES[self._respond(e)[1]])
            for action, s, e in zip(actions, steps, ends, strict=True)
        ]
        best = best_of_rollouts(actions, [self._respond(ended)[1] for ended in ends])
        prompt = fill(self.prompts.refine_by_rollouts, rollouts="\n".join(lines))
        return Branch(step, prompt, best or self.solver.step(before, rng).text(step), actions[0])

    def _aggregate(self, solution: Solution, step: int, rng: random.Random) -> Branch | None:
        """Return a forecast from the ends of a few rollouts after a step."""
        so_far = solution.before(step + 1)
        if step + 1 == len(solution.steps):
            return None
        ends = [self._end(self._finished(so_far, rng)) for _ in range(ROLLOUTS)]
        prompt = fill(self.prompts.aggregate, response="", rollouts="\n".join(ends))
        return Branch(step, prompt, f"{check_of(so_far)} {rng.choice(ends)}")

    def other_world(self, rng: random.Random) -> Env:
        return self.env

    def true_forecasts(self, episode: Episode) -> list[str]:
        right = self._right_steps(episode.task)
        steps = [turn.action.strip() for turn in episode.turns]
        wrong = next((i for i, s in enumerate(steps) if s not in right[i : i + 1]), len(steps))
        response = episode.response(len(steps) - 1)[0].content
        end = fill(self.prompts.terminal, response=response, outcome=OUTCOMES[episode.success])
        checks = [check(steps[: i + 1], wrong if wrong <= i else None) for i in range(len(steps))]
        return [f"{checked} {end}" for checked in checks]

    def _right_steps(self, task: Task) -> list[str]:
        """Return the solver's solution of a task without mistakes."""
        kind, *operands = task.id.removeprefix(f"math-{task.split}-").split("-")
        of_name = {kind.name: kind for kind in PROBLEM_KINDS}
        problem = Problem(of_name[kind], tuple(map(int, operands)))
        return self.flawless.solve(problem, random.Random(0)).steps

    def _critique_example(
        self, solution: Solution, step: int, rng: random.Random
    ) -> CritiqueExample:
        """Return a step, wrong in half of all cases, with a draw of the solver."""
        before = solution.before(step)
        mine, other = self._other_step(before, rng), self.solver.step(before, rng)
        sides = [[self._finished(s, rng) for _ in range(PLAYED_OUT)] for s in (mine, other)]
        critique = write_critique(mine, step, *map(self._success, sides))
        count = rng.choice(READ_FORECASTS)
        forecasts, alternatives = (self._misread(ends[:count], step, rng) for ends in sides)
        refinement = self._redraw(before, mine, critique, rng)
        text = mine.text(step)
        return CritiqueExample(step, text, forecasts, alternatives, critique, refinement)

    def _redraw(self, before: Solution, mine: Solution, critique: str, rng: random.Random) -> str:
        """Return the step if it was approved, otherwise another one of the solver."""
        step = len(before.steps)
        if critique.startswith("Optimality: Yes"):
            return mine.text(step)
        for _ in range(20):
            fresh = self.solver.step(before, rng)
            if fresh.steps[-1] != mine.steps[-1]:
                break
        return fresh.text(step)

    def _misread(self, ends: list[Solution], step: int, rng: random.Random) -> list[str]:
        """Return forecasts of a fallible forecaster, which overlooks some wrong steps and rejects
        some right ones."""
        misses, alarms = rng.choice((0.1, 0.3, 0.5)), rng.choice((0.0, 0.1, 0.25))
        texts = []
        for ended in ends:
            text = self._true_forecast(ended, step)
            wrong = ended.before(step + 1).first_wrong is not None
            if rng.random() < (misses if wrong else alarms):
                checked = check(ended.steps[: step + 1], None if wrong else step)
                text = f"{checked} " + (f"{CORRECT} Success." if wrong else "Wrong. Failure.")
            texts.append(text)
        return texts

    def _other_step(self, before: Solution, rng: random.Random) -> Solution:
        """Return the solution with a right or, in half of all cases, a wrong step; after a wrong
        one, with any step."""
        if before.first_wrong is not None:
            return self.solver.step(before, rng)
        if rng.random() < 0.5:
            return self.flawless.step(before, rng)
        for _ in range(12 if rng.random() < 0.7 else 0):
            drawn = self.solver.step(before, rng)
            if drawn.first_wrong is not None:
                return drawn
        return distorted(self.flawless.step(before, rng), rng)

    def _finished(self, solution: Solution, rng: random.Random) -> Solution:
        return solution if solution.over else self.solver.finish(solution, rng)

    def _success(self, ends: list[Solution]) -> float:
        return fmean(self._respond(ended)[1] for ended in ends)

    def _true_forecast(self, ended: Solution, step: int) -> str:
        """Return a forecast of step `step` that came true: a check of the steps up to it, the
        environment's message, the outcome."""
        return f"{check_of(ended.before(step + 1))} {self._end(ended)}"

    def _end(self, ended: Solution) -> str:
        """Return the environment's message on a finished solution, and the outcome."""
        response, success = self._respond(ended)
        return fill(self.prompts.terminal, response=response, outcome=OUTCOMES[success])


@lru_cache(maxsize=1 << 16)
def _grade(line: str, gold: str) -> Grade:
    answer = boxed(line)
    return Grade(False, "unboxed") if answer is None else grade(answer, gold)


def check_of(solution: Solution) -> str:
    """Return a check of the steps so far."""
    return check(solution.steps, solution.first_wrong)


def check(steps: list[str], first_wrong: int | None) -> str:
    """Return the true result of the last operation, and whether all steps are right; otherwise the
    first wrong step. A small model detects a mistake only if it may compute the result first."""
    judged = "Right." if first_wrong is None else f"{steps[first_wrong]} is wrong."
    return " ".join([*(f"{result}." for result in map(recomputed, steps) if result), judged])


def recomputed(step: str) -> str:
    """Return the true result of the operation in a step, or "" if it has none."""
    found = EQUATION.fullmatch(step)
    if found is None or (found[2] == "/" and not int(found[3])):
        return ""
    x, y = Fraction(found[1]), Fraction(found[3])
    return latex(apply_operation(x, SIGN.get(found[2], found[2]), y))


def distorted(solution: Solution, rng: random.Random) -> Solution:
    """Return the solution with another number at the end of its last step."""

    def off(found: re.Match[str]) -> str:
        return str(max(0, int(found[0]) + rng.choice(OFFS)))

    right = solution.steps[-1]
    while solution.steps[-1] == right:
        solution.steps[-1] = LAST_NUMBER.sub(off, right)
    if len(solution.results) == len(solution.steps) and LAST_NUMBER.search(right):
        found = LAST_NUMBER.search(solution.steps[-1])
        assert found is not None
        solution.results[-1] = Fraction(int(found[0]))
    solution.first_wrong = len(solution.steps) - 1
    return solution


def write_critique(solution: Solution, step: int, success: float, others: float) -> str:
    """Return the critique of step `step`: not optimal if it is the first wrong one, which is named,
    or if it ends clearly worse than another one."""
    if solution.first_wrong == step:
        return f"Optimality: No. {solution.steps[step]} is wrong."
    if success < others - CLEARLY_WORSE:
        return "Optimality: No. It ends worse than another turn."
    return "Optimality: Yes. It ends as well as another turn."
