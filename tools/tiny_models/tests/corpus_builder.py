"""The corpora of the bundled models for tests, and checks of their texts by the environments. No
scripted player is asked."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.core.types import Turn
from agentrl_cli.envs.math.problems import PROBLEM_KINDS, Problem
from agentrl_cli.envs.twentyq.questions import Guess, Question, parse
from agentrl_cli.models.load import TINY
from agentrl_cli.rollout.chat_template import Chat
from tools.tiny_models.__main__ import CONF
from tools.tiny_models.base import Branch, Corpus, Text
from tools.tiny_models.math import MathCorpus
from tools.tiny_models.tau import TauCorpus
from tools.tiny_models.twentyq import TwentyQCorpus
from tools.tiny_models.wiki import WikiCorpus

WORLDS = ("math", "twentyq", "tau_mini", "wiki")
ROLES = ("forecast", "explored", "backup", "evaluate", "refine", "rollouts", "aggregate")
SIGNS = {"+": "+", "-": "-", "*": r"\cdot", "/": "/"}


@cache
def config_of(world: str) -> Any:
    """The settings that make a world's base."""
    name = "arithmetic" if world == "math" else world
    return check(compose([f"experiment={name}_base"], [CONF]))


@cache
def corpus_of(world: str) -> Corpus:
    """The corpus that makes a world's base."""
    return build(config_of(world).rollout.corpus)


def math_corpus() -> MathCorpus:
    """The corpus of MATH."""
    corpus = corpus_of("math")
    assert isinstance(corpus, MathCorpus)
    return corpus


def twentyq_corpus() -> TwentyQCorpus:
    """The corpus of Twenty Questions."""
    corpus = corpus_of("twentyq")
    assert isinstance(corpus, TwentyQCorpus)
    return corpus


def tau_corpus() -> TauCorpus:
    """The corpus of the small shop."""
    corpus = corpus_of("tau_mini")
    assert isinstance(corpus, TauCorpus)
    return corpus


def wiki_corpus() -> WikiCorpus:
    """The corpus of the wiki."""
    corpus = corpus_of("wiki")
    assert isinstance(corpus, WikiCorpus)
    return corpus


@cache
def tiny_chat() -> Chat:
    """The chat of the bundled models."""
    from transformers import AutoTokenizer

    return Chat(AutoTokenizer.from_pretrained(TINY))


def texts_of(corpus: Corpus, kind: str, count: int, *roles: str, seed: int = 0) -> list[Text]:
    """Texts of one kind in which each role speaks once of every turn."""
    return corpus.texts(count, {kind: 1.0}, dict.fromkeys(roles, 1.0), seed)


def spoken(corpus: Corpus, role: str, count: int, seed: int = 0) -> list[tuple[Text, Branch]]:
    """Return what a role writes about all turns of `count` episodes, with the branches."""
    texts = texts_of(corpus, "play", count, role, seed=seed)
    return [(text, branch) for text in texts for branch in text.branches]


# MATH: the right lines of a problem, by arithmetic of our own


def problem_of(text: str) -> Problem:
    """The problem that a sentence poses."""
    for kind in PROBLEM_KINDS:
        pattern = re.escape(kind.text.format("@0@", "@1@", "@2@"))
        for i in range(3):
            pattern = pattern.replace(f"@{i}@", rf"(?P<n{i}>\d+)", 1).replace(
                f"@{i}@", rf"(?P=n{i})"
            )
        if found := re.fullmatch(pattern, text):
            return Problem(kind, tuple(int(n) for _, n in sorted(found.groupdict().items())))
    raise AssertionError(f"no kind of problem reads {text!r}")


def right_steps(problem: Problem) -> list[str]:
    """Return the steps of a solution without mistakes."""
    values, lines = dict(zip("abc", problem.operands, strict=False)), []
    for operation in problem.kind.plan.operations:
        x, y = values[operation.left], values[operation.right]
        result = {"+": x + y, "-": x - y, "*": x * y, "/": x // y}[operation.sign]
        lines.append(f"{x}{SIGNS[operation.sign]}{y}={result}")
        values |= {"r": result, "q": values.get("r", 0)}
    end = [str(values[name]) for name in problem.kind.plan.end]
    inner = end[0] if len(end) == 1 else rf"\frac{{{end[0]}}}{{{end[1]}}}"
    return [*lines, rf"\boxed{{{inner}}}"]


# Twenty Questions: how the environment reads an action


def last_line(turn: Turn) -> str:
    """The question or guess of a turn."""
    return turn.action.split("\n")[-1]


@cache
def asked_by(action: str) -> Question | Guess | None:
    """What the environment reads in an action."""
    return parse(action, twentyq_corpus().env.world_table)


def seeds(count: int) -> list[random.Random]:
    """Sources of random numbers."""
    return [random.Random(seed) for seed in range(count)]
