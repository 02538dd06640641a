"""SFT and RFT: maximum likelihood of action tokens.

    L = - sum_t w_t log pi(a_t | s_t)

SFT trains on demonstrations if there are any, else on the policy's own episodes; the latter is a
control that must not improve. RFT is rejection sampling fine-tuning (Yuan et al. 2023, arXiv
2308.01825): SFT on the policy's own successes (`only_success`). Left out: removing duplicates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from agentrl_cli.algos.base import Algorithm, Context, Phase
from agentrl_cli.algos.frozen_forecast import REFERENCE, add_forecast_gains, forecast_tokens
from agentrl_cli.algos.losses import nll
from agentrl_cli.algos.samples import PerToken, episode_samples
from agentrl_cli.algos.settings import SFTConfig
from agentrl_cli.core.types import Episode, Turn
from agentrl_cli.models.specs import ModelSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer


@dataclass(kw_only=True)
class SFT(SFTConfig, Algorithm):
    """Supervised fine-tuning. With demonstrations, the environment is not used."""

    demos: list[Episode] = field(default_factory=list, init=False, repr=False)

    @property
    def demo_use(self) -> Literal["never", "may", "must"]:
        """RFT learns from the policy's own episodes only."""
        return "never" if self.only_success else "may"

    @property
    def plays(self) -> bool:
        """Whether there are no demonstrations."""
        return not self.demos

    def bind(self, context: Context) -> None:
        super().bind(context)
        self.demos = context.demos

    def models(self) -> dict[str, ModelSpec]:
        policy = ModelSpec(kind="trained", generates=True, optimizer=self.optimizer)
        return {"policy": policy} | (REFERENCE if self.frozen_forecast else {})

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Yield one phase on the demonstrations or the kept episodes."""
        episodes = self.demos or episodes
        played = [e for e in episodes if not e.error]
        kept = [e for e in played if e.success or not self.only_success]
        metrics = {"sft/kept_episodes": len(kept) / max(1, len(episodes))}
        if self.frozen_forecast:  # V(s_0) is a mean over lost episodes, too
            metrics |= add_forecast_gains(self.context, self.frozen_forecast, played)
        samples = [sample for e in kept for sample in episode_samples(e, turn_weight)]
        yield Phase(
            "sft", samples, nll, epochs=self.epochs, minibatch_tokens=self.minibatch_tokens,
            metrics=metrics,
        )  # fmt: skip

    def extra_prompt_tokens(self) -> int:
        return forecast_tokens(self.context, self.frozen_forecast)


def turn_weight(index: int, turn: Turn) -> PerToken:
    """Return the weight of a demonstration's turn, or of each of its tokens; 1 by default, and 0 if
    forecasts are worse after the turn."""
    if turn.info.get("forecast_gain", 0.0) < 0:
        return {"weight": 0.0}
    return {"weight": turn.info.get("weight", 1.0)}
