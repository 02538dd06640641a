"""A cluster with actors in threads of this process, for tests of the pool without Ray.

A part for which `loses` is true loses its actor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentrl_cli.core.errors import LostActor
from agentrl_cli.core.types import Episode
from agentrl_cli.rollout.actors import Actor, Cluster, MakePlayer, Part


def never(part: Part) -> bool:
    return False


@dataclass
class ThreadActor(Actor):
    cluster: ThreadCluster
    make_player: MakePlayer
    player: Any = None
    version: int | None = None

    def wait_until_ready(self) -> None:
        self.player = self.player or self.make_player()

    def play(self, part: Part) -> list[Episode]:
        self.wait_until_ready()
        if self.version != part.version:
            self.version = part.version
            self.player.load(self.version, part.weights)
        if self.cluster.loses(part):
            raise LostActor("a rollout actor was lost (it was killed)")
        return self.player.play(part.starts, part.sampling, part.max_failure_rate)

    def stop(self) -> None:
        self.player = None


@dataclass(kw_only=True)
class ThreadCluster(Cluster):
    loses: Callable[[Part], bool] = field(default_factory=lambda: never, init=False)
    launched: int = field(default=0, init=False)
    shared: list[bytes] = field(default_factory=list, init=False)
    is_closed: bool = field(default=False, init=False)

    def connect(self, gpus: list[str]) -> None:
        assert gpus == []

    def launch(self, make_player: MakePlayer) -> Actor:
        self.launched += 1
        return ThreadActor(self, make_player)

    def share(self, weights: bytes) -> bytes:
        self.shared.append(weights)
        return weights

    def close(self) -> None:
        self.is_closed = True
