"""The corpus of MATH's embedded model tells the truth about a mediocre solver."""

from __future__ import annotations

import random
import re
from fractions import Fraction

import pytest

from agentrl_cli.algos.nlac.prompts import outcome, verdict
from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.core.types import Episode, Task
from agentrl_cli.corpora.math import MathCorpus
from agentrl_cli.corpora.solver import Solution, Solver, SolverErrorRates
from agentrl_cli.envs.math.answers import boxed, number
from agentrl_cli.envs.math.kinds import PROBLEM_KINDS
from agentrl_cli.envs.math.problems import draw_problem, latex, split_of
from agentrl_cli.models.load import TINY
from agentrl_cli.rollout.chat_template import Chat

ROLES = ("forecast", "backup", "evaluate", "refine")
FACT = re.compile(r"(-?\d+)(\+|-|/|\\cdot)(\d+)=(\S+)")


@pytest.fixture(scope="module")
def corpus() -> MathCorpus:
    cfg = check(compose(["experiment=math_base"]))
    return build(cfg.rollout.corpus)


def texts(corpus: MathCorpus, kind: str, count: int = 60) -> list[Episode]:
    return corpus.episodes(count, {kind: 1.0}, 3)


def true(line: str) -> bool:
    """Whether an equation holds, computed here and not by the package."""
    found = FACT.fullmatch(line)
    assert found, line
    x, operation, y = Fraction(found[1]), found[2], Fraction(found[3])
    result = {"+": x + y, "-": x - y, "/": x / y}.get(operation, x * y)
    return number(found[4]) == result


def written(slips: SolverErrorRates, count: int = 600) -> list[Solution]:
    rng, solver = random.Random(0), Solver(slips)
    return [solver.solve(draw_problem(PROBLEM_KINDS, rng, "train", 0), rng) for _ in range(count)]


def right(work: Solution) -> bool:
    answer = boxed(work.text())
    return answer is not None and number(answer) == work.problem.answer


NONE = {"plan": 0.0, "carry": 0.0, "table": 0.0, "early": 0.0, "unboxed": 0.0}


def test_without_slips_the_solver_is_always_right():
    assert all(
        right(work) and work.first_wrong is None for work in written(SolverErrorRates(**NONE))
    )


@pytest.mark.parametrize("slip", NONE)
def test_every_slip_makes_solutions_wrong_and_nothing_else_does(slip: str):
    found = written(SolverErrorRates(**{**NONE, slip: 1.0}))
    wrong = [work for work in found if not right(work)]
    assert len(wrong) > 60
    if slip == "unboxed":
        assert len(wrong) == len(found) and all(work.first_wrong is None for work in found)
    else:
        assert all(work.first_wrong is not None for work in wrong)


def test_the_first_wrong_step_is_the_first_that_is_false_or_misread(corpus: MathCorpus):
    rng = random.Random(1)
    for _ in range(400):
        work = corpus.solver.solve(draw_problem(PROBLEM_KINDS, rng, "train", 0), rng)
        equations = [line for line in work.steps if "=" in line and "frac" not in line]
        before = equations if work.first_wrong is None else equations[: work.first_wrong]
        assert all(true(line) for line in before)


def test_the_solver_is_mediocre_at_every_level(corpus: MathCorpus):
    rng = random.Random(2)
    for level in range(1, 6):
        kinds = [kind for kind in PROBLEM_KINDS if kind.level == level]
        won = sum(
            right(corpus.solver.solve(draw_problem(kinds, rng, "train", 0), rng))
            for _ in range(300)
        )
        assert 0.3 < won / 300 < 0.85, level


def test_facts_are_true(corpus: MathCorpus):
    for episode in texts(corpus, "facts"):
        for turn in episode.turns:
            assert true(turn.observation[-1].content + turn.action)


def test_no_text_is_in_the_experts_form(corpus: MathCorpus):
    for kind in ("solve", *ROLES):
        for episode in texts(corpus, kind, 30):
            assert not any("Find" in turn.action for turn in episode.turns)


def test_only_problems_to_train_on_are_shown(corpus: MathCorpus):
    shown = {
        turn.observation[-1].content
        for kind in ("solve", "forecast")
        for episode in texts(corpus, kind, 100)
        for turn in episode.turns[:1]
    }
    tested = {task.data["problem"] for task in corpus.env.tasks("test")}
    assert len(shown) > 80 and not shown & tested
    rng = random.Random(0)
    assert {split_of(draw_problem(PROBLEM_KINDS, rng, "train", 0), 0) for _ in range(200)} == {
        "train"
    }


def test_a_text_begins_as_play_does_and_a_wrong_try_is_answered_as_the_world_does(
    corpus: MathCorpus,
):
    several = 0
    for episode in texts(corpus, "solve", 200):
        first = episode.turns[0].observation
        assert [message.content for message in first[:-1]] == [corpus.env.system()]
        for turn, following in zip(episode.turns, episode.turns[1:], strict=False):
            several += 1
            said = "Wrong." if boxed(turn.action) is not None else "No box."
            assert following.observation[0].content == f"{said} Try again."
    assert several > 5


def test_forecasts_are_what_the_world_said_when_the_solution_was_finished(corpus: MathCorpus):
    rng = random.Random(4)
    for _ in range(200):
        attempts = corpus._attempts(rng)
        for i, attempt in enumerate(attempts):
            gold = latex(attempt.solution.problem.answer)
            row = {"problem": "", "answer": gold, "level": 1, "subject": "", "solution": ""}
            world = corpus.env
            world.reset(Task("t", "train", row), 0)
            said = world.step(attempt.solution.text()).messages[0].content
            last = i == len(attempts) - 1
            again = f"{said.split(' It is')[0]} Try again."
            assert attempt.response == (said if last else again)


def test_forecasts_and_backups_end_with_the_outcome(corpus: MathCorpus):
    for kind in ("forecast", "backup"):
        found = [outcome(episode.turns[-1].action) for episode in texts(corpus, kind, 150)]
        assert None not in found and 0.2 < sum(map(bool, found)) / len(found) < 0.8


def test_a_backup_joins_the_response_and_the_next_forecast(corpus: MathCorpus):
    for episode in texts(corpus, "backup"):
        asked = episode.turns[-1].observation[0].content
        _, response, forecast = re.split(r"The response was: |\nA forecast from there: ", asked)
        joined = f"{response} {forecast.splitlines()[0]}".strip()
        assert episode.turns[-1].action == joined


def test_a_critique_names_a_step_of_the_action_that_is_false_or_misread(corpus: MathCorpus):
    named = 0
    for episode in texts(corpus, "evaluate", 80):
        critique = episode.turns[-1].action
        assert verdict(critique) is not None
        found = re.search(r"The step (.*) is wrong\.", critique)
        if found:
            named += 1
            assert found[1] in episode.turns[-2].action.split("\n\n")
        if "no box" in critique:
            assert boxed(episode.turns[-2].action) is None
    assert named > 12


def test_an_action_with_a_false_equation_is_never_called_optimal(corpus: MathCorpus):
    rng = random.Random(5)
    for _ in range(50):
        example = corpus.critique_example(rng)
        if "Yes" in example.critique:
            lines = example.turns[-1].action.strip().split("\n\n")
            state = [line for line in lines if FACT.fullmatch(line)]
            wrong = [i for i, line in enumerate(state) if not true(line)]
            assert not wrong or wrong[0] < len(state) - 1 or len(lines) > len(state)


def test_a_refinement_keeps_what_is_optimal_and_rewrites_the_rest(corpus: MathCorpus):
    kept = 0
    for episode in texts(corpus, "refine", 60):
        critique = episode.turns[-1].observation[0].content
        action, again = episode.turns[-2].action, episode.turns[-1].action
        assert not again.endswith("\n\n")
        if "Optimality: Yes" in critique:
            kept += 1
            assert any(again.startswith(action[i:].strip()) for i in range(len(action)))
    assert 8 < kept < 52


def test_what_is_judged_is_seen_and_not_taught(corpus: MathCorpus):
    for kind in ROLES:
        for episode in texts(corpus, kind, 20):
            *before, last = episode.turns
            assert all(turn.info == {"weight": 0.0} for turn in before)
            assert last.info == {"role": True}


def test_texts_and_worked_solutions_fit_the_play(corpus: MathCorpus):
    from transformers import AutoTokenizer

    chat = Chat(AutoTokenizer.from_pretrained(TINY))
    cfg = compose(["env=math"]).rollout
    for kind in ("facts", "solve", *ROLES):
        for episode in texts(corpus, kind, 20):
            chat.encode_turns(episode.turns)
            assert episode.tokens + cfg.max_tokens <= cfg.max_context
    for task in corpus.env.tasks("train"):
        corpus.env.reset(task, 0)
        whole = "".join(corpus.env.expert(task))
        assert len(chat.encode_action(whole)) <= cfg.max_tokens
