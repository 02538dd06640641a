"""Inspection (StepAgent): experts' trajectories cut after every action, and the agent's own try at
each cut. All tries are one call of the generator, which reads what they have in common once; no
world is needed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_cli.algos.base import Context
from agentrl_cli.algos.nlac.roles import TurnRef
from agentrl_cli.core.types import Episode, derive_seed
from agentrl_cli.models.policy import max_positions
from agentrl_cli.rollout.play import first_turn

if TYPE_CHECKING:
    from agentrl_cli.rollout.chat_template import Chat

Tried = Literal["turn", "last_line"]
Act = tuple[list[int], str]  # a state's ids, and the whole text of a turn there


@dataclass(frozen=True, eq=False)
class Fragment:
    """A cut of an expert's trajectory. `thought` is what of the expert's turn is not tried but
    stands before the try, with its ids in `given`; mostly nothing."""

    place: TurnRef
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
class Attempt:
    """What the agent itself does at a fragment; its reply goes on where the text ends in
    `turn_delimiter`."""

    fragment: Fragment
    ids: list[int]
    text: str
    turn_delimiter: str = ""

    @property
    def act(self) -> Act:
        """The state, and the whole turn there with what of it was not tried."""
        return self.fragment.place.state, self.fragment.thought + self.text

    @property
    def matches(self) -> bool:
        """Whether it is what the expert did, apart from layout, and goes on as the expert did."""
        return self._ends_alike and without_layout(self.text) == without_layout(self.fragment.text)

    @property
    def last_line_matches(self) -> bool:
        """The same of the last lines, which leaves what stands before them out."""
        own, expert = (
            without_layout(text).rpartition("\n")[2] for text in (self.text, self.fragment.text)
        )
        return self._ends_alike and own == expert

    @property
    def _ends_alike(self) -> bool:
        return self.text.endswith(self.turn_delimiter) == self.fragment.text.endswith(
            self.turn_delimiter
        )


def without_layout(text: str) -> str:
    """The text without what only a layout tells: single blanks, no empty lines, no margins."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def act(place: TurnRef) -> Act:
    """A turn as state and text."""
    return place.state, place.episode.turns[place.turn].action


def encode_action(text: str, context: Context) -> list[int]:
    """The ids of an action written anew without what only a layout tells: closed, unless it ends in
    the text at which the world cuts a reply that goes on."""
    goes_on = context.turn_delimiter != "" and text.endswith(context.turn_delimiter)
    ids = context.chat.encode_action(
        without_layout(text) + (context.turn_delimiter if goes_on else "")
    )
    return ids[:-1] if goes_on else ids


def all_turns(episodes: list[Episode]) -> list[TurnRef]:
    """One place a turn."""
    return [TurnRef(episode, turn) for episode in episodes for turn in range(len(episode.turns))]


def fragment(place: TurnRef, chat: Chat, tried: Tried) -> Fragment:
    """The cut before a turn of an expert or, where only its `last_line` is tried, behind its
    thought. A thought whose ids do not stand alone is tried with the rest."""
    text = place.episode.turns[place.turn].action
    thought, newline, last = text.rpartition("\n")
    if tried == "turn" or not newline or not last.strip():
        return Fragment(place, "", [])
    given = chat.encode_action(thought + newline)[:-1]
    alone = place.action[: len(given)] == given
    return Fragment(place, thought + newline, given) if alone else Fragment(place, "", [])


def fragments(context: Context, tried: Tried, count: int, tries: int = 1) -> list[Fragment]:
    """`count` fragments (0: a `tries`-th of all) of the demonstrations, drawn anew in every update.
    A state that leaves the model no room for an action is left out."""
    most = max_positions(context.models.module("policy")) - context.sampling.max_tokens
    every = [fragment(place, context.chat, tried) for place in all_turns(context.demos)]
    found = [one for one in every if len(one.state) <= most]
    count = count or -(-len(found) // tries)
    seed = derive_seed(context.seed, "fragments", context.step)
    return random.Random(seed).sample(found, count) if count < len(found) else found


def attempt_fragments(context: Context, found: list[Fragment]) -> list[Attempt]:
    """The current policy's own try at every fragment, cut where the world cuts a reply; random
    streams follow the order given."""
    context.generator.clear()
    seeds = [derive_seed(context.seed, "practice", context.step, i) for i in range(len(found))]
    rows = context.generator.generate([one.state for one in found], seeds, context.sampling)
    first = [first_turn(row[0].ids, context.turn_delimiter, context.chat) for row in rows]
    pairs = zip(found, first, strict=True)
    return [
        Attempt(one, ids, context.chat.decode(ids), context.turn_delimiter) for one, ids in pairs
    ]


def discriminator_halves(
    tries: list[Attempt], size: int, context: Context
) -> tuple[list[Attempt], list[Attempt]]:
    """The tries at one half of the fragments, `size` at each, and those at the other. Which half is
    drawn for two updates, in the second of which they change places."""
    order = list(range(0, len(tries), size))
    random.Random(derive_seed(context.seed, "halves", context.step // 2)).shuffle(order)
    parts = order[: len(order) // 2], order[len(order) // 2 :]
    first, second = ([tries[at + k] for at in part for k in range(size)] for part in parts)
    return (second, first) if context.step % 2 else (first, second)


def match_metrics(tries: list[Attempt]) -> dict[str, float]:
    """How many were practised, and in which share the agent did as the expert."""
    count = max(1, len(tries))
    return {
        "stepagent/fragments": float(len({one.fragment for one in tries})),
        "stepagent/match": sum(one.matches for one in tries) / count,
        "stepagent/last_line_match": sum(one.last_line_matches for one in tries) / count,
    }
