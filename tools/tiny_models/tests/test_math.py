"""The corpus of MATH's embedded model tells the truth about a mediocre solver."""

from __future__ import annotations

import random
import re
from collections import Counter
from fractions import Fraction

import pytest

from agentrl_cli.core.types import Task, Turn
from agentrl_cli.envs.math.answers import boxed, number
from agentrl_cli.envs.math.problems import (
    PROBLEM_KINDS,
    Problem,
    draw_problem,
    expert_steps,
    latex,
    split_of,
)
from tools.tiny_models.base import Text
from tools.tiny_models.math import MathCorpus
from tools.tiny_models.solver import Solution, Solver, SolverHabits
from tools.tiny_models.tests.corpus_builder import (
    first_false,
    judged_turns,
    math_corpus,
    problem_of,
    right_steps,
    spoken,
    steps_of,
    texts_of,
)

FACT = re.compile(r"(-?\d+)(\+|-|/|\\cdot)(-?\d+)=(\S+)")


@pytest.fixture(scope="module")
def corpus() -> MathCorpus:
    return math_corpus()


def made(line: str) -> Fraction:
    """What the operation of an equation makes, computed here and not by the package."""
    found = FACT.fullmatch(line)
    assert found, line
    x, operation, y = Fraction(found[1]), found[2], Fraction(found[3])
    return {"+": x + y, "-": x - y, "/": x / y}.get(operation, x * y)


def true(line: str) -> bool:
    """Whether an equation holds."""
    return number(line.split("=")[1]) == made(line)


def sums(steps: list[str]) -> str:
    """The true results of all operations in the steps, as a forecast begins."""
    return "".join(f"{latex(made(step))}. " for step in steps if FACT.fullmatch(step))


def posed(text: Text) -> Problem:
    """The problem of a text."""
    return problem_of(text.turns[0].observation[-1].content)


def world_says(corpus: MathCorpus, problem: Problem, turns: list[Turn]) -> str:
    """What the environment answers to a solution that ends here, and the outcome."""
    env = corpus.env
    env.reset(Task("t", "train", problem.row()), 0)
    step = [env.step(turn.action) for turn in turns][-1]
    outcome = "Success." if step.info["success"] else "Failure."
    return f"{step.messages[0].content} {outcome}"


def head_of(problem: Problem, turns: list[Turn]) -> str:
    """What must be said of the steps so far; nothing of a solution that has ended."""
    if not turns[-1].action.endswith("\n\n"):
        return ""
    false = first_false(problem, steps_of(turns))
    judged = "Right. " if false is None else f"{false} is wrong. "
    return sums(steps_of(turns)) + judged


# the solver


def solved(habits: SolverHabits, count: int, level: int = 0) -> list[Solution]:
    rng, solver = random.Random(0), Solver(habits)
    kinds = [kind for kind in PROBLEM_KINDS if level in (0, kind.level)]
    return [solver.solve(draw_problem(kinds, rng, "train", 0), rng) for _ in range(count)]


def right(work: Solution) -> bool:
    answer = boxed(work.text())
    return answer is not None and number(answer) == work.problem.answer


def habits(often: float = 1.0, **prone: float) -> SolverHabits:
    return SolverHabits(prone=prone, often=often, seldom=0.0)


def test_without_mistakes_the_solver_writes_the_right_steps():
    for work in solved(habits(), 300):
        assert work.steps == right_steps(work.problem) and work.first_wrong is None and right(work)


def test_first_wrong_step_is_found(corpus: MathCorpus):
    for work in solved(corpus.habits, 400):
        false = first_false(work.problem, work.steps)
        assert (None if work.first_wrong is None else work.steps[work.first_wrong]) == false


def test_the_solver_is_mediocre_at_every_level(corpus: MathCorpus):
    for level in range(1, 6):
        won = sum(map(right, solved(corpus.habits, 300, level)))
        assert 0.3 < won / 300 < 0.8, level


def test_habits_are_bound_to_occasions(corpus: MathCorpus):
    occasions = [(x, y) for x in range(30) for y in range(30)]
    for mistake, share in corpus.habits.prone.items():
        chances = [corpus.habits.chance(mistake, *occasion) for occasion in occasions]
        assert chances == [corpus.habits.chance(mistake, *occasion) for occasion in occasions]
        assert set(chances) == {corpus.habits.often, corpus.habits.seldom}
        prone = chances.count(corpus.habits.often) / len(chances)
        assert prone == pytest.approx(share, abs=4 * (share * (1 - share) / 900) ** 0.5), mistake


def test_no_text_is_in_the_experts_form(corpus: MathCorpus):
    """The expert says first what to find and takes an operation apart."""
    for text in texts_of(corpus, "play", 40, "refine", "rollouts"):
        apart = set(expert_steps(posed(text))) - set(right_steps(posed(text)))
        answers = [branch.answer for branch in text.branches if branch.prompt.endswith("again.")]
        for action in [*(turn.action for turn in text.turns), *answers]:
            assert "Find" not in action
            assert action.strip() not in apart or not true(action.strip())


# exercises


def test_facts_are_true(corpus: MathCorpus):
    for text in texts_of(corpus, "facts", 40):
        for turn in text.turns:
            assert true(turn.observation[-1].content + turn.action)


def test_claims_are_checked_and_balanced(corpus: MathCorpus):
    verdicts = Counter()
    for text in texts_of(corpus, "claims", 60):
        for claim, checked in zip(text.turns[::2], text.turns[1::2], strict=True):
            line = claim.action.removesuffix("\n\n")
            judged = "Right." if true(line) else f"{line} is wrong."
            assert checked.action == f"{latex(made(line))}. {judged}"
            verdicts[true(line)] += 1
    assert 0.4 < verdicts[True] / verdicts.total() < 0.6


def test_only_problems_to_train_on_are_played(corpus: MathCorpus):
    played = [
        turn.observation[-1].content
        for kind in ("play", "attempts", "checks")
        for text in texts_of(corpus, kind, 60)
        for turn in (text.turns[::2] if kind == "checks" else text.turns[:1])
    ]
    assert len(set(played)) > 100
    assert {split_of(problem_of(sentence), corpus.env.split_seed) for sentence in played} == {
        "train"
    }


# roles


def test_forecast_checks_steps_and_outcome(corpus: MathCorpus):
    heads = Counter()
    for text, branch in spoken(corpus, "forecast", 120):
        head = head_of(posed(text), judged_turns(text, branch))
        assert branch.answer == head + world_says(corpus, posed(text), text.turns)
        heads[head.endswith("Right. ")] += 1
    assert min(heads.values()) > 30
