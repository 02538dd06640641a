"""The vocabulary: Task, Message, Step, Turn, Episode, Sample; JSON in and out, no torch."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

Item = TypeVar("Item")
ROLES = ("system", "user", "assistant", "tool")  # that a message may have
MOST_EPISODES = 1_000_000  # that are begun at once, all of which memory has to hold


@dataclass(frozen=True)
class Task:
    """What to do: `data` is the environment's own description (JSON values only)."""

    id: str
    split: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Message:
    """One chat message; `role` is one of `ROLES`."""

    role: str
    content: str
    tool_calls: tuple[dict[str, Any], ...] = ()


@dataclass
class Step:
    """What an environment answers. `done`: the world has ended the episode, at a limit of its own
    too; `truncated`: it was stopped from outside, and how it would have ended is unknown."""

    messages: list[Message]
    reward: float
    done: bool
    truncated: bool
    info: dict[str, Any] = field(default_factory=dict)


@dataclass
class Turn:
    """An observation and the action that answered it, as text and as tokens exactly as sampled.
    `observation_ids` is the delta since the last action (the first turn's holds the whole prompt),
    so an episode's tokens are one flat sequence; `restart` says that the context does not extend
    the last turn's. `logprobs` are the generator's, one per action token. `finish` is stop or
    length."""

    observation: list[Message]
    action: str
    observation_ids: list[int]
    action_ids: list[int]
    logprobs: list[float]
    reward: float = 0.0
    done: bool = False
    finish: str = "stop"
    restart: bool = False
    info: dict[str, Any] = field(default_factory=dict)


@dataclass
class Episode:
    """One played task. `stop` is done, truncated, context, diverged or error; `closing` is what the
    world said last, `seconds` the whole play took and `env_seconds` the world alone. `error` says
    what broke and where, `error_kind` is one of errors.FAILURE_KINDS. `policy_version` is the
    version of the model that played: how often its weights had changed; 0 where none did."""

    id: str
    task: Task
    group: str
    seed: int
    turns: list[Turn]
    stop: str = "done"
    error: str | None = None
    policy_version: int = 0
    seconds: float = 0.0
    closing: list[Message] = field(default_factory=list)
    env_seconds: float = 0.0
    error_kind: str | None = None

    @property
    def reward(self) -> float:
        """The sum of the turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def success(self) -> bool:
        """Whether the world called the episode a success (`info["success"]` of its last turn); one
        that broke, be it in closing its world, is none."""
        return bool(self.turns and not self.error and self.turns[-1].info.get("success", False))

    @property
    def tokens(self) -> int:
        """The number of tokens of the flat sequence."""
        return sum(len(turn.observation_ids) + len(turn.action_ids) for turn in self.turns)

    def state_ids(self, turn: int) -> list[int]:
        """The token ids of the context in which action `turn` was sampled."""
        start = max(i for i in range(turn + 1) if i == 0 or self.turns[i].restart)
        ids: list[int] = []
        for past in self.turns[start:turn]:
            ids += past.observation_ids + past.action_ids
        return ids + self.turns[turn].observation_ids

    def response(self, turn: int) -> list[Message]:
        """What the world answered to action `turn`."""
        return self.turns[turn + 1].observation if turn + 1 < len(self.turns) else self.closing

    def to_json(self) -> dict[str, Any]:
        """JSON values that `from_json` reads back equal."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Episode:
        """Inverse of `to_json`. Raises KeyError or TypeError where the row is not an episode."""
        if not isinstance(row, dict):
            raise TypeError("a line is no object")
        rows = [{**turn, "observation": _messages(turn["observation"])} for turn in row["turns"]]
        turns = [Turn(**turn) for turn in rows]
        task, closing = Task(**row["task"]), _messages(row["closing"])
        episode = cls(**{**row, "task": task, "turns": turns, "closing": closing})
        _check_types(episode)
        return episode


@dataclass
class Sample:
    """A training sequence. `mask[i]`: 1 where token i is trained; `streams`: numbers per token."""

    ids: list[int]
    mask: list[int]
    streams: dict[str, list[float]] = field(default_factory=dict)


def _check_types(episode: Episode) -> None:
    """Raise TypeError where what every reader of an episode relies on is something else."""
    texts: list[Any] = [episode.id, episode.task.id, *(turn.action for turn in episode.turns)]
    said = [message for turn in episode.turns for message in turn.observation] + episode.closing
    if not all(isinstance(text, str) for text in [*texts, *(m.content for m in said)]):
        raise TypeError("an id, an action or a message is no text")
    if not all(isinstance(turn.reward, int | float) for turn in episode.turns):
        raise TypeError("a reward is no number")
    ids = [ids for turn in episode.turns for ids in (turn.observation_ids, turn.action_ids)]
    if not all(isinstance(row, list) for row in ids):
        raise TypeError("the ids of a turn are no list")
    if not all(isinstance(turn.info, dict) for turn in episode.turns):
        raise TypeError("the info of a turn is no object")


def _messages(rows: list[dict[str, Any]]) -> list[Message]:
    return [Message(row["role"], row["content"], tuple(row.get("tool_calls", ()))) for row in rows]


def evenly_spaced(items: list[Item], count: int) -> list[Item]:
    """At most `count` of the items, evenly over their order, as that of tasks."""
    taken = min(count, len(items))
    return [items[i * len(items) // taken] for i in range(taken)]


def derive_seed(*parts: object) -> int:
    """A 63-bit seed that named parts (run seed, stream, task, episode, turn) determine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
