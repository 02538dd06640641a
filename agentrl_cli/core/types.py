"""Tasks, messages, turns, episodes and training samples, with their JSON form."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

Item = TypeVar("Item")
ROLES = ("system", "user", "assistant", "tool")  # of a message
ANNOTATIONS = frozenset(  # keys of `Turn.info` that play, algorithms and tools write
    (
        "weight",
        "branches",
        "value",
        "advantage",
        "td_error",
        "forecast_gain",
        "critic",
        "thoughts",
        "forced",
    )
)
MOST_EPISODES = 1_000_000  # that one call may start; memory has to hold all of them
# former name of a field of Turn or Episode: its name today
OLD_FIELDS = {"closing": "final_observation", "finish": "finish_reason"}
REMOVED_FIELDS = ("restart", "context_reset")  # of Turn; no version has set them


@dataclass(frozen=True)
class Task:
    """A task of an environment. `data` holds JSON values that only the environment interprets."""

    id: str
    split: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Message:
    """A chat message. `role` is one of `ROLES`."""

    role: str
    content: str
    tool_calls: tuple[dict[str, Any], ...] = ()


@dataclass
class Step:
    """The result of `Env.step`. `done`: the environment ended the episode, also at its own limit.
    `truncated`: the episode was stopped from outside, so its outcome is unknown."""

    messages: list[Message]
    reward: float
    done: bool
    truncated: bool
    info: dict[str, Any] = field(default_factory=dict)


@dataclass
class Turn:
    """An observation and the action sampled after it, as text and as token ids.

    `observation_ids` holds only the tokens added since the last action; those of the first turn
    are the whole prompt. The tokens of an episode are therefore one flat sequence. `logprobs` has
    one value per action token, from the generator. `finish_reason` is "stop" or "length".
    """

    observation: list[Message]
    action: str
    observation_ids: list[int]
    action_ids: list[int]
    logprobs: list[float]
    reward: float = 0.0
    done: bool = False
    finish_reason: str = "stop"
    info: dict[str, Any] = field(default_factory=dict)


@dataclass
class Episode:
    """A played task.

    `stop` is done, truncated, context, diverged or error. `final_observation` is the last
    observation, which no action follows. `seconds` measures the whole episode and `env_seconds` the
    calls of the environment. `error` describes a failure and `error_kind` is one of
    `errors.FAILURE_KINDS`. `policy_version` counts the weight updates of the model that played.
    """

    id: str
    task: Task
    group: str
    seed: int
    turns: list[Turn]
    stop: str = "done"
    error: str | None = None
    policy_version: int = 0
    seconds: float = 0.0
    final_observation: list[Message] = field(default_factory=list)
    env_seconds: float = 0.0
    error_kind: str | None = None

    @property
    def reward(self) -> float:
        """The sum of the turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def success(self) -> bool:
        """Whether `info["success"]` of the last turn is true and the episode did not fail."""
        return bool(self.turns and not self.error and self.turns[-1].info.get("success", False))

    @property
    def tokens(self) -> int:
        """The number of tokens of the flat sequence."""
        return sum(len(turn.observation_ids) + len(turn.action_ids) for turn in self.turns)

    def state_ids(self, turn: int) -> list[int]:
        """Return the token ids of the context in which action `turn` was sampled."""
        ids: list[int] = []
        for past in self.turns[:turn]:
            ids += past.observation_ids + past.action_ids
        return ids + self.turns[turn].observation_ids

    def response(self, turn: int) -> list[Message]:
        """Return the observation that followed action `turn`."""
        is_last = turn + 1 == len(self.turns)
        return self.final_observation if is_last else self.turns[turn + 1].observation

    def to_json(self) -> dict[str, Any]:
        """Return JSON values from which `from_json` builds an equal episode."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Episode:
        """Build an episode from JSON values, also from those of an earlier version. Raises KeyError
        or TypeError if they are not an episode."""
        row = _current_fields(row)
        rows = [_current_fields(turn) for turn in row["turns"]]
        turns = [Turn(**{**turn, "observation": _messages(turn["observation"])}) for turn in rows]
        task, final = Task(**row["task"]), _messages(row["final_observation"])
        episode = cls(**{**row, "task": task, "turns": turns, "final_observation": final})
        _check_types(episode)
        return episode


@dataclass
class Sample:
    """A training sequence of token ids. `mask[i]` is 1 if token i is trained. `per_token`
    holds numbers per token."""

    ids: list[int]
    mask: list[int]
    per_token: dict[str, list[float]] = field(default_factory=dict)


def _current_fields(row: Any) -> Any:
    if not isinstance(row, dict):
        raise TypeError("expected an object")
    kept = {key: value for key, value in row.items() if key not in REMOVED_FIELDS}
    return {OLD_FIELDS.get(key, key): value for key, value in kept.items()}


def _messages(rows: list[dict[str, Any]]) -> list[Message]:
    return [Message(row["role"], row["content"], tuple(row.get("tool_calls", ()))) for row in rows]


def _check_types(episode: Episode) -> None:
    texts = [episode.id, episode.task.id, *(m.content for m in episode.final_observation)]
    typed: list[tuple[Any, Any]] = [(text, str) for text in texts]
    for turn in episode.turns:
        typed += [(text, str) for text in [turn.action, *(m.content for m in turn.observation)]]
        typed += [(turn.observation_ids, list), (turn.action_ids, list)]
        typed += [(turn.reward, (int, float)), (turn.info, dict)]
    for value, kind in typed:
        if not isinstance(value, kind):
            raise TypeError(f"unexpected value {value!r}")


def evenly_spaced(items: list[Item], count: int) -> list[Item]:
    """Return at most `count` items, evenly spaced over their order."""
    taken = min(count, len(items))
    return [items[i * len(items) // taken] for i in range(taken)]


def derive_seed(*parts: object) -> int:
    """Return the 63-bit seed determined by named parts (run seed, stream, task, episode, turn)."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
