"""The replay buffer: stores episodes and samples prioritised turns.

With a path every episode is also appended to a JSONL file, so a checkpoint needs only the number of
lines and the priorities.
"""

from __future__ import annotations

import json
import math
import random
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError, require_at_least
from agentrl_cli.core.types import Episode


class TurnKey(NamedTuple):
    """Identifies one turn of one episode in the buffer."""

    episode: str
    turn: int


class ReplayBuffer:
    """The last `capacity` episodes, with a priority for each of their turns."""

    def __init__(self, path: Path | None, capacity: int) -> None:
        """Raises UserError if the capacity is below 1. An existing file is appended to."""
        require_at_least(1, capacity=capacity)
        self.path, self.capacity = path, capacity
        self._episodes: dict[str, Episode] = {}
        self._priorities: dict[str, list[float]] = {}
        self._lines = files.count_lines(path) if path is not None else 0

    def __len__(self) -> int:
        """Return the number of stored episodes."""
        return len(self._episodes)

    @property
    def turns(self) -> int:
        """Return the number of stored turns."""
        return sum(map(len, self._priorities.values()))

    def episodes(self) -> list[Episode]:
        """Return the stored episodes, oldest first."""
        return list(self._episodes.values())

    def episode(self, key: TurnKey) -> Episode:
        """Return the episode of a turn. Raises KeyError if it was dropped."""
        return self._episodes[key.episode]

    def add(self, episodes: list[Episode]) -> None:
        """Append episodes, except failed and empty ones; drop the oldest beyond the capacity.

        New turns get the highest stored priority (1 in an empty buffer), so that each is soon
        sampled (Schaul et al. 2016). Raises ValueError for an id that is stored already, and
        UserError if the file cannot be written.
        """
        good = [episode for episode in episodes if episode.error is None and episode.turns]
        for episode in good:
            if episode.id in self._episodes:
                raise ValueError(f"episode '{episode.id}' is already in the buffer")
        highest = max((max(row) for row in self._priorities.values()), default=1.0)
        if self.path is not None:
            with files.explain_write_errors(self.path.parent):
                files.append_jsonl(self.path, (episode.to_json() for episode in good))
            self._lines += len(good)
        for episode in good:
            self._insert(episode, [highest] * len(episode.turns))

    def sample_turns(self, n: int, seed: int, exponent: float) -> list[TurnKey]:
        """Sample `n` turns with probability proportional to priority ** exponent (0: uniformly).

        Sampling is without replacement, by the exponential keys of Efraimidis and Spirakis (2006),
        if there are `n` turns of positive weight, and with replacement otherwise. Turns of weight 0
        are sampled only if all weights are 0. Raises ValueError on an empty buffer.
        """
        rows, rng = self._priorities.items(), random.Random(seed)
        every = {TurnKey(name, i): p**exponent for name, row in rows for i, p in enumerate(row)}
        weights = {key: w for key, w in every.items() if w > 0} or dict.fromkeys(every, 1.0)
        if not weights:
            raise ValueError("the buffer is empty")
        if n > len(weights):
            return rng.choices(list(weights), list(weights.values()), k=n)
        arrivals = {key: -math.log(1.0 - rng.random()) / w for key, w in weights.items()}
        return sorted(arrivals, key=arrivals.__getitem__)[:n]

    def sample_episodes(self, n: int, seed: int) -> list[Episode]:
        """Sample `n` different episodes, or all if there are fewer. ValueError if it is empty."""
        stored = self.episodes()
        if not stored:
            raise ValueError("the buffer is empty")
        return random.Random(seed).sample(stored, min(n, len(stored)))

    def priority(self, key: TurnKey) -> float:
        """Return the priority of a turn."""
        return self._priorities[key.episode][key.turn]

    def set_priorities(self, keys: list[TurnKey], values: list[float]) -> None:
        """Set priorities. ValueError for an invalid priority, KeyError for a dropped turn."""
        for key, value in zip(keys, values, strict=True):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"priority {value} of {key} is not a finite number from 0 up")
            self._priorities[key.episode][key.turn] = value

    def state(self, *, whole: bool = False) -> dict[str, Any]:
        """Return JSON values for a checkpoint: the priorities, and the number of lines of the file,
        which ends with the stored episodes. Without a file, or if `whole`, they hold the episodes
        instead, oldest first."""
        rows = [list(row) for row in self._priorities.values()]
        if self.path is not None and not whole:
            return {"priorities": rows, "lines": self._lines}
        return {"priorities": rows, "episodes": [e.to_json() for e in self.episodes()]}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a `state`, and cut off later lines of the file.

        Raises UserError if the file is too short or has an unreadable line, and ValueError for an
        invalid state.
        """
        self._episodes, self._priorities = {}, {}
        priorities = state["priorities"]
        if self.path is None:
            stored = [Episode.from_json(row) for row in state["episodes"]]
        else:
            self._lines = state["lines"]
            files.truncate(self.path, self._lines)
            stored = read_episodes(self.path, len(priorities))
        for episode, row in zip(stored, priorities, strict=True):
            self._insert(episode, [1.0] * len(episode.turns))
            keys = [TurnKey(episode.id, turn) for turn in range(len(episode.turns))]
            self.set_priorities(keys, row)

    def _insert(self, episode: Episode, priorities: list[float]) -> None:
        self._episodes[episode.id] = episode
        self._priorities[episode.id] = priorities
        if len(self) > self.capacity:
            oldest = next(iter(self._episodes))
            del self._episodes[oldest], self._priorities[oldest]


def read_episodes(path: Path, count: int) -> list[Episode]:
    """Return the last `count` episodes of a file. Raises UserError if one cannot be read."""
    lines = files.count_lines(path)
    skipped, episodes = max(0, lines - count), list[Episode]()
    try:
        with path.open("rb") as file:
            kept = list(islice(file, skipped, lines)) if count else []
    except OSError as error:
        line = f"cannot read episodes from {path} ({error.strerror})"
        raise UserError(line, code="cannot-read") from error
    for number, line in enumerate(kept, skipped + 1):
        if not line.strip():
            continue
        try:
            episodes.append(Episode.from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            line = f"{path} line {number} is not an episode; delete or repair it"
            raise UserError(line, code="invalid-episode") from error
    return episodes
