"""Many processes play a run's episodes while this one learns: who plays which, by which weights,
and how old these may be. Where the processes are and how they are reached is a `Cluster`'s affair.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from math import ceil
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Protocol

from agentrl_cli.core.errors import LostActor, require_at_least
from agentrl_cli.core.types import Episode
from agentrl_cli.generators.base import Sampling
from agentrl_cli.rollout.actors import Actors, PlayRequest
from agentrl_cli.rollout.play import EpisodeStart


class Player(Protocol):
    """What an actor runs in its process."""

    def load(self, version: int, weights: bytes) -> None:
        """Play by these weights of the policy from now on."""
        ...

    def play(
        self, starts: list[EpisodeStart], sampling: Sampling, most_failed: float
    ) -> list[Episode]:
        """An episode for each start, in order."""
        ...


MakePlayer = Callable[[], Player]


@dataclass(frozen=True)
class Weights:
    """The policy's, after so many changes; `shared` is how their cluster hands them on."""

    version: int
    shared: Any


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one actor plays at a time."""

    starts: list[EpisodeStart]
    sampling: Sampling
    most_failed: float
    weights: Weights


class Actor(ABC):
    """A process with a player, as its pool sees it."""

    @abstractmethod
    def wait_until_ready(self) -> None:
        """Return once its player is built. Raises what that raised, LostActor where there is none
        in time."""

    @abstractmethod
    def play(self, part: Part) -> list[Episode]:
        """The part's episodes. Raises what the player raises, LostActor where it is gone."""

    @abstractmethod
    def stop(self) -> None:
        """End it, whatever it does."""


@dataclass(kw_only=True)
class Cluster(ABC):
    """Where `count` actors run, each on `gpus` GPUs, which may be a part of one. With an algorithm
    that replays they play a step ahead, as long as no episode is more than `staleness` changes of
    the policy old when it is learnt from; 0: never ahead. Other algorithms wait for theirs."""

    count: int
    gpus: float
    staleness: int

    def __post_init__(self) -> None:
        require_at_least(1, **{"hardware.actors.count": self.count})
        least = {"hardware.actors.gpus": self.gpus, "hardware.actors.staleness": self.staleness}
        require_at_least(0, **least)

    @abstractmethod
    def connect(self, gpus: list[str]) -> None:
        """Reach the cluster, or start one here that sees these GPUs; where there are none, actors
        play on the processor. Raises UserError."""

    @abstractmethod
    def launch(self, make_player: MakePlayer) -> Actor:
        """Begin to start an actor."""

    @abstractmethod
    def share(self, weights: bytes) -> Any:
        """Put weights where every actor finds them."""

    @abstractmethod
    def close(self) -> None:
        """Leave the cluster, and end it where it was started here."""


@dataclass
class Begun:
    """Episodes in play: those of a step, by weights of that version, each part on its way."""

    step: int | None
    version: int
    parts: list[Future[list[Episode]]]

    def episodes(self) -> list[Episode]:
        """All of them, waited for, in order. Raises what playing raised."""
        return [episode for part in self.parts for episode in part.result()]

    def cancel(self) -> None:
        """Let no more parts begin."""
        for part in self.parts:
            part.cancel()


@dataclass
class StepMeter:
    """Of one step: when its episodes were asked for, the seconds that the learner has waited for
    actors since, how many changes of the policy old the episodes were, and how many of them were
    too old and played again."""

    began: float
    waited: float = 0.0
    ages: list[int] = field(default_factory=lambda: [0])
    played_again: int = 0


@dataclass(kw_only=True)
class ActorPool(Actors):
    """The actors of a connected cluster, each of which plays a part of what is asked at a time: an
    even slice, or `episodes_at_once` of it where that is less. An actor that is lost costs the
    episodes of its part, which are recorded as failed, and another takes its place. Up to step
    `steps` the next step's episodes begin before this one's are learnt from, where `staleness`
    allows it. `version` says how often the policy has changed, `pack` gives its weights of now."""

    cluster: Cluster
    make_player: MakePlayer
    version: Callable[[], int]
    pack: Callable[[], bytes]
    staleness: int
    steps: int
    episodes_at_once: int | None = None
    weights: Weights | None = field(default=None, init=False)
    ahead: Begun | None = field(default=None, init=False)
    meter: StepMeter | None = field(default=None, init=False)
    lost: list[LostActor] = field(default_factory=list, init=False)
    is_closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        count = self.cluster.count
        self.plays_ahead = self.staleness > 0
        self.last_version = self.version()  # when episodes were last begun ahead, or could be
        self.threads = ThreadPoolExecutor(count, "actor")
        self.actors = [self.cluster.launch(self.make_player) for _ in range(count)]
        self.idle = SimpleQueue[int]()
        for number in range(count):
            self.idle.put(number)

    def wait_until_ready(self) -> None:
        """Return once every actor is built. Raises what one raises that cannot be."""
        for actor in self.actors:
            actor.wait_until_ready()

    def play(self, request: PlayRequest) -> list[Episode]:
        """By the actors, or here where only this process can; of a step, those that were played
        ahead."""
        if request.needs_this_process:
            return request.play_here(request.starts)
        asked = perf_counter()
        if request.step is not None:
            self.meter = StepMeter(asked)
        episodes = (self._take_ahead(request) or self._begin(request)).episodes()
        if self.meter is not None:
            self.meter.waited += perf_counter() - asked
        if self.meter is not None and request.step is not None:
            self.meter.ages = [self.version() - e.policy_version for e in episodes] or [0]
        return episodes

    def play_ahead(self, request: PlayRequest) -> None:
        """Begin with the episodes of the step after the one that is learnt from next, unless the
        last update changed the policy more often than they may be old."""
        changes, self.last_version = self.version() - self.last_version, self.version()
        if self.ahead is not None:
            self.ahead.cancel()
        goes = request.step is not None and request.step < self.steps
        self.ahead = self._begin(request) if goes and changes <= self.staleness else None

    def metrics(self) -> dict[str, float]:
        """How long the learner waited in this step, how old its episodes were, who was lost."""
        meter, self.meter = self.meter, None
        if meter is None:
            return {}
        lost, self.lost = self.lost, []
        return {
            "actors/idle": meter.waited / (perf_counter() - meter.began),
            "actors/staleness": sum(meter.ages) / len(meter.ages),
            "actors/staleness_max": float(max(meter.ages)),
            "actors/played_again": float(meter.played_again),
            "actors/lost": float(len(lost)),
        }

    def state(self) -> dict[str, Any]:
        """The episodes that are played ahead, waited for, and what decides about the next."""
        if not self.plays_ahead:
            return {}
        return {"version": self.last_version, "ahead": self.ahead and _to_json(self.ahead)}

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of `state`."""
        if state:
            self.last_version = state["version"]
            self.ahead = state["ahead"] and _from_json(**state["ahead"])

    def close(self) -> None:
        """End all actors, what they are playing with them, and leave the cluster."""
        if self.is_closed:
            return
        self.is_closed = True
        for actor in self.actors:
            actor.stop()
        self.threads.shutdown(cancel_futures=True)
        self.cluster.close()

    def _take_ahead(self, request: PlayRequest) -> Begun | None:
        """What was begun of this step, unless the policy has changed too often since."""
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
        starts, weights = request.starts, self._weights_of_now()
        parts = [
            Part(
                starts=part, sampling=request.sampling, weights=weights,
                most_failed=request.most_failed * len(starts) / len(part),
            )
            for part in self._parts(starts)
        ]  # fmt: skip
        futures = [self.threads.submit(self._play_part, part) for part in parts]
        return Begun(request.step, weights.version, futures)

    def _parts(self, starts: list[EpisodeStart]) -> Iterator[list[EpisodeStart]]:
        """Slices as even as can be, side by side, so that groups mostly stay together."""
        most = self.episodes_at_once or max(1, len(starts))
        count = min(len(starts), max(self.cluster.count, ceil(len(starts) / most)))
        for i in range(count):
            yield starts[i * len(starts) // count : (i + 1) * len(starts) // count]

    def _weights_of_now(self) -> Weights:
        if self.weights is None or self.weights.version != self.version():
            self.weights = Weights(self.version(), self.cluster.share(self.pack()))
        return self.weights

    def _play_part(self, part: Part) -> list[Episode]:
        """By the next actor that is idle. Runs in a thread of the pool."""
        number = self.idle.get()
        try:
            return self.actors[number].play(part)
        except LostActor as loss:
            self.lost.append(loss)
            if not self.is_closed:
                self.actors[number].stop()
                self.actors[number] = self.cluster.launch(self.make_player)
            return [_failed(start, part.weights.version, loss) for start in part.starts]
        finally:
            self.idle.put(number)


def _failed(start: EpisodeStart, version: int, loss: LostActor) -> Episode:
    """An episode of which nothing is left."""
    seed = start.seed if start.world_seed is None else start.world_seed
    return Episode(
        start.id, start.task, start.group, seed, [], stop="error", policy_version=version,
        error=f"{type(loss).__name__}: {loss}", error_kind=loss.kind,
    )  # fmt: skip


def _to_json(begun: Begun) -> dict[str, Any] | None:
    """None where playing failed: the step that asks for the episodes says why, and a resumed run
    plays them again."""
    try:
        rows = [episode.to_json() for episode in begun.episodes()]
    except Exception:
        return None
    return {"step": begun.step, "version": begun.version, "episodes": rows}


def _from_json(step: int, version: int, episodes: list[dict[str, Any]]) -> Begun:
    played: Future[list[Episode]] = Future()
    played.set_result([Episode.from_json(row) for row in episodes])
    return Begun(step, version, [played])
