"""What every corpus is: scripted texts of several kinds, drawn afresh for every step.

A corpus writes texts of its own world: exercises, and play with what NLAC's roles say of single
turns. What all worlds share of the roles is written here once.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.roles import fill
from agentrl_cli.algos.samples import TurnRef
from agentrl_cli.core.types import Episode, Turn, derive_seed
from agentrl_cli.envs.base import Env

UNTRAINED = {"weight": 0.0}
READ_FORECASTS = (1, 2, 4, 8)  # how many a critique reads
ROLLOUTS = 4  # that Self-Distillation and NLRL read
HASH_RANGE = 2**63


@dataclass(frozen=True, kw_only=True)
class Habits:
    """For each mistake the share of occasions on which a scripted player is `prone` to it. On such
    an occasion it makes the mistake with probability `often`, else with `seldom`."""

    player = ""  # whose mistakes they are, in the seeds
    prone: dict[str, float]
    often: float
    seldom: float

    def chance(self, mistake: str, *occasion: object) -> float:
        """The probability of a mistake on an occasion, the same whenever it comes."""
        place = derive_seed(self.player, mistake, *occasion) / HASH_RANGE
        return self.often if place < self.prone.get(mistake, 0.0) else self.seldom


@dataclass(frozen=True)
class Branch:
    """What a role is asked and answers behind turn `turn` of a text, of its action or of another
    `action` in its place. The rest of the text does not see it."""

    turn: int
    prompt: str
    answer: str
    action: str | None = None


@dataclass(frozen=True)
class Text:
    """Turns without token ids, and branches in the order of their turns."""

    kind: str
    turns: list[Turn]
    branches: list[Branch] = field(default_factory=list)


@dataclass(frozen=True)
class CritiqueExample:
    """An action at a turn (None: the one that was played), forecasts of it and of another action as
    the evaluator reads them, its critique, and the action as the critique leaves it."""

    turn: int
    action: str | None
    forecasts: list[str]
    alternatives: list[str]
    critique: str
    refinement: str


@dataclass(kw_only=True)
class Corpus(ABC):
    """Writes texts of several kinds. The prompts of the roles are those of `nlac`."""

    nlac: NLAC

    def __post_init__(self) -> None:
        self.prompts = self.nlac.prompts

    def texts(
        self, count: int, mixture: Mapping[str, float], roles: Mapping[str, float], seed: int
    ) -> list[Text]:
        """`count` texts, of the kinds in proportion to `mixture`; in `play` each role speaks of a
        turn as often as `roles` says, on average."""
        rng = random.Random(seed)
        kinds = rng.choices(list(mixture), list(mixture.values()), k=count)
        return [self.text(kind, roles, derive_seed(seed, i)) for i, kind in enumerate(kinds)]

    def text(self, kind: str, roles: Mapping[str, float], seed: int) -> Text:
        """One text of a kind."""
        rng = random.Random(seed)
        if kind == "play":
            return self.play(rng, roles)
        written = self.exercises()[kind](rng)
        return written if isinstance(written, Text) else Text(kind, written)

    @abstractmethod
    def exercises(self) -> dict[str, Callable[[random.Random], list[Turn] | Text]]:
        """From each kind of text but play to what writes one."""

    @abstractmethod
    def true_forecasts(self, episode: Episode) -> list[str]:
        """Of each turn of an episode that was really played to its end, the forecast that came
        true."""

    @abstractmethod
    def other_world(self, rng: random.Random) -> Env:
        """A world like the corpus's, in whose train split the model plays for its forecasts. It
        has other tasks each time where there are few, for none is to be learnt by heart."""

    def own_play(self, episode: Episode) -> Text:
        """The model's own play, seen and not taught, and what came of it as its forecasts and their
        backups: so they tell how this player fares and not how the scripted one does, and a backup
        checks as well as a forecast, which learns from it."""
        turns = [
            Turn(t.observation, t.action, [], [], [], info=dict(UNTRAINED)) for t in episode.turns
        ]
        forecasts = self.true_forecasts(episode)
        branches = [Branch(i, self.prompts.forecast, text) for i, text in enumerate(forecasts)]
        for i, (text, later) in enumerate(pairwise(forecasts)):
            response = TurnRef(episode, i).response
            prompt = fill(self.prompts.backup, response=response, forecast=later)
            branches.append(Branch(i, prompt, text))
        return Text("own_play", turns, branches)

    @abstractmethod
    def play(self, rng: random.Random, roles: Mapping[str, float]) -> Text:
        """An episode of mediocre play, and what roles say of its turns."""

    def critique_branch(self, example: CritiqueExample) -> Branch:
        """The evaluator's prompt and critique."""
        shown = {"forecasts": example.forecasts, "others": example.alternatives}
        lines = {name: "\n".join(texts) for name, texts in shown.items()}
        prompt = fill(self.prompts.evaluate, **lines)
        return Branch(example.turn, prompt, example.critique, example.action)

    def refinement_branch(self, example: CritiqueExample) -> Branch:
        """A critique, and the same action where it was found optimal, else another draw."""
        prompt = fill(self.prompts.refine, critique=example.critique)
        return Branch(example.turn, prompt, example.refinement, example.action)


def rollout_line(action: str, end: str) -> str:
    """A play from here as Self-Distillation's refiner reads it: the action in one line, its end."""
    return " ".join([*action.split(), *end.split()])


def best_of_rollouts(actions: list[str], successes: list[bool]) -> str | None:
    """The action that succeeded most often, the first of equals; None where none did."""
    won = Counter(a for a, success in zip(actions, successes, strict=True) if success)
    return won.most_common(1)[0][0] if won else None


def branches_of(
    turns: Sequence[Turn],
    roles: Mapping[str, float],
    rng: random.Random,
    write: Callable[[str, int], Branch | None],
) -> list[Branch]:
    """What roles say of the turns, each of every turn as often as `roles` says, on average: what
    `write` writes of a role and a turn's number, where there is something to say."""
    written = [
        write(role, at)
        for at in range(len(turns))
        for role, rate in roles.items()
        for _ in times(rate, rng)
    ]
    return [branch for branch in written if branch is not None]


def times(rate: float, rng: random.Random) -> range:
    """As many times as `rate` says on average: its whole part, and once more by its rest."""
    return range(int(rate) + (rng.random() < rate % 1))
