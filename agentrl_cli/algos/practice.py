"""Inspection (StepAgent): experts' trajectories cut after every action, and the agent's own try at
each cut. All tries are one call of the generator, which reads what they have in common once; no
world is needed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from agentrl_cli.algos.base import Context
from agentrl_cli.algos.roles import Place
from agentrl_cli.models.policy import reach
from agentrl_cli.types import Episode, Turn, derive_seed


@dataclass
class Try:
    """What the agent itself does in the state of an expert's turn."""

    place: Place
    ids: list[int]
    text: str

    @property
    def expert(self) -> str:
        """What the expert did there."""
        return self.place.episode.turns[self.place.turn].action

    def matches(self, by: str) -> bool:
        """Whether it is what the expert did, apart from white space: the whole `text`, or its
        `last_line`, which leaves thoughts out."""
        own, expert = tidy(self.text), tidy(self.expert)
        if by == "last_line":
            own, expert = own.rpartition("\n")[2], expert.rpartition("\n")[2]
        return own == expert


def tidy(text: str) -> str:
    """The text without what only a layout tells: single blanks, no empty lines, no margins."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def every_turn(episodes: list[Episode]) -> list[Place]:
    """One place a turn."""
    return [Place(episode, turn) for episode in episodes for turn in range(len(episode.turns))]


def fragments(demos: list[Episode], most: int) -> list[Place]:
    """One place for every action of the demonstrations whose state has at most `most` ids."""
    return [place for place in every_turn(demos) if len(place.state) <= most]


def draw(places: list[Place], count: int, seed: int) -> list[Place]:
    """`count` of the places without replacement; all of them where that is 0 or too many."""
    return random.Random(seed).sample(places, count) if 0 < count < len(places) else places


def drawn_fragments(context: Context, count: int) -> list[Place]:
    """`count` fragments (0: all) of the demonstrations, drawn anew in every update."""
    found = fragments(context.demos, room(context))
    return draw(found, count, derive_seed(context.seed, "fragments", context.step))


def practise(context: Context, places: list[Place]) -> list[Try]:
    """The current policy's action at every place; random streams follow the place in the list."""
    context.generator.clear()
    seeds = [derive_seed(context.seed, "practice", context.step, i) for i in range(len(places))]
    rows = context.generator.generate([place.state for place in places], seeds, context.sampling)
    pairs = zip(places, rows, strict=True)
    return [Try(place, row[0].ids, context.chat.decode(row[0].ids)) for place, row in pairs]


def room(context: Context) -> int:
    """The longest state in which an action of the greatest length fits the model."""
    return reach(context.models.module("policy")) - context.sampling.max_tokens


def as_episode(attempt: Try) -> Episode:
    """A try as an episode of one turn, which ends with it."""
    place = attempt.place
    turn = Turn([], attempt.text, place.state, attempt.ids, [0.0] * len(attempt.ids))
    name = f"{place.episode.id}-t{place.turn:02d}"
    return Episode(name, place.episode.task, name, 0, [turn])


def match_metrics(tries: list[Try]) -> dict[str, float]:
    """How many were practised, and in which share the agent did as the expert."""
    count = max(1, len(tries))
    return {
        "stepagent/fragments": float(len(tries)),
        "stepagent/match": sum(one.matches("text") for one in tries) / count,
        "stepagent/last_line_match": sum(one.matches("last_line") for one in tries) / count,
    }
