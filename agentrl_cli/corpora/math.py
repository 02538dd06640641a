"""The corpus behind the embedded model of `math`, drawn afresh for every step.

It holds facts of arithmetic, solutions of a mediocre solver with its mistakes, also second tries,
and every role of NLAC at the level of that solver. Problems are of the train split; facts are of
all operands. No text shows the expert's form: forecasts tell how really written solutions ended,
verdicts compare such ends and name a wrong step that is there to be seen, and a refinement is
another draw of the same solver.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.prompts import fill
from agentrl_cli.core.types import Episode, Message, Task, Turn
from agentrl_cli.corpora.base import Corpus
from agentrl_cli.corpora.solver import Slips, Solver, Work
from agentrl_cli.envs.math.env import RIGHT, MathEnv
from agentrl_cli.envs.math.kinds import KINDS
from agentrl_cli.envs.math.problems import drawn, equation, latex, results

UNTRAINED = {"weight": 0.0}
PLAYED_OUT = 3  # times as many ends as a critique reads decide its verdict
FACTS = 8
TRIES = 3  # of a text with several tries


@dataclass(kw_only=True)
class MathCorpus(Corpus):
    """Writes texts of any kind; `several` is the share with up to three tries. The prompts of the
    roles, and how many forecasts a critique reads, are those of `nlac`."""

    env: MathEnv
    slips: Slips
    several: float
    nlac: NLAC

    def __post_init__(self) -> None:
        self.solver = Solver(self.slips)
        self.prompts, self.forecasts = self.nlac.prompts, self.nlac.forecasts
        self.kinds = [k for k in KINDS if not self.env.levels or k.level in self.env.levels]

    def _episode(self, kind: str, seed: int) -> Episode:
        writers = {
            "facts": self.facts, "solve": self.solve, "forecast": self.forecast,
            "backup": self.backup, "evaluate": self.evaluate, "refine": self.refine,
        }  # fmt: skip
        turns = writers[kind](random.Random(seed))
        return Episode(f"{kind}-{seed}", Task(f"corpus-{kind}", "train", {}), kind, seed, turns)

    # arithmetic

    def facts(self, rng: random.Random) -> list[Turn]:
        """Operations of the problems, and their true results."""
        turns = []
        for _ in range(FACTS):
            asked, result = self._fact(rng)
            turns.append(Turn([Message("user", asked)], result, [], [], []))
        turns[0].observation.insert(0, Message("system", "Answer the questions."))
        return turns

    def _fact(self, rng: random.Random) -> tuple[str, str]:
        problem = drawn(self.kinds, rng, None, self.env.split_seed)
        found = results(problem.kind.plan, problem)
        at = rng.randrange(len(found))
        left, operation, right = problem.kind.plan.lines[at]
        named = problem.named(found[:at])
        whole = equation(named[left], operation, named[right], found[at])
        return whole[: whole.index("=") + 1], latex(found[at])

    # mediocre solutions

    def solve(self, rng: random.Random) -> list[Turn]:
        """A problem and its solution, at times several tries."""
        tries, _ = self._played(rng)
        return [turn for turn, _ in tries]

    def _played(self, rng: random.Random) -> tuple[list[tuple[Turn, Work]], list[str]]:
        """The tries at a problem, and what the environment answers to each."""
        problem = drawn(self.kinds, rng, "train", self.env.split_seed)
        most = TRIES if rng.random() < self.several else 1
        said = [Message("system", self.env.system()), Message("user", problem.text)]
        tries, responses = [], []
        for left in reversed(range(most)):
            work = self.solver.solve(problem, rng)
            tries.append((Turn(said, work.text(), [], [], []), work))
            answer, success = self._answer(work, left)
            responses.append(answer)
            if success:
                break
            said = [Message("user", answer)]
        return tries, responses

    def _answer(self, work: Work, left: int) -> tuple[str, bool]:
        """What the environment answers to a finished solution with `left` more tries, and whether
        it is right."""
        gold = latex(work.problem.answer)
        grade = self.env.judge(work.text(), gold)
        return self.env.response(grade, gold, left), grade.correct

    # roles

    def forecast(self, rng: random.Random) -> list[Turn]:
        """What a thought led to: the environment's words from there on, and the outcome."""
        tries, responses = self._played(rng)
        i, at = self._thought(tries, rng)
        written = _foretold(responses[i:])
        return self._role(self._up_to(tries, i, at + 1), self.prompts.forecast, written)

    def backup(self, rng: random.Random) -> list[Turn]:
        """The response seen and a forecast from the next thought make a forecast of this one."""
        tries, responses = self._played(rng)
        i, at = self._thought(tries, rng)
        last = at + 1 == len(tries[i][1].steps)
        while last and i + 1 == len(tries):
            tries, responses = self._played(rng)
            i, at = self._thought(tries, rng)
            last = at + 1 == len(tries[i][1].steps)
        response = responses[i] if last else ""
        forecast = _foretold(responses[i + 1 :] if last else responses[i:])
        prompt = fill(self.prompts.backup, response=response, forecast=forecast)
        turns = self._up_to(tries, i, at + 1)
        return self._role(turns, prompt, _foretold(responses[i:]))

    def evaluate(self, rng: random.Random) -> list[Turn]:
        """Forecasts of an action and of another one, and the verdict that their ends bear out."""
        turns, prompt, critique, _ = self._judged(rng)
        return self._role(turns, prompt, critique)

    def refine(self, rng: random.Random) -> list[Turn]:
        """A critique, and the same again to the end where it was found optimal, else another draw
        of the solver."""
        turns, _, critique, written = self._judged(rng)
        return self._role(turns, fill(self.prompts.refine, critique=critique), written)

    def _judged(self, rng: random.Random) -> tuple[list[Turn], str, str, str]:
        """A solution up to an action, the evaluator's prompt, its critique, and the refinement."""
        tries, _ = self._played(rng)
        i, at = self._thought(tries, rng)
        left = rng.randrange(TRIES - i) if len(tries) > 1 else 0
        state = _cut(tries[i][1], at)
        whole = rng.random() < 0.5
        mine, other = self._action(state, whole, rng), self._action(state, whole, rng)
        ends, others = (self._ends(one, left, rng) for one in (mine, other))
        shown = {"forecasts": ends[: self.forecasts], "others": others[: self.forecasts]}
        prompt = fill(self.prompts.evaluate, **{k: "\n".join(rows) for k, rows in shown.items()})
        critique = verdict(mine, at, ends, others)
        turns = self._up_to([*tries[:i], (tries[i][0], mine)], i, len(mine.steps))
        return turns, prompt, critique, self._refined(state, mine, critique, rng)

    def _refined(self, state: Work, mine: Work, critique: str, rng: random.Random) -> str:
        at = len(state.steps)
        kept = critique.startswith("Optimality: Yes")
        fresh = self.solver.go_on(mine if kept else state, rng)
        for _ in range(20):
            if kept or fresh.steps[: len(mine.steps)] != mine.steps:
                break
            fresh = self.solver.go_on(state, rng)
        return fresh.text(at)

    def _action(self, state: Work, whole: bool, rng: random.Random) -> Work:
        """The work after an action: all that is left to write, or one thought."""
        if whole:
            return self.solver.go_on(state, rng)
        work = copy.deepcopy(state) if state.steps else self.solver.start(state.problem, rng)
        self.solver.step(work, rng)
        return work

    def _ends(self, work: Work, left: int, rng: random.Random) -> list[str]:
        """How the work ends when the solver goes on, with `left` more tries."""
        count = PLAYED_OUT * self.forecasts
        return [_foretold(self._played_out(work, left, rng)) for _ in range(count)]

    def _played_out(self, work: Work, left: int, rng: random.Random) -> list[str]:
        finished = self.solver.go_on(work, rng) if not work.over else work
        answer, success = self._answer(finished, left)
        if success or not left:
            return [answer]
        again = self.solver.start(work.problem, rng)
        return [answer, *self._played_out(again, left - 1, rng)]

    def _thought(self, tries: list[tuple[Turn, Work]], rng: random.Random) -> tuple[int, int]:
        i = rng.randrange(len(tries))
        return i, rng.randrange(len(tries[i][1].steps))

    def _up_to(self, tries: list[tuple[Turn, Work]], i: int, end: int) -> list[Turn]:
        """The tries before number i whole and that one up to step `end`: seen, not taught, for a
        reply that is cut off would teach to stop there."""
        turns = [Turn(turn.observation, turn.action, [], [], []) for turn, _ in tries[: i + 1]]
        turns[-1].action = tries[i][1].text(0, end)
        for turn in turns:
            turn.info = dict(UNTRAINED)
        return turns

    def _role(self, turns: list[Turn], prompt: str, written: str) -> list[Turn]:
        """What was written, the role's prompt behind it, and what the role writes."""
        return [*turns, Turn([Message("user", prompt)], written, [], [], [], info={"role": True})]


def _foretold(responses: list[str]) -> str:
    """A forecast that came true: the environment's words, then the outcome."""
    outcome = "Success." if responses[-1] == RIGHT else "Failure."
    return " ".join([*responses, outcome])


def _cut(work: Work, at: int) -> Work:
    """The work before its step number `at`."""
    lines = min(at, len(work.found))
    wrong = work.wrong if work.wrong is not None and work.wrong < at else None
    return Work(work.problem, work.plan, work.found[:lines], work.steps[:at], wrong)


def verdict(work: Work, at: int, ends: list[str], others: list[str]) -> str:
    """The critique of what was written from step `at` on: not optimal where it has the first wrong
    step, has no box, or ends worse on average than the other action."""
    if work.wrong is not None and work.wrong >= at:
        return f"Optimality: No. The step {work.steps[work.wrong]} is wrong."
    if work.over and "boxed" not in work.steps[-1]:
        return "Optimality: No. It has no box."
    mean, other = (sum(map(_won, texts)) / len(texts) for texts in (ends, others))
    if mean < other:
        return "Optimality: No. It ends worse than another turn."
    return "Optimality: Yes. It ends as well as another turn."


def _won(forecast: str) -> bool:
    return forecast.endswith("Success.")
