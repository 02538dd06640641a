"""A turn of an episode as algorithms name it: its state, its action, what the world answered."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_cli.core.types import Episode, Task, Turn


@dataclass(frozen=True, eq=False)
class TurnRef:
    """Turn number `turn` of an episode: (s, a, s'). Compared by identity."""

    episode: Episode
    turn: int

    @classmethod
    def from_state(cls, state_ids: list[int]) -> TurnRef:
        """A turn of which nothing is known but the ids that lead to its action."""
        turn = Turn([], "", state_ids, [], [])
        return cls(Episode("", Task("", "", {}), "", 0, [turn]), 0)

    @property
    def state_ids(self) -> list[int]:
        """s: the ids in which the turn's action was sampled."""
        return self.episode.state_ids(self.turn)

    @property
    def action_ids(self) -> list[int]:
        """a: the ids of the action that was played."""
        return self.episode.turns[self.turn].action_ids

    @property
    def action(self) -> str:
        """a as text."""
        return self.episode.turns[self.turn].action

    @property
    def response(self) -> str:
        """What the world answered to a, as text."""
        return "\n".join(message.content for message in self.episode.response(self.turn))

    @property
    def is_last(self) -> bool:
        """Whether the episode ended with this turn."""
        return self.turn == len(self.episode.turns) - 1

    @property
    def next(self) -> TurnRef:
        """The turn that was played in s'."""
        return TurnRef(self.episode, self.turn + 1)


def all_turns(episodes: list[Episode]) -> list[TurnRef]:
    """Every turn of the episodes, in order."""
    return [TurnRef(episode, turn) for episode in episodes for turn in range(len(episode.turns))]
