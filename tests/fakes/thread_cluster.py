"""A cluster with actors in threads of this process, for tests of the pool without Ray.

A part for which `loses` is true loses its actor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentrl_cli.core.errors import LostActor
from agentrl_cli.core.types import Episode
from agentrl_cli.rollout.actors import MakePlayer, RayActor, RayCluster
from agentrl_cli.rollout.collector import PlayRequest


def never(part: PlayRequest) -> bool:
    return False


class ThreadActor(RayActor):
    def __init__(self, cluster: ThreadCluster, make_player: MakePlayer) -> None:
        self.cluster, self.make_player = cluster, make_player
        self.player: Any = None
        self.version = None

    def wait_until_ready(self) -> None:
        self.player = self.player or self.make_player()

    def play(self, request: PlayRequest, version: int, weights: Any) -> list[Episode]:
        self.wait_until_ready()
        if self.version != version:
            self.version = version
            self.player.load(version, weights)
        if self.cluster.loses(request):
            raise LostActor("a rollout actor was lost (it was killed)")
        return self.player.play(request.starts, request.sampling, request.max_failure_rate)

    def stop(self) -> None:
        self.player = None


@dataclass(kw_only=True)
class ThreadCluster(RayCluster):
    cpus: float = 1.0
    address: str | None = None
    start_timeout: float = 1.0
    loses: Callable[[PlayRequest], bool] = field(default_factory=lambda: never, init=False)
    launched: int = field(default=0, init=False)
    shared: list[bytes] = field(default_factory=list, init=False)
    is_closed: bool = field(default=False, init=False)

    def connect(self, gpus: list[str]) -> None:
        assert gpus == []

    def launch(self, make_player: MakePlayer) -> RayActor:
        self.launched += 1
        return ThreadActor(self, make_player)

    def share(self, weights: bytes) -> bytes:
        self.shared.append(weights)
        return weights

    def close(self) -> None:
        self.is_closed = True
