"""Actors: processes on a Ray cluster that play the episodes of a run (`hardware.actors`).

`RayCluster` places the processes and carries weights and episodes. `ActorPool` decides which actor
plays which episodes with which weights, and how old weights may be.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import ceil
from queue import SimpleQueue
from time import perf_counter
from typing import Annotated, Any

from pydantic import Field

from agentrl_cli.core.errors import LostActor, UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.rollout.collector import Actors, PlayRequest

OWN_RAY = {  # variables of a Ray that is started here: no usage report, and patience if busy
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0",
    "RAY_gcs_server_port_wait_time_s": "300",
}  # fmt: skip
OWN_STARTS = 3  # Ray gives its own node 30 s, without a setting for that
CONNECT_SECONDS = 10.0
VISIBLE = "CUDA_VISIBLE_DEVICES"
MakePlayer = Callable[[], Any]  # its `load(version, weights)` and `play(...)` run in an actor


@dataclass(kw_only=True)
class RayCluster:
    """Settings of the actors, and their cluster."""

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
    cpus: Annotated[float, Field(ge=0, description="CPU cores of one actor.")]
    address: Annotated[
        str | None,
        Field(description="Address of a Ray cluster, as 10.0.0.1:6379, or auto. null: one is "
              "started here and ends with the run."),
    ]  # fmt: skip
    start_timeout: Annotated[float, Field(gt=0, description="Seconds until an actor is ready.")]
    ray: Any = field(default=None, init=False, repr=False)
    has_gpus: bool = field(default=False, init=False, repr=False)

    def connect(self, gpus: list[str]) -> None:
        """Connect, or start a cluster here on these GPUs (none: the CPU). Raises UserError without
        Ray or enough GPUs, or if the cluster cannot be reached or started."""
        if self.address is None and gpus and self.count * self.gpus > len(gpus):
            line = f"hardware.actors needs {self.count} times {self.gpus:g} GPUs, and "
            line += f"{len(gpus)} are free for actors; lower count or gpus, or give the address of"
            raise UserError(f"{line} a larger cluster", code="too-few-gpus")
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError:
            line = "hardware.actors needs Ray; pip install 'agentrl-cli[ray]'"
            raise UserError(line, code="missing-extra") from None
        self.ray, self.has_gpus = ray, bool(gpus)
        worker = sys.modules.get("ray._private.worker")
        if worker is not None:  # prints a paragraph on stdout for each process that dies
            worker.__dict__["_worker_logs_enabled"] = False
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "CRITICAL"}
        try:
            if self.address is None:
                self._start(gpus, quiet)
            else:
                host, _, port = self.address.rpartition(":")
                if port.isdecimal() and "/" not in host:  # Ray would wait minutes for it
                    socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
                ray.init(address=self.address, **quiet)
        except Exception as error:  # Ray has no common error type here
            where = "start here" if self.address is None else f"be reached at {self.address!r}"
            line = f"Ray cannot {where} ({_first_line(error)}); fix that, or give"
            remedy = "hardware.actors.address of a running cluster (ray start)"
            raise UserError(f"{line} {remedy}", code="ray-unreachable") from error

    def _start(self, gpus: list[str], quiet: dict[str, Any]) -> None:
        """Start a Ray that sees these GPUs only; try again if a busy machine was too slow."""
        for name, value in OWN_RAY.items():
            os.environ.setdefault(name, value)
        before = os.environ.get(VISIBLE)
        os.environ[VISIBLE] = ",".join(gpus)
        quiet |= {"num_cpus": ceil(self.count * self.cpus), "num_gpus": len(gpus)}
        try:
            for left in reversed(range(OWN_STARTS)):
                try:
                    self.ray.init(address="local", include_dashboard=False, **quiet)
                    return
                except Exception:
                    self.ray.shutdown()
                    if not left:
                        raise
        finally:
            os.environ.pop(VISIBLE)
            if before is not None:
                os.environ[VISIBLE] = before

    def launch(self, make_player: MakePlayer) -> RayActor:
        """Begin to start an actor."""
        gpus = self.gpus if self.has_gpus else 0
        actor = self.ray.remote(_Host).options(num_cpus=self.cpus, num_gpus=gpus).remote()
        return RayActor(self.ray, actor, actor.build.remote(make_player), self.start_timeout)

    def share(self, weights: bytes) -> Any:
        """Put weights into Ray's object store, from which each node fetches them once."""
        return self.ray.put(weights)

    def close(self) -> None:
        self.ray.shutdown()


@dataclass
class RayActor:
    """A process with a player: Ray's `handle` of a host, and the reference to the player."""

    ray: Any
    handle: Any
    built: Any
    start_timeout: float
    version: int | None = None

    def wait_until_ready(self) -> None:
        """Wait for the player. Raises the error of building it, or LostActor after a timeout."""
        with self._translated():
            self.ray.get(self.built, timeout=self.start_timeout)

    def play(self, request: PlayRequest, version: int, weights: Any) -> list[Episode]:
        """Play with these weights, which are sent only if the actor has others. Raises the player's
        error, or LostActor if the actor is gone."""
        self.wait_until_ready()
        with self._translated():
            if self.version != version:
                self.ray.get(self.handle.call.remote("load", version, weights))
                self.version = version
            sampling, limit = request.sampling, request.max_failure_rate
            return self.ray.get(self.handle.call.remote("play", request.starts, sampling, limit))

    def stop(self) -> None:
        with suppress(Exception):
            self.ray.kill(self.handle)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise the actor's own error, and LostActor if the actor is gone."""
        errors = self.ray.exceptions
        try:
            yield
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.GetTimeoutError:
            line = f"a rollout actor is not ready after {self.start_timeout:g} s: Ray has no room"
            raise LostActor(f"{line} for it, or its model takes longer to load") from None
        except errors.RayError as error:
            raise LostActor(f"a rollout actor was lost ({_first_line(error)})") from None


class _Host:
    """The object in an actor's process; building in a method returns errors as they are."""

    def build(self, make_player: MakePlayer) -> None:
        self.player = make_player()

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.player, method)(*arguments)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0].rstrip(".") if text else type(error).__name__


# --- the pool ---------------------------------------------------------------------------------


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

    cluster: RayCluster
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
        starts, parts = request.starts, []
        size = self.max_concurrent_episodes or max(1, len(starts))
        count = min(len(starts), max(self.cluster.count, ceil(len(starts) / size)))
        for i in range(count):
            slice_ = starts[i * len(starts) // count : (i + 1) * len(starts) // count]
            limit = request.max_failure_rate * len(starts) / len(slice_)
            part = replace(request, starts=slice_, max_failure_rate=limit)
            parts.append(self.threads.submit(self._play_part, part, *self.weights))
        return Begun(request.step, self.weights[0], parts)

    def _play_part(self, part: PlayRequest, version: int, weights: Any) -> list[Episode]:
        """Play with the next idle actor, in a thread of the pool."""
        number = self.idle.get()
        try:
            return self.actors[number].play(part, version, weights)
        except LostActor as loss:
            self.lost += 1
            if not self.is_closed:
                self.actors[number].stop()
                self.actors[number] = self.cluster.launch(self.make_player)
            failure = {"error": f"{type(loss).__name__}: {loss}", "error_kind": loss.kind}
            return [
                replace(start.episode(version), stop="error", **failure) for start in part.starts
            ]
        finally:
            self.idle.put(number)
