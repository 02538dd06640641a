"""The corpus of MATH's bundled model tells the truth about a mediocre solver."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from agentrl_cli.envs.math.answers import number
from agentrl_cli.envs.math.problems import Problem, expert_steps
from tools.tiny_models.base import Text
from tools.tiny_models.math import MathCorpus
from tools.tiny_models.tests.corpus_builder import (
    math_corpus,
    problem_of,
    right_steps,
    texts_of,
)

pytestmark = pytest.mark.slow  # of tools that are rarely used

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


def posed(text: Text) -> Problem:
    """The problem of a text."""
    return problem_of(text.turns[0].observation[-1].content)


# the solver


def test_no_text_is_in_the_experts_form(corpus: MathCorpus):
    """The expert first states the aim and then splits operations."""
    for text in texts_of(corpus, "play", 40, "refine", "rollouts"):
        apart = set(expert_steps(posed(text))) - set(right_steps(posed(text)))
        answers = [branch.answer for branch in text.branches if branch.prompt.endswith("again.")]
        for action in [*(turn.action for turn in text.turns), *answers]:
            assert "Find" not in action
            assert action.strip() not in apart or not true(action.strip())


# exercises


def test_only_problems_to_train_on_are_played(corpus: MathCorpus):
    played = [
        turn.observation[-1].content
        for kind in ("play", "attempts", "checks")
        for text in texts_of(corpus, kind, 60)
        for turn in (text.turns[::2] if kind == "checks" else text.turns[:1])
    ]
    assert len(set(played)) > 100
    assert {problem_of(sentence).split(corpus.env.split_seed) for sentence in played} == {"train"}


# roles
