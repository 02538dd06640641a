"""Actors on a Ray cluster: Ray places them, carries weights and episodes, and says which are gone.
The only file that knows Ray."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from agentrl_cli.core.errors import LostActor, UserError, require_above, require_at_least
from agentrl_cli.core.types import Episode
from agentrl_cli.generators.base import Sampling
from agentrl_cli.rollout.actor_pool import Actor, Cluster, MakePlayer, Part, Player
from agentrl_cli.rollout.play import EpisodeStart

INSTALL = "hardware.actors needs Ray, which is not installed; pip install 'agentrl-cli[ray]'"
OWN_RAY = {  # variables of a Ray that is started here: it tells nobody of itself, actors do not
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0",  # make way for other programs, and
    "RAY_gcs_server_port_wait_time_s": "300",  # a busy machine has as long as it needs
}  # fmt: skip
OWN_STARTS = 3  # of a Ray here, which gives its own node 30 s and has no setting for that
KNOCK_SECONDS = 10.0
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(kw_only=True)
class RayCluster(Cluster):
    """Each actor has `cpus` cores, too. `address` is the cluster's, `auto` that of this machine's;
    None starts one here, which ends with the run. An actor has to be there after `start_timeout`
    seconds."""

    cpus: float
    address: str | None
    start_timeout: float
    ray: Any = field(default=None, init=False, repr=False)
    has_gpus: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, **{"hardware.actors.cpus": self.cpus})
        require_above(0, **{"hardware.actors.start_timeout": self.start_timeout})

    def connect(self, gpus: list[str]) -> None:
        """Raises UserError where Ray is not installed, cannot be reached, or does not start, and
        where this machine has too few GPUs."""
        if self.address is None and gpus and self.count * self.gpus > len(gpus):
            line = f"hardware.actors asks for {self.count} times {self.gpus:g} GPUs"
            line += f", and there are {len(gpus)} for actors here"
            raise UserError(f"{line}; lower count or gpus, or give the address of a larger cluster")
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise UserError(INSTALL) from None
        self.ray, self.has_gpus = ray, bool(gpus)
        _silence()
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "CRITICAL"}
        try:
            if self.address is not None:
                _knock(self.address)
                ray.init(address=self.address, **quiet)
                return
            for name, value in OWN_RAY.items():
                os.environ.setdefault(name, value)
            here = {"num_cpus": ceil(self.count * self.cpus), "num_gpus": len(gpus)}
            with _seeing(gpus):
                _start(ray, include_dashboard=False, **here, **quiet)
        except Exception as error:  # what a cluster may do wrong has no type of its own
            where = "start here" if self.address is None else f"be reached at {self.address!r}"
            line = f"Ray cannot {where} ({_first_line(error)})"
            remedy = "mend that, or give hardware.actors.address of a cluster that runs (ray start)"
            raise UserError(f"{line}; {remedy}") from error

    def launch(self, make_player: MakePlayer) -> Actor:
        """Where Ray finds room for it."""
        gpus = self.gpus if self.has_gpus else 0
        actor = self.ray.remote(_Host).options(num_cpus=self.cpus, num_gpus=gpus).remote()
        return RayActor(self.ray, actor, actor.build.remote(make_player), self.start_timeout)

    def share(self, weights: bytes) -> Any:
        """In Ray's store: each node fetches them once."""
        return self.ray.put(weights)

    def close(self) -> None:
        """Ends a Ray that was started here; of another it leaves the actors' places free."""
        self.ray.shutdown()


@dataclass
class RayActor(Actor):
    """Ray's `handle` of a host, and the `built` reference of its player."""

    ray: Any
    handle: Any
    built: Any
    start_timeout: float
    version: int | None = None

    def wait_until_ready(self) -> None:
        """LostActor where Ray finds no room for it in time."""
        with self._explained():
            self.ray.get(self.built, timeout=self.start_timeout)

    def play(self, part: Part) -> list[Episode]:
        """By weights that are handed on only where it has others."""
        self.wait_until_ready()
        with self._explained():
            if self.version != part.weights.version:
                version, weights = part.weights.version, part.weights.shared
                self.ray.get(self.handle.load.remote(version, weights))
                self.version = version
            asked = self.handle.play.remote(part.starts, part.sampling, part.most_failed)
            return self.ray.get(asked)

    def stop(self) -> None:
        """Whatever Ray does, the run ends."""
        with suppress(Exception):
            self.ray.kill(self.handle)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise what the actor raised, and LostActor where there is none any more."""
        errors = self.ray.exceptions
        try:
            yield
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.GetTimeoutError:
            line = f"a rollout actor is not there after {self.start_timeout:g} s: Ray has no place"
            raise LostActor(f"{line} for it, or its model loads longer") from None
        except errors.RayError as error:
            raise LostActor(f"a rollout actor was lost ({_first_line(error)})") from None


class _Host:
    """What lives in an actor's process."""

    player: Player

    def build(self, make_player: MakePlayer) -> None:
        self.player = make_player()

    def load(self, version: int, weights: bytes) -> None:
        self.player.load(version, weights)

    def play(
        self, starts: list[EpisodeStart], sampling: Sampling, most_failed: float
    ) -> list[Episode]:
        return self.player.play(starts, sampling, most_failed)


def _start(ray: Any, **settings: Any) -> None:
    """A Ray of this process, begun anew where a busy machine was too slow for it."""
    for left in reversed(range(OWN_STARTS)):
        try:
            ray.init(address="local", **settings)
            return
        except Exception:
            ray.shutdown()
            if not left:
                raise


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0].rstrip(".") if text else type(error).__name__


def _knock(address: str) -> None:
    """Raise OSError where nobody listens at HOST:PORT, for which Ray itself waits minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), KNOCK_SECONDS).close()


def _silence() -> None:
    """Ray prints a paragraph on stdout for each process that dies, and has no setting against it;
    the episodes that this costs say it in a line."""
    worker = sys.modules.get("ray._private.worker")
    if worker is not None:
        worker.__dict__["_worker_logs_enabled"] = False


@contextmanager
def _seeing(gpus: list[str]) -> Iterator[None]:
    """A Ray that is started inside sees these GPUs alone."""
    before = os.environ.get(VISIBLE)
    os.environ[VISIBLE] = ",".join(gpus)
    try:
        yield
    finally:
        os.environ.pop(VISIBLE)
        if before is not None:
            os.environ[VISIBLE] = before
