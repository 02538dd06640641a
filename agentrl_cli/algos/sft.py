"""SFT and RFT: maximum likelihood of action tokens, of all episodes or of the successful ones.

Where there are demonstrations SFT plays nothing: an update is `epochs` passes over all of them.
RFT is rejection sampling fine-tuning (Yuan et al. 2023, arXiv 2308.01825): SFT on one's own
successes. On corpus episodes SFT is how the embedded models are made; on one's own unfiltered play
it is a control that must stay flat. Left out: de-duplication of equal successes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from agentrl_cli.algos.base import Algorithm, Context, Phase
from agentrl_cli.algos.losses import nll
from agentrl_cli.algos.samples import Streams, episode_samples
from agentrl_cli.core.errors import require_at_least
from agentrl_cli.core.types import Episode, Turn
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer


@dataclass(kw_only=True)
class SFT(Algorithm):
    """Imitate: every episode, or only the successful ones when `only_success`."""

    only_success: bool
    epochs: int
    tokens_per_step: int
    optimizer: OptimizerSpec
    demos: list[Episode] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        require_at_least(1, epochs=self.epochs)
        require_at_least(0, tokens_per_step=self.tokens_per_step)

    @property
    def demo_use(self) -> Literal["never", "may", "must"]:
        """RFT learns from its own play only."""
        return "never" if self.only_success else "may"

    @property
    def plays(self) -> bool:
        """Not where there are demonstrations."""
        return not self.demos

    def bind(self, context: Context) -> None:
        """Receive the given objects, demonstrations among them."""
        super().bind(context)
        self.demos = context.demos

    def models(self) -> dict[str, ModelSpec]:
        """Only the policy."""
        return {"policy": ModelSpec(kind="trained", generates=True, optimizer=self.optimizer)}

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """One phase on the demonstrations, or on this step's good episodes; not on broken ones."""
        episodes = self.demos or episodes
        kept = [e for e in episodes if not e.error and (e.success or not self.only_success)]
        samples = [sample for e in kept for sample in episode_samples(e, turn_weight)]
        yield Phase(
            "sft", samples, nll, epochs=self.epochs, tokens_per_step=self.tokens_per_step,
            metrics={"sft/kept_episodes": len(kept) / max(1, len(episodes))},
        )  # fmt: skip


def turn_weight(index: int, turn: Turn) -> Streams:
    """The weight of a demonstration's turn or of each of its tokens (`info["weight"]`), else 1."""
    return {"weight": turn.info.get("weight", 1.0)}
