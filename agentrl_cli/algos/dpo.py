"""DPO on whole trajectories: the expert's episode against the policy's failure at the same task.

The loss is direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290, eq. 7), with
chosen episode w and rejected episode l:

    L = - log sigmoid( beta log pi(w)/pi_ref(w) - beta log pi(l)/pi_ref(l) )
        - nll_coef log pi(w)/|w|

The second term (Pang et al. 2024, arXiv 2404.19733) keeps the likelihood of w; |w| is its number of
tokens. The pairs are those of ETO (Song et al. 2024, arXiv 2403.02502): play, keep the failures,
prefer the demonstration. Left out: pairs of two episodes of the policy, and failures without a
demonstration of the task that begins with the same observation, which are counted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agentrl_cli.algos.base import Algorithm, Phase
from agentrl_cli.algos.losses import dpo
from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.algos.settings import DPOConfig
from agentrl_cli.core.types import Episode, Sample, derive_seed
from agentrl_cli.models.forward import add_logprobs
from agentrl_cli.models.specs import ModelSpec, with_reference
from agentrl_cli.rollout.replay_buffer import ReplayBuffer

if TYPE_CHECKING:
    from agentrl_cli.models.model_set import ModelSet

Pair = tuple[Sample, Sample]  # chosen, rejected


@dataclass(kw_only=True)
class DPO(DPOConfig, Algorithm):
    """Direct preference optimization on whole trajectories."""

    demo_use = "must"  # they are the chosen episodes

    def models(self) -> dict[str, ModelSpec]:
        return with_reference(self.optimizer)

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Yield one phase on this step's failures, each paired with a demonstration. An episode
        that was cut off has no outcome and is left out."""
        failed = [e for e in episodes if e.turns and e.stop == "done" and not e.success]
        pairs = [pair for episode in failed if (pair := self._pair(episode))]
        yield preference_phase(self, self.context.models, pairs, {
            "dpo/failures": len(failed) / max(1, len(episodes)),
            "dpo/unpaired": (len(failed) - len(pairs)) / max(1, len(failed)),
        })  # fmt: skip

    def _pair(self, episode: Episode) -> Pair | None:
        """Return a demonstration of the task and the failure; None if no demonstration begins with
        the same observation, or either has no action."""
        first = episode.turns[0].observation
        demos = [
            demo
            for demo in self.context.demos
            if demo.task.id == episode.task.id and demo.turns[0].observation == first
        ]
        if not demos:
            return None
        seed = derive_seed(self.context.seed, "pair", self.context.step, episode.id)
        demo = random.Random(seed).choice(demos)
        chosen, rejected = episode_samples(demo), episode_samples(episode)
        return (chosen[0], rejected[0]) if len(chosen) == len(rejected) == 1 else None


def preference_phase(
    config: DPOConfig, models: ModelSet, pairs: list[Pair], metrics: dict[str, float]
) -> Phase:
    """Return the phase that prefers the first sample of each pair. Updates the reference first if
    it is that of the iteration."""
    if config.reference == "iteration":
        models.copy_weights("reference", "policy")
    samples = [sample for pair in pairs for sample in pair]
    add_logprobs(models.forward("reference"), samples, "reference_logprob")
    return Phase(
        "dpo", samples, partial(dpo, beta=config.beta, nll_coef=config.nll_coef),
        epochs=config.epochs, minibatch_tokens=config.minibatch_tokens, keep_together=2,
        units=lambda sample: 0.5, metrics=metrics,
    )  # fmt: skip
