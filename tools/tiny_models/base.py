"""The base of all corpora: scripted texts of several kinds, new ones for every step.

A corpus writes exercises, and play with the outputs of NLAC's roles for single turns. The roles'
parts that all environments share are here.
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
from agentrl_cli.algos.samples import TurnRef, last_turn
from agentrl_cli.core.types import Episode, Turn, derive_seed
from agentrl_cli.envs.base import Env

UNTRAINED = {"weight": 0.0}
READ_FORECASTS = (1, 2, 4, 8)  # how many a critique reads
ROLLOUTS = 4  # that Self-Distillation and NLRL read
NO_ALTERNATIVES = 0.3  # share of critiques that read forecasts of their own action only
HASH_RANGE = 2**63


@dataclass(frozen=True, kw_only=True)
class Habits:
    """The share of occasions on which a scripted player is `prone` to a mistake. On such an
    occasion it makes the mistake with probability `often`, otherwise with probability `seldom`."""

    player = ""  # whose mistakes they are, in the seeds
    prone: dict[str, float]
    often: float
    seldom: float

    def chance(self, mistake: str, *occasion: object) -> float:
        """Return the probability of a mistake on an occasion, the same at every call."""
        place = derive_seed(self.player, mistake, *occasion) / HASH_RANGE
        return self.often if place < self.prone.get(mistake, 0.0) else self.seldom


@dataclass(frozen=True)
class Branch:
    """The prompt and the answer of a role after turn `turn` of a text, for its action or for
    another `action`. The rest of the text does not attend to it."""

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
    """An action at a turn (None: the played one), forecasts of it and of another action, its
    critique, and the action after refinement."""

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
        """Return `count` texts, with kinds in proportion to `mixture`. In `play`, each role writes
        about a turn `roles[role]` times on average."""
        rng = random.Random(seed)
        kinds = rng.choices(list(mixture), list(mixture.values()), k=count)
        return [self.text(kind, roles, derive_seed(seed, i)) for i, kind in enumerate(kinds)]

    def text(self, kind: str, roles: Mapping[str, float], seed: int) -> Text:
        rng = random.Random(seed)
        if kind == "play":
            return self.play(rng, roles)
        written = self.exercises()[kind](rng)
        return written if isinstance(written, Text) else Text(kind, written)

    @abstractmethod
    def exercises(self) -> dict[str, Callable[[random.Random], list[Turn] | Text]]:
        """Return the functions that write each kind of text except play."""

    @abstractmethod
    def true_forecasts(self, episode: Episode) -> list[str]:
        """Return the forecast of each turn of a finished episode that came true."""

    @abstractmethod
    def other_world(self, rng: random.Random) -> Env:
        """Return an environment like the corpus's, with other tasks if there are few, so that none
        is learned by heart."""

    def own_play(self, episode: Episode) -> Text:
        """Return an untrained episode of the model itself with its true forecasts and their
        backups. They describe this player and not the scripted one."""
        turns = [
            Turn(t.observation, t.action, [], [], [], info=dict(UNTRAINED)) for t in episode.turns
        ]
        forecasts = self.true_forecasts(episode)
        branches = [Branch(i, self.prompts.forecast, text) for i, text in enumerate(forecasts)]
        for i, (text, later) in enumerate(pairwise(forecasts)):
            response = TurnRef(episode, i).response
            prompt = fill(self.prompts.backup, response=response, forecast=later)
            branches.append(Branch(i, prompt, text))
        last = last_turn(episode)
        branches.append(self.terminal_backup(last.turn, last.response, forecasts[-1]))
        return Text("own_play", turns, branches)

    def terminal_backup(self, at: int, response: str, forecast: str) -> Branch:
        """Return the backup of a last turn: it reads the true outcome in place of a forecast."""
        outcome = forecast.split()[-1]
        prompt = fill(self.prompts.backup, response=response, forecast=outcome)
        return Branch(at, prompt, forecast)

    @abstractmethod
    def play(self, rng: random.Random, roles: Mapping[str, float]) -> Text:
        """An episode of mediocre play, and what roles say of its turns."""

    def critique_branch(self, example: CritiqueExample, rng: random.Random) -> Branch:
        """Return the evaluator's prompt and critique. Some prompts show no other action."""
        others_shown = [] if rng.random() < NO_ALTERNATIVES else example.alternatives
        shown = {"forecasts": example.forecasts, "others": others_shown}
        lines = {name: "\n".join(texts) for name, texts in shown.items()}
        others = lines["others"] and fill(self.prompts.alternatives, others=lines["others"])
        prompt = fill(self.prompts.evaluate, forecasts=lines["forecasts"], alternatives=others)
        return Branch(example.turn, prompt, example.critique, example.action)

    def refinement_branch(self, example: CritiqueExample) -> Branch:
        """Return a refinement: the same action if the critique found it optimal, otherwise another
        draw."""
        prompt = fill(self.prompts.refine, critique=example.critique)
        return Branch(example.turn, prompt, example.refinement, example.action)


def rollout_line(action: str, end: str) -> str:
    """Return a rollout as Self-Distillation's refiner reads it: the action on one line, then its
    end."""
    return " ".join([*action.split(), *end.split()])


def best_of_rollouts(actions: list[str], successes: list[bool]) -> str | None:
    """Return the action that succeeded most often, the first of equal ones, or None if none did."""
    won = Counter(a for a, success in zip(actions, successes, strict=True) if success)
    return won.most_common(1)[0][0] if won else None


def branches_of(
    turns: Sequence[Turn],
    roles: Mapping[str, float],
    rng: random.Random,
    write: Callable[[str, int], Branch | None],
) -> list[Branch]:
    """Return the outputs of roles for the turns, each role `roles[role]` times per turn on average.
    A role and a turn without output are skipped."""
    written = [
        write(role, at)
        for at in range(len(turns))
        for role, rate in roles.items()
        for _ in times(rate, rng)
    ]
    return [branch for branch in written if branch is not None]


def times(rate: float, rng: random.Random) -> range:
    """Return a random count with mean `rate`: its whole part, plus 1 with the probability of the
    rest."""
    return range(int(rate) + (rng.random() < rate % 1))
