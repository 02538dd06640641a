"""Replay: episodes in, prioritised turns out. With a path every episode is also appended to a JSONL
file, so that a checkpoint needs only how many lines there were and the priorities."""

from __future__ import annotations

import json
import math
import random
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode


class TurnKey(NamedTuple):
    """Names one turn of one episode in the buffer."""

    episode: str
    turn: int


class ReplayBuffer:
    """The last `capacity` episodes and a priority for each of their turns."""

    def __init__(self, path: Path | None, capacity: int) -> None:
        """Raises UserError where the capacity is below 1. An existing file is appended to; `load`
        first cuts it back to what a checkpoint knew."""
        if capacity < 1:
            raise UserError(f"buffer capacity {capacity} holds nothing; give at least 1")
        self.path, self.capacity = path, capacity
        self._episodes: dict[str, Episode] = {}
        self._priorities: dict[str, list[float]] = {}
        self._lines = files.count_lines(path) if path is not None else 0

    def __len__(self) -> int:
        """The number of stored episodes."""
        return len(self._episodes)

    @property
    def turns(self) -> int:
        """The number of stored turns."""
        return sum(map(len, self._priorities.values()))

    def episodes(self) -> list[Episode]:
        """The stored episodes, oldest first."""
        return list(self._episodes.values())

    def episode(self, key: TurnKey) -> Episode:
        """The episode of a turn. Raises KeyError where it was dropped."""
        return self._episodes[key.episode]

    def add(self, episodes: list[Episode]) -> None:
        """Append; the oldest beyond the capacity are dropped, broken or empty ones never taken in.
        New turns get the greatest priority stored (1 in an empty buffer), so each is soon looked at
        (Schaul et al. 2016). Raises ValueError for an id already stored, UserError where the file
        cannot be written."""
        good = [episode for episode in episodes if episode.error is None and episode.turns]
        for episode in good:
            if episode.id in self._episodes:
                raise ValueError(f"episode '{episode.id}' is already in the buffer")
        highest = max((max(row) for row in self._priorities.values()), default=1.0)
        self._append_to_file(good)
        for episode in good:
            self._insert(episode, [highest] * len(episode.turns))

    def sample_turns(self, n: int, seed: int, exponent: float) -> list[TurnKey]:
        """`n` turns drawn with probability proportional to priority ** exponent (0: uniformly).
        Without replacement, by the exponential keys of Efraimidis and Spirakis (2006), as long as
        there are `n` turns of positive weight; else with. Raises ValueError on an empty buffer."""
        if not self._episodes:
            raise ValueError("the buffer is empty; nothing can be drawn from it")
        weights = self._positive_weights(exponent)
        rng = random.Random(seed)
        if n > len(weights):
            return rng.choices(list(weights), list(weights.values()), k=n)
        arrivals = {key: -math.log(1.0 - rng.random()) / w for key, w in weights.items()}
        return sorted(arrivals, key=arrivals.__getitem__)[:n]

    def sample_episodes(self, n: int, seed: int) -> list[Episode]:
        """`n` different episodes at random, or all where there are fewer. Raises ValueError on an
        empty buffer."""
        if not self._episodes:
            raise ValueError("the buffer is empty; nothing can be drawn from it")
        stored = self.episodes()
        return random.Random(seed).sample(stored, min(n, len(stored)))

    def priority(self, key: TurnKey) -> float:
        """The priority of a turn."""
        return self._priorities[key.episode][key.turn]

    def set_priorities(self, keys: list[TurnKey], values: list[float]) -> None:
        """Raises ValueError for a priority that is negative or not finite, KeyError for a turn
        that was dropped."""
        for key, value in zip(keys, values, strict=True):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"priority {value} of {key} is not a finite number from 0 up")
            self._priorities[key.episode][key.turn] = value

    def state(self) -> dict[str, Any]:
        """JSON values for a checkpoint: priorities of the stored episodes, and how many lines the
        file has, of which they are the last, or, without a file, the episodes themselves."""
        state: dict[str, Any] = {"priorities": [list(row) for row in self._priorities.values()]}
        if self.path is None:
            return self.contents()
        return state | {"lines": self._lines}

    def contents(self) -> dict[str, Any]:
        """What a buffer without a file has as its `state`: priorities, and the episodes themselves,
        oldest first."""
        rows = [list(row) for row in self._priorities.values()]
        return {"priorities": rows, "episodes": [e.to_json() for e in self.episodes()]}

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of `state`; what the file holds beyond it is cut off. Raises UserError where the
        file is shorter than the checkpoint says or has an unreadable line, ValueError for a state
        that no buffer has written."""
        self._episodes, self._priorities = {}, {}
        priorities = state["priorities"]
        if self.path is None:
            stored = [Episode.from_json(row) for row in state["episodes"]]
        else:
            self._lines = state["lines"]
            files.truncate(self.path, self._lines)
            stored = _read_last(self.path, len(priorities), self._lines)
        for episode, row in zip(stored, priorities, strict=True):
            self._insert(episode, [1.0] * len(episode.turns))
            keys = [TurnKey(episode.id, turn) for turn in range(len(episode.turns))]
            self.set_priorities(keys, row)

    def _positive_weights(self, exponent: float) -> dict[TurnKey, float]:
        """priority ** exponent of the turns for which that is positive; 1 for all where none is."""
        rows = self._priorities.items()
        weights = {TurnKey(name, i): p**exponent for name, row in rows for i, p in enumerate(row)}
        return {key: w for key, w in weights.items() if w > 0} or dict.fromkeys(weights, 1.0)

    def _insert(self, episode: Episode, priorities: list[float]) -> None:
        """Store an episode; drop the oldest beyond the capacity."""
        self._episodes[episode.id] = episode
        self._priorities[episode.id] = priorities
        if len(self) > self.capacity:
            oldest = next(iter(self._episodes))
            del self._episodes[oldest], self._priorities[oldest]

    def _append_to_file(self, episodes: list[Episode]) -> None:
        """Write the episodes as one block of lines."""
        if self.path is None:
            return
        lines = [(json.dumps(episode.to_json()) + "\n").encode() for episode in episodes]
        try:
            with self.path.open("ab") as file:
                file.write(b"".join(lines))
        except OSError as error:
            raise UserError(f"cannot write {self.path} ({error.strerror}); make room") from error
        self._lines += len(lines)


def read_episodes(path: Path, count: int) -> list[Episode]:
    """The last `count` episodes of a file. Raises UserError where one cannot be read."""
    return _read_last(path, count, files.count_lines(path))


def _read_last(path: Path, count: int, lines: int) -> list[Episode]:
    """The last `count` episodes of a file with so many lines."""
    passed = max(0, lines - count)
    try:
        with path.open("rb") as file:
            kept = list(islice(file, passed, lines)) if count else []
    except OSError as error:
        raise UserError(f"cannot read episodes from {path} ({error.strerror})") from error
    numbered = enumerate(kept, passed + 1)
    return [_read_line(path, number, line) for number, line in numbered]


def _read_line(path: Path, number: int, line: bytes) -> Episode:
    try:
        return Episode.from_json(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} line {number} is no episode; delete or mend it") from error
