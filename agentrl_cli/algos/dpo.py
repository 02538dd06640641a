"""DPO on whole trajectories: the expert's against one's own failures at the same task.

The loss is direct preference optimisation (Rafailov et al. 2023, arXiv 2305.18290); the pairs are
those of ETO (Song et al. 2024, arXiv 2403.02502): explore, keep what failed, prefer the
demonstration. Left out: pairs of two own trajectories, and failures at tasks that nobody
demonstrated, which are counted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from agentrl_cli.algos.base import Algorithm, Phase
from agentrl_cli.algos.losses import Loss, dpo
from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.core.errors import require_at_least
from agentrl_cli.core.types import Episode, Sample, derive_seed
from agentrl_cli.models.policy import Batch, Outputs
from agentrl_cli.models.reader import add_logprobs
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer

if TYPE_CHECKING:
    from agentrl_cli.models.model_set import ModelSet

Pair = tuple[Sample, Sample]  # preferred, dispreferred


@dataclass(kw_only=True)
class DPO(Algorithm):
    """`reference` is the model the run started from, or the policy at the start of each update;
    `imitation_coef` weighs the demonstration's own likelihood against the preference."""

    beta: float
    imitation_coef: float
    reference: Literal["start", "iteration"]
    epochs: int
    tokens_per_step: int
    optimizer: OptimizerSpec

    demo_use = "must"  # they are what is preferred

    def __post_init__(self) -> None:
        require_at_least(1, epochs=self.epochs)
        require_at_least(0, beta=self.beta, imitation_coef=self.imitation_coef)
        require_at_least(0, tokens_per_step=self.tokens_per_step)

    def models(self) -> dict[str, ModelSpec]:
        """The policy and its reference."""
        return with_reference(self.optimizer)

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """One phase on this step's failures, each paired with a demonstration of its task."""
        failed = [e for e in episodes if e.turns and not e.error and not e.success]
        pairs = [pair for episode in failed if (pair := self._pair(episode))]
        renew_reference(self.context.models, self.reference)
        metrics = {
            "dpo/failures": len(failed) / max(1, len(episodes)),
            "dpo/unpaired": (len(failed) - len(pairs)) / max(1, len(failed)),
        }
        loss = partial(dpo, beta=self.beta, imitation_coef=self.imitation_coef)
        yield preference_phase(
            self.context.models, pairs, loss, epochs=self.epochs,
            tokens_per_step=self.tokens_per_step, metrics=metrics,
        )  # fmt: skip

    def _pair(self, episode: Episode) -> Pair | None:
        """A demonstration of the task and the failure, None where either cannot be had unbroken."""
        demos = [demo for demo in self.context.demos if demo.task.id == episode.task.id]
        if not demos:
            return None
        seed = derive_seed(self.context.seed, "pair", self.context.step, episode.id)
        demo = random.Random(seed).choice(demos)
        chosen, rejected = episode_samples(demo), episode_samples(episode)
        return (chosen[0], rejected[0]) if len(chosen) == len(rejected) == 1 else None


def with_reference(optimizer: OptimizerSpec) -> dict[str, ModelSpec]:
    """The policy, and a frozen copy of it."""
    policy = ModelSpec(kind="trained", generates=True, optimizer=optimizer)
    return {"policy": policy, "reference": ModelSpec(kind="frozen", generates=False)}


def renew_reference(models: ModelSet, reference: str) -> None:
    """Set the reference to the policy of now where `reference` is `iteration`."""
    if reference == "iteration":
        models.copy_weights("reference", "policy")


def preference_phase(
    models: ModelSet,
    pairs: list[Pair],
    loss: Callable[[Outputs, Batch], Loss],
    *,
    epochs: int,
    tokens_per_step: int,
    metrics: dict[str, float],
) -> Phase:
    """The phase that prefers the first sample of each pair, measured against the reference."""
    samples = [sample for pair in pairs for sample in pair]
    add_logprobs(models.reader("reference"), samples, "reference_logprob")
    return Phase(
        "dpo", samples, loss, epochs=epochs, tokens_per_step=tokens_per_step,
        keep_together=2, units=per_pair_half, metrics=metrics,
    )  # fmt: skip


def per_pair_half(sample: Sample) -> float:
    """The unit of a loss over pairs, for each of the two."""
    return 0.5
