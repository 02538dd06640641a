"""The corpus behind the embedded model of `math`, drawn afresh for every step.

It holds facts of arithmetic, solutions of a mediocre solver with its mistakes, also further
attempts, and every role of NLAC at the level of that solver. Problems are of the train split; facts
are of all operands. No text shows the expert's form: forecasts tell how really written solutions
ended, critiques compare such ends and name a wrong step that is there to be seen, and a refinement
is another draw of the same solver.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from statistics import fmean

from agentrl_cli.algos.nlac.prompts import fill
from agentrl_cli.core.types import Message, Turn
from agentrl_cli.corpora.base import UNTRAINED, Corpus, CritiqueExample, Writer, role_turns
from agentrl_cli.corpora.solver import Solution, Solver, SolverErrorRates
from agentrl_cli.envs.math.env import CORRECT, MathEnv
from agentrl_cli.envs.math.kinds import PROBLEM_KINDS
from agentrl_cli.envs.math.problems import draw_problem, equation, latex, plan_results

ENDS_PER_FORECAST = 3  # times as many ends as a critique reads decide its verdict
FACTS_PER_TEXT = 8
MAX_ATTEMPTS = 3  # of a text with several attempts


@dataclass(frozen=True)
class Attempt:
    """One attempt at a problem: what was observed before, what was written, and the response."""

    observation: list[Message]
    solution: Solution
    response: str


@dataclass(frozen=True)
class Cut:
    """Attempts at a problem up to one of them, and a step of that one."""

    attempts: list[Attempt]
    step: int

    @property
    def solution(self) -> Solution:
        """The solution that is cut."""
        return self.attempts[-1].solution


@dataclass(kw_only=True)
class MathCorpus(Corpus):
    """Writes texts about problems of `env` and solutions with `slips`; `several` is the share with
    up to three attempts."""

    env: MathEnv
    slips: SolverErrorRates
    several: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.solver = Solver(self.slips)
        self.kinds = [k for k in PROBLEM_KINDS if not self.env.levels or k.level in self.env.levels]

    def writers(self) -> dict[str, Writer]:
        """Facts, solutions, and the four roles."""
        return {
            "facts": self.facts, "solve": self.solve, "forecast": self.forecast,
            "backup": self.backup, "evaluate": self.evaluate, "refine": self.refine,
        }  # fmt: skip

    def facts(self, rng: random.Random) -> list[Turn]:
        """Operations of the problems, and their true results."""
        turns = [self._fact(rng) for _ in range(FACTS_PER_TEXT)]
        turns[0].observation.insert(0, Message("system", "Answer the questions."))
        return turns

    def _fact(self, rng: random.Random) -> Turn:
        problem = draw_problem(self.kinds, rng, None, self.env.split_seed)
        results = plan_results(problem.kind.plan, problem)
        at = rng.randrange(len(results))
        operation = problem.kind.plan.operations[at]
        x, y = problem.operands_of(operation, results[:at])
        question, equals, _ = equation(x, operation.sign, y, results[at]).partition("=")
        return Turn([Message("user", question + equals)], latex(results[at]), [], [], [])

    def solve(self, rng: random.Random) -> list[Turn]:
        """A problem and its solution, at times several attempts."""
        return [Turn(a.observation, a.solution.text(), [], [], []) for a in self._attempts(rng)]

    def _attempts(self, rng: random.Random) -> list[Attempt]:
        """The attempts at a problem, up to the first right one."""
        problem = draw_problem(self.kinds, rng, "train", self.env.split_seed)
        count = MAX_ATTEMPTS if rng.random() < self.several else 1
        observation = [Message("system", self.env.system()), Message("user", problem.text)]
        attempts: list[Attempt] = []
        for left in reversed(range(count)):
            solution = self.solver.solve(problem, rng)
            response, success = self._respond(solution, left)
            attempts.append(Attempt(observation, solution, response))
            if success:
                break
            observation = [Message("user", response)]
        return attempts

    def _respond(self, solution: Solution, attempts_left: int) -> tuple[str, bool]:
        """What the environment answers to a finished solution, and whether it is right."""
        gold = latex(solution.problem.answer)
        grade = self.env.grade_reply(solution.text(), gold)
        return self.env.response(grade, gold, attempts_left), grade.correct

    def forecast(self, rng: random.Random) -> list[Turn]:
        """What a thought led to: the environment's words from there on, and the outcome."""
        attempts = self._attempts(rng)
        cut = _draw_cut(attempts, rng)
        forecast = _true_forecast([a.response for a in attempts[len(cut.attempts) - 1 :]])
        return role_turns(_seen(cut.attempts, cut.step + 1), self.prompts.forecast, forecast)

    def backup(self, rng: random.Random) -> list[Turn]:
        """The response seen and a forecast from the next thought make a forecast of this one."""
        while True:
            attempts = self._attempts(rng)
            cut = _draw_cut(attempts, rng)
            is_last_step = cut.step + 1 == len(cut.solution.steps)
            if not is_last_step or len(cut.attempts) < len(attempts):
                break
        responses = [attempt.response for attempt in attempts[len(cut.attempts) - 1 :]]
        response = responses[0] if is_last_step else ""
        later = _true_forecast(responses[1:] if is_last_step else responses)
        prompt = fill(self.prompts.backup, response=response, forecast=later)
        return role_turns(_seen(cut.attempts, cut.step + 1), prompt, _true_forecast(responses))

    def critique_example(self, rng: random.Random) -> CritiqueExample:
        """All that is left to write, or one thought, judged by how solutions end from there."""
        attempts = self._attempts(rng)
        cut = _draw_cut(attempts, rng)
        number = len(cut.attempts)
        left = rng.randrange(MAX_ATTEMPTS - number + 1) if len(attempts) > 1 else 0
        before = cut.solution.before(cut.step)
        to_the_end = rng.random() < 0.5
        mine, other = (self._act(before, to_the_end, rng) for _ in range(2))
        ends, others = (self._ends(solution, left, rng) for solution in (mine, other))
        prompt = self.evaluation_prompt(ends, others)
        critique = write_critique(mine, cut.step, ends, others)
        judged = Attempt(cut.attempts[-1].observation, mine, "")
        turns = _seen([*cut.attempts[:-1], judged], len(mine.steps))
        return CritiqueExample(turns, prompt, critique, self._refine(before, mine, critique, rng))

    def _refine(self, before: Solution, mine: Solution, critique: str, rng: random.Random) -> str:
        """What is written instead: the same and on to the end, or another draw from `before`."""
        optimal = critique.startswith("Optimality: Yes")
        fresh = self.solver.finish(mine if optimal else before, rng)
        for _ in range(20):
            if optimal or fresh.steps[: len(mine.steps)] != mine.steps:
                break
            fresh = self.solver.finish(before, rng)
        return fresh.text(len(before.steps))

    def _act(self, before: Solution, to_the_end: bool, rng: random.Random) -> Solution:
        """The solution after an action: all that is left to write, or one thought."""
        if to_the_end:
            return self.solver.finish(before, rng)
        solution = copy.deepcopy(before) if before.steps else self.solver.start(before.problem, rng)
        self.solver.step(solution, rng)
        return solution

    def _ends(self, solution: Solution, attempts_left: int, rng: random.Random) -> list[str]:
        """Forecasts: how it ends when the solver goes on, as many as decide a verdict."""
        count = ENDS_PER_FORECAST * self.forecasts
        return [_true_forecast(self._play_out(solution, attempts_left, rng)) for _ in range(count)]

    def _play_out(self, solution: Solution, attempts_left: int, rng: random.Random) -> list[str]:
        finished = solution if solution.over else self.solver.finish(solution, rng)
        response, success = self._respond(finished, attempts_left)
        if success or not attempts_left:
            return [response]
        again = self.solver.start(solution.problem, rng)
        return [response, *self._play_out(again, attempts_left - 1, rng)]


def _draw_cut(attempts: list[Attempt], rng: random.Random) -> Cut:
    """Any step of any of the attempts."""
    index = rng.randrange(len(attempts))
    return Cut(attempts[: index + 1], rng.randrange(len(attempts[index].solution.steps)))


def _seen(attempts: list[Attempt], end: int) -> list[Turn]:
    """The attempts, the last one up to step `end`: seen, not taught, for a reply that is cut off
    would teach to stop there."""
    turns = [Turn(a.observation, a.solution.text(), [], [], []) for a in attempts]
    turns[-1].action = attempts[-1].solution.text(0, end)
    for turn in turns:
        turn.info = dict(UNTRAINED)
    return turns


def _true_forecast(responses: list[str]) -> str:
    """A forecast that came true: the environment's words, then the outcome."""
    outcome = "Success." if responses[-1] == CORRECT else "Failure."
    return " ".join([*responses, outcome])


def write_critique(solution: Solution, start: int, ends: list[str], others: list[str]) -> str:
    """The critique of what was written from step `start` on: not optimal where it has the first
    wrong step, has no box, or ends worse on average than the other action."""
    if solution.first_wrong is not None and solution.first_wrong >= start:
        return f"Optimality: No. The step {solution.steps[solution.first_wrong]} is wrong."
    if solution.over and "boxed" not in solution.steps[-1]:
        return "Optimality: No. It has no box."
    mine, other = (fmean(text.endswith("Success.") for text in texts) for texts in (ends, others))
    if mine < other:
        return "Optimality: No. It ends worse than another turn."
    return "Optimality: Yes. It ends as well as another turn."
