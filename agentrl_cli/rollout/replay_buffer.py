"""Replay: episodes in, prioritised turns out. With a path every episode is also appended to a JSONL
file, so that a checkpoint needs only an offset and the priorities."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from itertools import accumulate
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
        self._offsets: dict[str, int] = {}
        self._file_size = path.stat().st_size if path is not None and path.exists() else 0

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
        offsets = self._append_to_file(good)
        for episode, offset in zip(good, offsets, strict=True):
            self._insert(episode, [highest] * len(episode.turns), offset)

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
        """JSON values for a checkpoint: where the file's part begins and ends and the priorities,
        or, without a file, the episodes themselves."""
        state: dict[str, Any] = {"priorities": [list(row) for row in self._priorities.values()]}
        if self.path is None:
            return state | {"episodes": [episode.to_json() for episode in self.episodes()]}
        start = min(self._offsets.values(), default=self._file_size)
        return state | {"start": start, "end": self._file_size}

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of `state`; what the file holds beyond it is cut off. Raises UserError where the
        file is shorter than the checkpoint says or has an unreadable line."""
        self._episodes, self._priorities, self._offsets = {}, {}, {}
        if self.path is None:
            stored = [(0, Episode.from_json(row)) for row in state["episodes"]]
        else:
            self._file_size = state["end"]
            files.truncate(self.path, self._file_size)
            stored = list(_read_from(self.path, state["start"])) if self._file_size else []
        for (offset, episode), row in zip(stored, state["priorities"], strict=True):
            self._insert(episode, list(row), offset)

    def _positive_weights(self, exponent: float) -> dict[TurnKey, float]:
        """priority ** exponent of the turns for which that is positive; 1 for all where none is."""
        rows = self._priorities.items()
        weights = {TurnKey(name, i): p**exponent for name, row in rows for i, p in enumerate(row)}
        return {key: w for key, w in weights.items() if w > 0} or dict.fromkeys(weights, 1.0)

    def _insert(self, episode: Episode, priorities: list[float], offset: int) -> None:
        """Store an episode that begins at this byte of the file; drop the oldest beyond the
        capacity."""
        self._episodes[episode.id] = episode
        self._priorities[episode.id] = priorities
        self._offsets[episode.id] = offset
        if len(self) > self.capacity:
            oldest = next(iter(self._episodes))
            for table in (self._episodes, self._priorities, self._offsets):
                del table[oldest]

    def _append_to_file(self, episodes: list[Episode]) -> list[int]:
        """Write the episodes as one block; the offset in bytes of each."""
        if self.path is None:
            return [0] * len(episodes)
        lines = [(json.dumps(episode.to_json()) + "\n").encode() for episode in episodes]
        try:
            with self.path.open("ab") as file:
                file.write(b"".join(lines))
        except OSError as error:
            raise UserError(f"cannot write {self.path} ({error.strerror}); make room") from error
        offsets = list(accumulate((len(line) for line in lines), initial=self._file_size))
        self._file_size = offsets[-1]
        return offsets[:-1]


def _read_from(path: Path, start: int) -> Iterator[tuple[int, Episode]]:
    """(offset, episode) of each line from the byte offset `start` on."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read episodes from {path} ({error.strerror})") from error
    first = data[:start].count(b"\n") + 1
    offset = start
    for number, line in enumerate(data[start:].splitlines(keepends=True), first):
        try:
            yield offset, Episode.from_json(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} line {number} is no episode; delete or mend it") from error
        offset += len(line)
