"""Who plays a run's episodes, as a collector asks for them: `Actors` is this process alone. Several
processes that play for one that learns are the `ActorPool` in actor_pool.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentrl_cli.core.types import Episode
from agentrl_cli.generators.base import Sampling
from agentrl_cli.rollout.play import EpisodeStart

PlayStarts = Callable[[list[EpisodeStart]], list[Episode]]


@dataclass(frozen=True, kw_only=True)
class PlayRequest:
    """Episodes to play: how they begin and how actions are sampled. `play_here` plays any of them
    in this process. With `needs_this_process` the world or the generator is another than the run's.
    `step` is the one whose fresh episodes these are; None: they are played to measure something."""

    starts: list[EpisodeStart]
    sampling: Sampling
    most_failed: float
    play_here: PlayStarts
    needs_this_process: bool
    step: int | None


class Actors:
    """This process, which plays every episode when it is asked to."""

    plays_ahead = False  # whether it wants to hear of the next step's episodes

    def play(self, request: PlayRequest) -> list[Episode]:
        """An episode for each start, in order."""
        return request.play_here(request.starts)

    def play_ahead(self, request: PlayRequest) -> None:
        """Begin with what will be asked for next."""

    def metrics(self) -> dict[str, float]:
        """What is to be logged of the step whose episodes were asked for last."""
        return {}

    def state(self) -> dict[str, Any]:
        """JSON values that a checkpoint must hold; nothing where no episode waits."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of `state`. What others have played ahead is played again."""

    def close(self) -> None:
        """End the processes that were started for this run."""
