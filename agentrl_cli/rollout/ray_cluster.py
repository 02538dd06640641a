"""Actors on a Ray cluster: the only file that imports Ray.

Ray places the actors, carries weights and episodes, and reports lost processes.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import ceil
from typing import Annotated, Any

from pydantic import Field

from agentrl_cli.core.errors import LostActor, UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.generators.base import Sampling
from agentrl_cli.rollout.actors import Actor, Cluster, MakePlayer, Part
from agentrl_cli.rollout.play import EpisodeStart

OWN_RAY = {  # variables of a Ray that is started here: no usage report, and patience if busy
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0",
    "RAY_gcs_server_port_wait_time_s": "300",
}  # fmt: skip
OWN_STARTS = 3  # Ray gives its own node 30 s, without a setting for that
CONNECT_SECONDS = 10.0
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(kw_only=True)
class RayCluster(Cluster):
    """Actors on a Ray cluster."""

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
        """Connect to the cluster or start one.

        Raises UserError if Ray is missing, cannot be reached or does not start, and if this machine
        has too few GPUs.
        """
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
        cpus = ceil(self.count * self.cpus)
        try:
            for left in reversed(range(OWN_STARTS)):
                try:
                    self.ray.init(
                        address="local", include_dashboard=False, num_cpus=cpus,
                        num_gpus=len(gpus), **quiet,
                    )  # fmt: skip
                    return
                except Exception:
                    self.ray.shutdown()
                    if not left:
                        raise
        finally:
            os.environ.pop(VISIBLE)
            if before is not None:
                os.environ[VISIBLE] = before

    def launch(self, make_player: MakePlayer) -> Actor:
        gpus = self.gpus if self.has_gpus else 0
        actor = self.ray.remote(_Host).options(num_cpus=self.cpus, num_gpus=gpus).remote()
        return RayActor(self.ray, actor, actor.build.remote(make_player), self.start_timeout)

    def share(self, weights: bytes) -> Any:
        """Put weights into Ray's object store, from which each node fetches them once."""
        return self.ray.put(weights)

    def close(self) -> None:
        self.ray.shutdown()


@dataclass
class RayActor(Actor):
    """Ray's `handle` of a host, and the reference to its player (`built`)."""

    ray: Any
    handle: Any
    built: Any
    start_timeout: float
    version: int | None = None

    def wait_until_ready(self) -> None:
        """Wait for the player. Raises LostActor if Ray finds no room for it in time."""
        with self._translated():
            self.ray.get(self.built, timeout=self.start_timeout)

    def play(self, part: Part) -> list[Episode]:
        """Play a part; weights are sent only if the actor has others."""
        self.wait_until_ready()
        with self._translated():
            if self.version != part.version:
                self.ray.get(self.handle.load.remote(part.version, part.weights))
                self.version = part.version
            call = self.handle.play.remote(part.starts, part.sampling, part.max_failure_rate)
            return self.ray.get(call)

    def stop(self) -> None:
        """Kill the process, and ignore errors of Ray."""
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

    def load(self, version: int, weights: bytes) -> None:
        self.player.load(version, weights)

    def play(
        self, starts: list[EpisodeStart], sampling: Sampling, max_failure_rate: float
    ) -> list[Episode]:
        return self.player.play(starts, sampling, max_failure_rate)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0].rstrip(".") if text else type(error).__name__
