"""Inspection (StepAgent): experts' trajectories cut after every action, and the agent's own try at
each cut. All tries are one call of the generator, which reads what they have in common once; no
world is needed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_cli.algos.base import Context
from agentrl_cli.algos.roles import Place
from agentrl_cli.models.policy import reach
from agentrl_cli.types import Episode, Turn, derive_seed

if TYPE_CHECKING:
    from agentrl_cli.chat import Chat

Tried = Literal["turn", "last_line"]


@dataclass(frozen=True, eq=False)
class Fragment:
    """A cut of an expert's trajectory. `thought` is what of the expert's turn is not tried but
    stands before the try, with its ids in `given`; mostly nothing."""

    place: Place
    thought: str
    given: list[int]

    @property
    def state(self) -> list[int]:
        """The ids before the try."""
        return self.place.state + self.given

    @property
    def action(self) -> list[int]:
        """The ids of what the expert did there."""
        return self.place.action[len(self.given) :]

    @property
    def text(self) -> str:
        """What the expert did there."""
        whole = self.place.episode.turns[self.place.turn].action
        return whole[len(self.thought) :]


@dataclass
class Try:
    """What the agent itself does at a fragment."""

    fragment: Fragment
    ids: list[int]
    text: str

    @property
    def matches(self) -> bool:
        """Whether it is what the expert did, apart from layout."""
        return tidy(self.text) == tidy(self.fragment.text)

    @property
    def last_line_matches(self) -> bool:
        """The same of the last lines, which leaves thoughts out."""
        own, expert = (tidy(text).rpartition("\n")[2] for text in (self.text, self.fragment.text))
        return own == expert

    def as_episode(self) -> Episode:
        """An episode of this one turn, which ends with it."""
        place = self.fragment.place
        turn = Turn([], self.text, self.fragment.state, self.ids, [0.0] * len(self.ids))
        name = f"{place.episode.id}-t{place.turn:02d}"
        return Episode(name, place.episode.task, name, 0, [turn])


def tidy(text: str) -> str:
    """The text without what only a layout tells: single blanks, no empty lines, no margins."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def every_turn(episodes: list[Episode]) -> list[Place]:
    """One place a turn."""
    return [Place(episode, turn) for episode in episodes for turn in range(len(episode.turns))]


def fragment(place: Place, chat: Chat, tried: Tried) -> Fragment:
    """The cut before a turn of an expert or, where only its `last_line` is tried, behind its
    thought. A thought whose ids do not stand alone is tried with the rest."""
    text = place.episode.turns[place.turn].action
    thought, newline, last = text.rpartition("\n")
    if tried == "turn" or not newline or not last.strip():
        return Fragment(place, "", [])
    given = chat.encode_action(thought + newline)[:-1]
    alone = place.action[: len(given)] == given
    return Fragment(place, thought + newline, given) if alone else Fragment(place, "", [])


def fragments(context: Context, tried: Tried, count: int) -> list[Fragment]:
    """`count` fragments (0: all) of the demonstrations, drawn anew in every update. A state that
    leaves the model no room for an action is left out."""
    most = reach(context.models.module("policy")) - context.sampling.max_tokens
    every = [fragment(place, context.chat, tried) for place in every_turn(context.demos)]
    found = [one for one in every if len(one.state) <= most]
    seed = derive_seed(context.seed, "fragments", context.step)
    return random.Random(seed).sample(found, count) if 0 < count < len(found) else found


def practise(context: Context, found: list[Fragment]) -> list[Try]:
    """The current policy's own try at every fragment; random streams follow the order given."""
    context.generator.clear()
    seeds = [derive_seed(context.seed, "practice", context.step, i) for i in range(len(found))]
    rows = context.generator.generate([one.state for one in found], seeds, context.sampling)
    pairs = zip(found, rows, strict=True)
    return [Try(one, row[0].ids, context.chat.decode(row[0].ids)) for one, row in pairs]


def match_metrics(tries: list[Try]) -> dict[str, float]:
    """How many were practised, and in which share the agent did as the expert."""
    count = max(1, len(tries))
    return {
        "stepagent/fragments": float(len(tries)),
        "stepagent/match": sum(one.matches for one in tries) / count,
        "stepagent/last_line_match": sum(one.last_line_matches for one in tries) / count,
    }
