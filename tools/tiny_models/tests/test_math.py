"""The corpus of MATH's embedded model tells the truth about a mediocre solver."""

from __future__ import annotations

import random
import re
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

from agentrl_cli.core.types import Task, Turn
from agentrl_cli.envs.math.answers import boxed, number
from agentrl_cli.envs.math.kinds import PROBLEM_KINDS
from agentrl_cli.envs.math.problems import Problem, draw_problem, expert_steps, latex, split_of
from tools.tiny_models.base import Branch, Text
from tools.tiny_models.math import MathCorpus, write_critique
from tools.tiny_models.solver import Solution, Solver, SolverHabits
from tools.tiny_models.tests.corpus_builder import (
    ROLES,
    first_false,
    judged_turns,
    math_corpus,
    problem_of,
    record,
    right_steps,
    seeds,
    spoken,
    steps_of,
    texts_of,
)

FACT = re.compile(r"(-?\d+)(\+|-|/|\\cdot)(-?\d+)=(\S+)")
MISTAKES = ("plan", "carry", "table", "early", "unboxed")


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


def possible_ends(problem: Problem) -> set[str]:
    """How a solution of the problem can end."""
    gold = latex(problem.answer)
    return {f"{fault} It is {gold}. Failure." for fault in ("Wrong.", "No box.")} | {
        "Correct. Success."
    }


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


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_makes_solutions_wrong_and_nothing_else_does(mistake: str):
    found = solved(habits(**{mistake: 1.0}), 300)
    wrong = [work for work in found if not right(work)]
    assert len(wrong) > 30
    for work in found:
        assert (work.first_wrong is None) == (work.steps == right_steps(work.problem))
    if mistake == "unboxed":
        assert len(wrong) == len(found) and all("boxed" not in work.text() for work in found)


def test_the_first_wrong_step_is_the_first_that_is_not_the_right_one(corpus: MathCorpus):
    for work in solved(corpus.habits, 400):
        false = first_false(work.problem, work.steps)
        assert (None if work.first_wrong is None else work.steps[work.first_wrong]) == false


def test_the_solver_is_mediocre_at_every_level(corpus: MathCorpus):
    for level in range(1, 6):
        won = sum(map(right, solved(corpus.habits, 300, level)))
        assert 0.3 < won / 300 < 0.8, level


def test_a_habit_is_bound_to_its_occasion_and_as_many_are_prone_as_configured(corpus: MathCorpus):
    occasions = [(x, y) for x in range(30) for y in range(30)]
    for mistake, share in corpus.habits.prone.items():
        chances = [corpus.habits.chance(mistake, *occasion) for occasion in occasions]
        assert chances == [corpus.habits.chance(mistake, *occasion) for occasion in occasions]
        assert set(chances) == {corpus.habits.often, corpus.habits.seldom}
        prone = chances.count(corpus.habits.often) / len(chances)
        assert prone == pytest.approx(share, abs=4 * (share * (1 - share) / 900) ** 0.5), mistake


def slip_rate(corpus: MathCorpus, x: int, sign: str, y: int, right_result: int) -> float:
    rng = random.Random(x * y)
    drawn = [corpus.solver.compute(Fraction(x), sign, Fraction(y), rng) for _ in range(60)]
    return sum(result != right_result for result in drawn) / 60


def test_where_the_solver_slips_it_mostly_slips(corpus: MathCorpus):
    products = {
        (x, y): slip_rate(corpus, x, "*", y, x * y) for x in range(2, 10) for y in range(2, 10)
    }
    often = [rate for rate in products.values() if rate > 0.45]
    seldom = [rate for rate in products.values() if rate < 0.25]
    assert len(often) + len(seldom) == len(products)
    assert len(often) / len(products) == pytest.approx(corpus.habits.prone["table"], abs=0.2)
    # a carry depends on the units alone
    sums = [slip_rate(corpus, 10 + x, "+", 10 + y, 20 + x + y) for x in (7, 8, 9) for y in (5, 6)]
    again = [slip_rate(corpus, 20 + x, "+", 30 + y, 50 + x + y) for x in (7, 8, 9) for y in (5, 6)]
    assert [rate > 0.35 for rate in sums] == [rate > 0.35 for rate in again]
    assert slip_rate(corpus, 12, "+", 13, 25) == 0.0


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


def test_claims_are_checked_rightly_and_as_many_are_wrong_as_right(corpus: MathCorpus):
    verdicts = Counter()
    for text in texts_of(corpus, "claims", 60):
        for claim, checked in zip(text.turns[::2], text.turns[1::2], strict=True):
            line = claim.action.removesuffix("\n\n")
            judged = "Right." if true(line) else f"{line} is wrong."
            assert checked.action == f"{latex(made(line))}. {judged}"
            verdicts[true(line)] += 1
    assert 0.4 < verdicts[True] / verdicts.total() < 0.6


def test_checks_end_at_the_first_wrong_step_and_tell_what_the_world_can_say(corpus: MathCorpus):
    verdicts = Counter()
    for text in texts_of(corpus, "checks", 50):
        for seen, checked in zip(text.turns[::2], text.turns[1::2], strict=True):
            problem = problem_of(seen.observation[-1].content)
            steps = [Turn([], s + "\n\n", [], [], []) for s in seen.action.strip().split("\n\n")]
            if not seen.action.endswith("\n\n"):
                steps[-1].action = steps[-1].action.strip()
                assert checked.action == world_says(corpus, problem, steps)
                continue
            head = head_of(problem, steps)
            assert checked.action.startswith(head)
            assert checked.action.removeprefix(head) in possible_ends(problem)
            assert first_false(problem, steps_of(steps[:-1])) is None
            verdicts[head.endswith("Right. ")] += 1
    assert 0.35 < verdicts[True] / verdicts.total() < 0.65


def test_attempts_go_on_until_one_is_right_as_the_world_says(corpus: MathCorpus):
    several = 0
    for text in texts_of(corpus, "attempts", 80):
        answer = posed(text).answer
        for i, turn in enumerate(text.turns):
            found = boxed(turn.action)
            success = found is not None and number(found) == answer
            last = i == len(text.turns) - 1
            assert success or not last or i == 2
            if not last:
                said = "Wrong." if found is not None else "No box."
                assert not success
                assert text.turns[i + 1].observation[0].content == f"{said} Try again."
                several += 1
    assert several > 10


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


def test_a_forecast_checks_the_steps_and_says_what_the_world_said(corpus: MathCorpus):
    heads = Counter()
    for text, branch in spoken(corpus, "forecast", 120):
        head = head_of(posed(text), judged_turns(text, branch))
        assert branch.answer == head + world_says(corpus, posed(text), text.turns)
        heads[head.endswith("Right. ")] += 1
    assert min(heads.values()) > 30


def test_a_forecast_of_another_step_is_of_that_step(corpus: MathCorpus):
    heads = Counter()
    for text, branch in spoken(corpus, "explored", 120):
        turns, problem = judged_turns(text, branch), posed(text)
        head = head_of(problem, turns)
        if head:
            assert branch.answer.startswith(head)
            assert branch.answer.removeprefix(head) in possible_ends(problem)
        else:
            assert branch.answer == world_says(corpus, problem, turns)
        heads[first_false(problem, steps_of(turns)) is None] += 1
    assert min(heads.values()) > 60


def test_really_played_solutions_are_told_as_the_world_ended_them(corpus: MathCorpus):
    outcomes = Counter()
    for task, rng in zip(corpus.env.tasks("train"), seeds(80), strict=False):
        problem = problem_of(task.data["problem"])
        solution = corpus.solver.solve(problem, rng)
        actions = iter([solution.text(i, i + 1) for i in range(len(solution.steps))])
        episode = record(corpus.env, task, lambda said, actions=actions: next(actions))
        end = world_says(corpus, problem, episode.turns)
        forecasts = [
            head_of(problem, episode.turns[: i + 1]) + end for i in range(len(episode.turns))
        ]
        assert corpus.true_forecasts(episode) == forecasts
        outcomes[episode.success] += 1
    assert min(outcomes.values()) > 15


def test_a_backup_reads_a_forecast_of_a_next_step_and_keeps_its_end(corpus: MathCorpus):
    kinds = Counter()
    for text, branch in spoken(corpus, "backup", 100):
        turns, problem = judged_turns(text, branch), posed(text)
        seen, later = re.split(r"The response was: |\nA forecast from there: ", branch.prompt)[1:]
        later = later.splitlines()[0]
        assert seen == "" and branch.action is None and branch.turn < len(text.turns) - 1
        end = next(end for end in possible_ends(problem) if later.endswith(end))
        assert branch.answer == head_of(problem, turns) + end
        false = first_false(problem, steps_of(turns))
        named = later.removesuffix(end).strip()
        assert false is None or named == "" or named.endswith(f"{false} is wrong.")  # it stays so
        kinds[named == ""] += 1
    assert min(kinds.values()) > 30


def test_an_aggregate_tells_one_of_the_ends_that_it_reads(corpus: MathCorpus):
    for text, branch in spoken(corpus, "aggregate", 40):
        problem, ends = posed(text), branch.prompt.split("ended:\n")[1].splitlines()[:-1]
        assert len(ends) == 4 and set(ends) <= possible_ends(problem)
        head = head_of(problem, judged_turns(text, branch))
        assert branch.answer in {head + end for end in ends}


def watched(
    corpus: MathCorpus, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Branch, Problem, list[Solution]]]:
    """Critiques with the solutions that were finished for them."""
    played: list[Solution] = []
    finished = MathCorpus._finished

    def note(self: MathCorpus, solution: Solution, rng: random.Random) -> Solution:
        played.append(finished(self, solution, rng))
        return played[-1]

    monkeypatch.setattr(MathCorpus, "_finished", note)
    rows = []
    for rng in seeds(60):
        problem = draw_problem(corpus.kinds, rng, "train", corpus.env.split_seed)
        solution = corpus.solver.solve(problem, rng)
        played.clear()
        step = rng.randrange(len(solution.steps))
        rows.append((corpus._evaluate(solution, step, rng), problem, list(played)))
    return rows


def test_a_verdict_follows_from_the_step_and_the_ends_played_for_it(
    corpus: MathCorpus, monkeypatch: pytest.MonkeyPatch
):
    said = Counter()
    for branch, problem, ends in watched(corpus, monkeypatch):
        mine, others = ends[:12], ends[12:]
        assert len(mine) == len(others) == 12 and branch.action is not None
        false = first_false(problem, mine[0].steps[: branch.turn + 1])
        gap = (sum(map(right, others)) - sum(map(right, mine))) / 12
        if false is not None and false == branch.action.strip():
            expected = f"Optimality: No. {false} is wrong."
        elif gap > 0.25:
            expected = "Optimality: No. It ends worse than another turn."
        else:
            expected = "Optimality: Yes. It ends as well as another turn."
        assert branch.answer == expected
        said[branch.answer[:15]] += 1
    assert min(said.values()) > 10


@pytest.mark.parametrize(
    ("success", "others", "optimal"), [(0.5, 0.5, True), (0.25, 0.5, True), (0.2, 0.5, False)]
)
def test_a_right_step_is_judged_by_how_it_ends(success: float, others: float, optimal: bool):
    kind = PROBLEM_KINDS[0]
    solution = Solution(Problem(kind, (2, 3)), kind.plan, steps=["2+3=5"])
    assert write_critique(solution, 0, success, others).startswith("Optimality: Yes") == optimal


def test_a_critique_reads_forecasts_that_err_at_times(corpus: MathCorpus):
    """The evaluator must weigh forecasts: a wrong step escapes some, some doubt a right one."""
    seen = Counter[Any]()
    for text, branch in spoken(corpus, "evaluate", 80):
        mine = branch.prompt.split("Forecasts of another turn:")[0].splitlines()[1:]
        turns = judged_turns(text, branch)
        wrong = first_false(posed(text), steps_of(turns)) is not None
        if turns[-1].action.endswith("\n\n"):
            seen.update((wrong, "Right." in line) for line in mine)
    assert 0.05 < seen[True, True] / (seen[True, True] + seen[True, False]) < 0.5
    assert 0.02 < seen[False, False] / (seen[False, True] + seen[False, False]) < 0.3


def test_the_step_that_succeeded_most_often_is_written_again(corpus: MathCorpus):
    best = 0
    for _, branch in spoken(corpus, "rollouts", 60):
        wins = Counter[str]()
        for line in branch.prompt.splitlines()[1:-1]:
            if line.endswith("Success."):
                found = re.match(r"(\S+=\S+|\\boxed\{\S+\})", line)
                assert found
                wins[found[1]] += 1
        if wins:
            best += 1
            assert wins[branch.answer.strip()] == max(wins.values())
    assert best > 60


def test_all_roles_speak_and_none_but_they(corpus: MathCorpus):
    prompts = vars(corpus.prompts)
    for role in ROLES:
        name = {"explored": "forecast", "rollouts": "refine_by_rollouts"}.get(role, role)
        last = prompts[name].splitlines()[-1]
        said = spoken(corpus, role, 6)
        assert said and all(branch.prompt.endswith(last) for _, branch in said)
