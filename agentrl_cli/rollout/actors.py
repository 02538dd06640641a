"""Who plays the episodes of a run: this process (`Actors`) or many others (`ActorPool`).

The pool decides which actor plays which episodes with which weights, and how old weights may be. A
`Cluster` decides where the processes are and how they are reached.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from queue import SimpleQueue
from time import perf_counter
from typing import Annotated, Any, Protocol

from pydantic import Field

from agentrl_cli.core.errors import LostActor
from agentrl_cli.core.types import Episode
from agentrl_cli.generators.base import Sampling
from agentrl_cli.rollout.play import EpisodeStart


@dataclass(frozen=True, kw_only=True)
class PlayRequest:
    """Episodes to play.

    `play_here` plays any of them in this process. `needs_this_process` is set if the environment or
    the generator is not the run's. `step` is the step whose training episodes these are; None: an
    evaluation.
    """

    starts: list[EpisodeStart]
    sampling: Sampling
    max_failure_rate: float
    play_here: Callable[[list[EpisodeStart]], list[Episode]]
    needs_this_process: bool
    step: int | None


class Actors:
    """This process, which plays every episode when it is requested."""

    plays_ahead = False  # whether `play_ahead` does anything

    def play(self, request: PlayRequest) -> list[Episode]:
        return request.play_here(request.starts)

    def play_ahead(self, request: PlayRequest) -> None:
        """Begin to play the episodes that will be requested next."""

    def metrics(self) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, Any]:
        """Return JSON values for a checkpoint."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a `state`. Episodes that were played ahead by others are played again."""

    def close(self) -> None:
        """End the processes that were started for this run."""


class Player(Protocol):
    """What an actor runs in its process."""

    def load(self, version: int, weights: bytes) -> None: ...
    def play(
        self, starts: list[EpisodeStart], sampling: Sampling, max_failure_rate: float
    ) -> list[Episode]: ...


MakePlayer = Callable[[], Player]


@dataclass(frozen=True, kw_only=True)
class Part:
    """The episodes that one actor plays at a time, with `weights` as the cluster shares them."""

    starts: list[EpisodeStart]
    sampling: Sampling
    max_failure_rate: float
    version: int
    weights: Any


class Actor(ABC):
    """A process with a player."""

    @abstractmethod
    def wait_until_ready(self) -> None:
        """Wait for the player. Raises the error of building it, or LostActor after a timeout."""

    @abstractmethod
    def play(self, part: Part) -> list[Episode]:
        """Return the part's episodes. Raises the player's error, or LostActor if it is gone."""

    @abstractmethod
    def stop(self) -> None:
        """End the process at once."""


@dataclass(kw_only=True)
class Cluster(ABC):
    """Where actors run and how they are reached."""

    count: Annotated[
        int,
        Field(ge=1, description="Actors. Each holds the policy and plays a share of the episodes."),
    ]
    gpus: Annotated[
        float, Field(ge=0, description="GPUs of one actor, fractions too. 0: actors use the CPU.")
    ]
    staleness: Annotated[
        int,
        Field(ge=0, description="Algorithms with a replay buffer learn from episodes at most this "
              "many changes of the policy old, while the next are played. 0: they wait."),
    ]  # fmt: skip

    @abstractmethod
    def connect(self, gpus: list[str]) -> None:
        """Connect, or start a cluster here on these GPUs (none: the CPU). Raises UserError."""

    @abstractmethod
    def launch(self, make_player: MakePlayer) -> Actor:
        """Begin to start an actor."""

    @abstractmethod
    def share(self, weights: bytes) -> Any:
        """Make weights available to every actor."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect, and end a cluster that was started here."""


@dataclass
class Begun:
    """Episodes of a step that are being played, with weights of `version`."""

    step: int | None
    version: int
    parts: list[Future[list[Episode]]]

    def episodes(self) -> list[Episode]:
        """Wait for all of them, in order. Raises the errors of playing."""
        return [episode for part in self.parts for episode in part.result()]

    def cancel(self) -> None:
        for part in self.parts:
            part.cancel()


@dataclass
class StepMeter:
    """Of one step: its begin, seconds that the learner waited, and ages of its episodes."""

    began: float
    waited: float = 0.0
    ages: list[int] = field(default_factory=lambda: [0])  # in changes of the policy
    played_again: int = 0


@dataclass(kw_only=True)
class ActorPool(Actors):
    """The actors of a connected cluster.

    Each plays a part of a request at a time: an even slice, or `max_concurrent_episodes` if that
    is less. The episodes of a lost actor are recorded as failed, and a new actor replaces it. Up to
    step `steps`, the next step's episodes begin before the current ones are learned from, if
    `staleness` allows it. `version` counts changes of the policy, and `pack` returns its weights.
    """

    cluster: Cluster
    make_player: MakePlayer
    version: Callable[[], int]
    pack: Callable[[], bytes]
    staleness: int
    steps: int
    max_concurrent_episodes: int | None = None
    weights: tuple[int, Any] | None = field(default=None, init=False)  # version, shared
    ahead: Begun | None = field(default=None, init=False)
    meter: StepMeter | None = field(default=None, init=False)
    lost: int = field(default=0, init=False)  # actors in this step
    is_closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        count = self.cluster.count
        self.plays_ahead = self.staleness > 0
        self.last_version = self.version()  # at the last call of `play_ahead`
        self.threads = ThreadPoolExecutor(count, "actor")
        self.actors = [self.cluster.launch(self.make_player) for _ in range(count)]
        self.idle = SimpleQueue[int]()
        for number in range(count):
            self.idle.put(number)

    def wait_until_ready(self) -> None:
        """Wait for every actor. Raises the error of one that cannot be built."""
        for actor in self.actors:
            actor.wait_until_ready()

    def play(self, request: PlayRequest) -> list[Episode]:
        """Return an episode for each start; of a step, those that were played ahead."""
        if request.needs_this_process:
            return request.play_here(request.starts)
        began = perf_counter()
        if request.step is not None:
            self.meter = StepMeter(began)
        episodes = (self._take_ahead(request) or self._begin(request)).episodes()
        if self.meter is not None:
            self.meter.waited += perf_counter() - began
            if request.step is not None:
                self.meter.ages = [self.version() - e.policy_version for e in episodes] or [0]
        return episodes

    def play_ahead(self, request: PlayRequest) -> None:
        """Begin the next step's episodes, unless one update exceeds the allowed staleness."""
        changes, self.last_version = self.version() - self.last_version, self.version()
        if self.ahead is not None:
            self.ahead.cancel()
        goes = request.step is not None and request.step < self.steps
        self.ahead = self._begin(request) if goes and changes <= self.staleness else None

    def metrics(self) -> dict[str, float]:
        """Return waiting time, ages of episodes and lost actors of the last step."""
        meter, self.meter = self.meter, None
        if meter is None:
            return {}
        lost, self.lost = self.lost, 0
        return {
            "actors/idle": meter.waited / (perf_counter() - meter.began),
            "actors/staleness": sum(meter.ages) / len(meter.ages),
            "actors/staleness_max": float(max(meter.ages)),
            "actors/played_again": float(meter.played_again),
            "actors/lost": float(lost),
        }

    def state(self) -> dict[str, Any]:
        """Wait for the episodes that are played ahead, and return them with the last version.

        If playing failed they are left out: the step that requests them raises the error, and a
        resumed run plays them again.
        """
        if not self.plays_ahead:
            return {}
        ahead = None
        if self.ahead is not None:
            with suppress(Exception):
                rows = [episode.to_json() for episode in self.ahead.episodes()]
                ahead = {"step": self.ahead.step, "version": self.ahead.version, "episodes": rows}
        return {"version": self.last_version, "ahead": ahead}

    def load(self, state: dict[str, Any]) -> None:
        if not state:
            return
        self.last_version, ahead = state["version"], state["ahead"]
        if ahead is not None:
            played: Future[list[Episode]] = Future()
            played.set_result([Episode.from_json(row) for row in ahead["episodes"]])
            self.ahead = Begun(ahead["step"], ahead["version"], [played])

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        for actor in self.actors:
            actor.stop()
        self.threads.shutdown(cancel_futures=True)
        self.cluster.close()

    def _take_ahead(self, request: PlayRequest) -> Begun | None:
        """Return the step's episodes in play, unless the policy has changed too often since."""
        if self.ahead is None or self.ahead.step != request.step:
            return None
        ahead, self.ahead = self.ahead, None
        if self.version() - ahead.version <= self.staleness:
            return ahead
        ahead.cancel()
        if self.meter is not None:
            self.meter.played_again = len(request.starts)
        return None

    def _begin(self, request: PlayRequest) -> Begun:
        """Submit even, contiguous slices, so that groups mostly stay together."""
        if self.weights is None or self.weights[0] != self.version():
            self.weights = (self.version(), self.cluster.share(self.pack()))
        (version, weights), starts, futures = self.weights, request.starts, []
        size = self.max_concurrent_episodes or max(1, len(starts))
        count = min(len(starts), max(self.cluster.count, ceil(len(starts) / size)))
        for i in range(count):
            slice_ = starts[i * len(starts) // count : (i + 1) * len(starts) // count]
            part = Part(
                starts=slice_, sampling=request.sampling, version=version, weights=weights,
                max_failure_rate=request.max_failure_rate * len(starts) / len(slice_),
            )  # fmt: skip
            futures.append(self.threads.submit(self._play_part, part))
        return Begun(request.step, version, futures)

    def _play_part(self, part: Part) -> list[Episode]:
        """Play with the next idle actor, in a thread of the pool."""
        number = self.idle.get()
        try:
            return self.actors[number].play(part)
        except LostActor as loss:
            self.lost += 1
            if not self.is_closed:
                self.actors[number].stop()
                self.actors[number] = self.cluster.launch(self.make_player)
            return [_failed(start, part.version, loss) for start in part.starts]
        finally:
            self.idle.put(number)


def _failed(start: EpisodeStart, version: int, loss: LostActor) -> Episode:
    seed = start.seed if start.world_seed is None else start.world_seed
    return Episode(
        start.id, start.task, start.group, seed, [], stop="error", policy_version=version,
        error=f"{type(loss).__name__}: {loss}", error_kind=loss.kind,
    )  # fmt: skip
