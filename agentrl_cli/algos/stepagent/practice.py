"""Inspection (StepAgent): experts' trajectories cut before every action, and the agent's own
attempt at each cut. All attempts are one call of the generator, which reads what they have in
common once; no world is needed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_cli.algos.base import Context
from agentrl_cli.algos.turns import TurnRef, all_turns
from agentrl_cli.core.types import derive_seed
from agentrl_cli.models.policy import max_positions
from agentrl_cli.rollout.play import first_turn

if TYPE_CHECKING:
    from agentrl_cli.rollout.chat_template import Chat

Attempted = Literal["turn", "last_line"]


@dataclass(frozen=True)
class StateAction:
    """(s, a) as a discriminator reads it: a state's ids, and the whole text of a turn there."""

    state_ids: list[int]
    action: str

    @classmethod
    def played(cls, turn: TurnRef) -> StateAction:
        """What was played in a turn."""
        return cls(turn.state_ids, turn.action)


@dataclass(frozen=True, eq=False)
class Fragment:
    """An expert's trajectory cut before the action of `turn`. `thought` is what of the expert's
    turn is not attempted but stands before the attempt, with its ids; mostly nothing."""

    turn: TurnRef
    thought: str
    thought_ids: list[int]

    @property
    def state_ids(self) -> list[int]:
        """The ids before the attempt."""
        return self.turn.state_ids + self.thought_ids

    @property
    def expert_ids(self) -> list[int]:
        """The ids of what the expert did there."""
        return self.turn.action_ids[len(self.thought_ids) :]

    @property
    def expert_action(self) -> str:
        """What the expert did there."""
        return self.turn.action[len(self.thought) :]


@dataclass
class Attempt:
    """The agent's own act at a fragment; its reply goes on where it ends in `turn_delimiter`."""

    fragment: Fragment
    action_ids: list[int]
    action: str
    turn_delimiter: str = ""

    @property
    def state_action(self) -> StateAction:
        """The state, and the whole turn there with what of it was not attempted."""
        return StateAction(self.fragment.turn.state_ids, self.fragment.thought + self.action)

    @property
    def matches(self) -> bool:
        """Whether it is what the expert did, apart from layout, and goes on as the expert did."""
        expert = self.fragment.expert_action
        return self._ends_like_expert and without_layout(self.action) == without_layout(expert)

    @property
    def last_line_matches(self) -> bool:
        """The same of the last lines, which leaves what stands before them out."""
        texts = (self.action, self.fragment.expert_action)
        own, expert = (without_layout(text).rpartition("\n")[2] for text in texts)
        return self._ends_like_expert and own == expert

    @property
    def _ends_like_expert(self) -> bool:
        ends = (self.action, self.fragment.expert_action)
        own, expert = (text.endswith(self.turn_delimiter) for text in ends)
        return own == expert


def without_layout(text: str) -> str:
    """The text without what only a layout tells: single blanks, no empty lines, no margins."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def encode_action(text: str, context: Context) -> list[int]:
    """The ids of an action written anew without what only a layout tells: closed, unless it ends in
    the text at which the world cuts a reply that goes on."""
    delimiter = context.turn_delimiter
    if delimiter and text.endswith(delimiter):
        return context.chat.encode_action(without_layout(text) + delimiter)[:-1]
    return context.chat.encode_action(without_layout(text))


def fragment_at(turn: TurnRef, chat: Chat, attempted: Attempted) -> Fragment:
    """The cut before a turn of an expert or, where only its `last_line` is attempted, behind its
    thought. A thought whose ids do not stand alone is attempted with the rest."""
    thought, newline, last_line = turn.action.rpartition("\n")
    if attempted == "last_line" and newline and last_line.strip():
        thought_ids = chat.encode_action(thought + newline)[:-1]
        if turn.action_ids[: len(thought_ids)] == thought_ids:
            return Fragment(turn, thought + newline, thought_ids)
    return Fragment(turn, "", [])


def fragments(
    context: Context, attempted: Attempted, count: int, attempts: int = 1
) -> list[Fragment]:
    """`count` fragments (0: one in `attempts` of all) of the demonstrations, drawn anew in every
    update. A state that leaves the model no room for an action is left out."""
    longest = max_positions(context.models.module("policy")) - context.sampling.max_tokens
    turns = all_turns(context.demos)
    every = [fragment_at(turn, context.chat, attempted) for turn in turns]
    fitting = [fragment for fragment in every if len(fragment.state_ids) <= longest]
    count = count or -(-len(fitting) // attempts)
    seed = derive_seed(context.seed, "fragments", context.step)
    return random.Random(seed).sample(fitting, count) if count < len(fitting) else fitting


def attempt_fragments(context: Context, fragments: list[Fragment]) -> list[Attempt]:
    """The current policy's own attempt at every fragment, cut where the world cuts a reply; random
    streams follow the order given."""
    context.generator.clear()
    states = [fragment.state_ids for fragment in fragments]
    seeds = [derive_seed(context.seed, "practice", context.step, i) for i in range(len(states))]
    replies = context.generator.generate(states, seeds, context.sampling)
    delimiter, chat = context.turn_delimiter, context.chat
    actions = [first_turn(reply.ids, delimiter, chat) for (reply, *_) in replies]
    pairs = zip(fragments, actions, strict=True)
    return [Attempt(fragment, ids, chat.decode(ids), delimiter) for fragment, ids in pairs]


def discriminator_halves(
    attempts: list[Attempt], per_fragment: int, context: Context
) -> tuple[list[Attempt], list[Attempt]]:
    """The attempts at one half of the fragments, `per_fragment` at each, and those at the other.
    The order is drawn for two updates, in the second of which the halves of the same fragments
    change places; of fragments that are drawn anew, the halves are new ones."""
    firsts = list(range(0, len(attempts), per_fragment))
    random.Random(derive_seed(context.seed, "halves", context.step // 2)).shuffle(firsts)
    middle = len(firsts) // 2
    one, other = (
        [attempts[first + k] for first in half for k in range(per_fragment)]
        for half in (firsts[:middle], firsts[middle:])
    )
    return (other, one) if context.step % 2 else (one, other)


def match_metrics(attempts: list[Attempt]) -> dict[str, float]:
    """How many fragments were attempted, and in which share the agent did as the expert."""
    count = max(1, len(attempts))
    return {
        "stepagent/fragments": float(len({attempt.fragment for attempt in attempts})),
        "stepagent/match": sum(attempt.matches for attempt in attempts) / count,
        "stepagent/last_line_match": sum(a.last_line_matches for a in attempts) / count,
    }
