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
        self._starts: dict[str, int] = {}
        self._end = path.stat().st_size if path is not None and path.exists() else 0

    def __len__(self) -> int:
        """The number of episodes held."""
        return len(self._episodes)

    @property
    def turns(self) -> int:
        """The number of turns held."""
        return sum(map(len, self._priorities.values()))

    def episodes(self) -> list[Episode]:
        """The episodes held, oldest first."""
        return list(self._episodes.values())

    def episode(self, key: TurnKey) -> Episode:
        """The episode of a turn. Raises KeyError where it was dropped."""
        return self._episodes[key.episode]

    def add(self, episodes: list[Episode]) -> None:
        """Append; the oldest beyond the capacity are dropped, broken or empty ones never taken in.

        New turns get the greatest priority held (1 in an empty buffer), so each is soon looked at
        (Schaul et al. 2016). Raises ValueError for an id already held, UserError where the file
        cannot be written.
        """
        good = [episode for episode in episodes if episode.error is None and episode.turns]
        for episode in good:
            if episode.id in self._episodes:
                raise ValueError(f"episode '{episode.id}' is already in the buffer")
        highest = max((max(row) for row in self._priorities.values()), default=1.0)
        starts = self._append(good)
        for episode, start in zip(good, starts, strict=True):
            self._hold(episode, [highest] * len(episode.turns), start)

    def sample_turns(self, n: int, seed: int, exponent: float) -> list[TurnKey]:
        """`n` turns drawn with probability proportional to priority ** exponent (0: uniformly).

        Without replacement, by the exponential keys of Efraimidis and Spirakis (2006), as long as
        there are `n` turns of positive weight; else with. Raises ValueError on an empty buffer.
        """
        if not self._episodes:
            raise ValueError("the buffer is empty; nothing can be drawn from it")
        rows = self._priorities.items()
        every = {TurnKey(name, i): p**exponent for name, row in rows for i, p in enumerate(row)}
        weights = {key: w for key, w in every.items() if w > 0} or dict.fromkeys(every, 1.0)
        draw = random.Random(seed)
        if n > len(weights):
            return draw.choices(list(weights), list(weights.values()), k=n)
        arrivals = {key: -math.log(1.0 - draw.random()) / w for key, w in weights.items()}
        return sorted(arrivals, key=arrivals.__getitem__)[:n]

    def sample_episodes(self, n: int, seed: int) -> list[Episode]:
        """`n` different episodes at random, or all where fewer are held. Raises ValueError on an
        empty buffer."""
        if not self._episodes:
            raise ValueError("the buffer is empty; nothing can be drawn from it")
        held = self.episodes()
        return random.Random(seed).sample(held, min(n, len(held)))

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
        return state | {"start": min(self._starts.values(), default=self._end), "end": self._end}

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of `state`; what the file holds beyond it is cut off. Raises UserError where the
        file is shorter than the checkpoint says or has an unreadable line."""
        self._episodes, self._priorities, self._starts = {}, {}, {}
        if self.path is None:
            found = [(0, Episode.from_json(row)) for row in state["episodes"]]
        else:
            self._end = state["end"]
            files.truncate(self.path, self._end)
            found = list(_read(self.path, state["start"])) if self._end else []
        for (start, episode), row in zip(found, state["priorities"], strict=True):
            self._hold(episode, list(row), start)

    def _hold(self, episode: Episode, priorities: list[float], start: int) -> None:
        self._episodes[episode.id] = episode
        self._priorities[episode.id] = priorities
        self._starts[episode.id] = start
        if len(self) > self.capacity:
            oldest = next(iter(self._episodes))
            for table in (self._episodes, self._priorities, self._starts):
                del table[oldest]

    def _append(self, episodes: list[Episode]) -> list[int]:
        """Write the episodes as one block; the offset of each."""
        if self.path is None:
            return [0] * len(episodes)
        lines = [(json.dumps(episode.to_json()) + "\n").encode() for episode in episodes]
        try:
            with self.path.open("ab") as file:
                file.write(b"".join(lines))
        except OSError as error:
            raise UserError(f"cannot write {self.path} ({error.strerror}); make room") from error
        starts = list(accumulate((len(line) for line in lines), initial=self._end))
        self._end = starts[-1]
        return starts[:-1]


def _read(path: Path, start: int) -> Iterator[tuple[int, Episode]]:
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
