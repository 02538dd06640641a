"""What every corpus is: scripted episodes of several kinds, drawn afresh for every step.

A corpus writes texts of its own world; what all share of NLAC's roles is written here once.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.prompts import fill
from agentrl_cli.core.types import Episode, Message, Task, Turn, derive_seed

Writer = Callable[[random.Random], list[Turn]]
UNTRAINED = {"weight": 0.0}


@dataclass(frozen=True)
class CritiqueExample:
    """Turns that end with a judged action, the evaluator's prompt, the critique it answers with,
    and the action as the critique leaves it."""

    turns: list[Turn]
    prompt: str
    critique: str
    refinement: str


@dataclass(kw_only=True)
class Corpus(ABC):
    """Writes episodes of several kinds. The prompts of the roles, and how many forecasts a critique
    reads, are those of `nlac`."""

    nlac: NLAC

    def __post_init__(self) -> None:
        self.prompts, self.forecasts = self.nlac.prompts, self.nlac.forecasts

    def episodes(self, count: int, mixture: dict[str, float], seed: int) -> list[Episode]:
        """`count` scripted episodes without token ids, of the kinds in proportion to `mixture`."""
        rng = random.Random(seed)
        kinds = rng.choices(list(mixture), list(mixture.values()), k=count)
        return [self._episode(kind, derive_seed(seed, i)) for i, kind in enumerate(kinds)]

    def _episode(self, kind: str, seed: int) -> Episode:
        turns = self.writers()[kind](random.Random(seed))
        task = Task(f"corpus-{kind}", "train", {"kind": kind})
        return Episode(f"{kind}-{seed}", task, kind, seed, turns)

    @abstractmethod
    def writers(self) -> dict[str, Writer]:
        """From each kind of text to what writes one."""

    @abstractmethod
    def critique_example(self, rng: random.Random) -> CritiqueExample:
        """An action in its context, judged by how it and another one end."""

    def evaluation_prompt(self, mine: list[str], others: list[str]) -> str:
        """The evaluator's prompt with as many forecasts of either action as a critique reads."""
        mine, others = mine[: self.forecasts], others[: self.forecasts]
        return fill(self.prompts.evaluate, forecasts="\n".join(mine), others="\n".join(others))

    def evaluate(self, rng: random.Random) -> list[Turn]:
        """Forecasts of an action and of another one, and the critique that their ends bear out."""
        example = self.critique_example(rng)
        return role_turns(example.turns, example.prompt, example.critique)

    def refine(self, rng: random.Random) -> list[Turn]:
        """A critique, and the same action where it was found optimal, else another draw."""
        example = self.critique_example(rng)
        prompt = fill(self.prompts.refine, critique=example.critique)
        return role_turns(example.turns, prompt, example.refinement)


def role_turns(turns: list[Turn], prompt: str, answer: str) -> list[Turn]:
    """What was played, the role's prompt behind it, and what the role answers."""
    return [*turns, Turn([Message("user", prompt)], answer, [], [], [], info={"role": True})]
