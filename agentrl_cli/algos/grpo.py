"""GRPO: group-relative policy optimisation (Shao et al. 2024, arXiv 2402.03300).

Several episodes of one task are played side by side; an episode's advantage is its reward relative
to its group, the same for all its tokens; the policy follows PPO's clipped ratio. Our choices: the
loss is a mean over all trained tokens of an optimizer step, not over episodes; episodes without an
advantage are left out, of the KL too. Left out: process rewards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentrl_cli.algos.base import Algorithm, Phase
from agentrl_cli.algos.losses import Loss, clipped_ratio, group_advantages, with_kl
from agentrl_cli.algos.samples import episode_samples, turn_advantage
from agentrl_cli.core.errors import require_at_least
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.models.policy import Batch, Outputs
from agentrl_cli.models.reader import add_logprobs
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer


@dataclass(kw_only=True)
class GRPO(Algorithm):
    """`kl_coef` weighs the divergence from the start's weights; 0 keeps no reference model."""

    episodes_per_group: int
    normalise_advantages: bool
    clip: float
    kl_coef: float
    epochs: int
    tokens_per_step: int
    optimizer: OptimizerSpec

    uses_ratio = True

    def __post_init__(self) -> None:
        require_at_least(2, episodes_per_group=self.episodes_per_group)
        require_at_least(1, epochs=self.epochs)
        require_at_least(0, clip=self.clip, kl_coef=self.kl_coef)
        require_at_least(0, tokens_per_step=self.tokens_per_step)

    @property
    def group_size(self) -> int:
        """Episodes of one task that are compared."""
        return self.episodes_per_group

    def models(self) -> dict[str, ModelSpec]:
        """The policy, and its start where the KL is paid for."""
        policy = ModelSpec(kind="trained", generates=True, optimizer=self.optimizer)
        reference = {"reference": ModelSpec(kind="frozen", generates=False)} if self.kl_coef else {}
        return {"policy": policy, **reference}

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """One phase on all episodes whose group did not end all alike."""
        played = [e for e in episodes if not e.error]
        rewards, groups = [e.reward for e in played], [e.group for e in played]
        advantages = group_advantages(rewards, groups, self.normalise_advantages)
        samples: list[Sample] = []
        for episode, advantage in zip(played, advantages, strict=True):
            for turn in episode.turns:
                turn.info["advantage"] = advantage
            if advantage:
                samples += episode_samples(episode, turn_advantage)
        models = self.context.models
        add_logprobs(models.reader("policy"), samples, "old_logprob")
        if self.kl_coef:
            add_logprobs(models.reader("reference"), samples, "reference_logprob")
        informative = sum(map(bool, advantages)) / max(1, len(advantages))
        yield Phase(
            "policy", samples, self.loss, epochs=self.epochs, tokens_per_step=self.tokens_per_step,
            metrics={"policy/informative_episodes": informative},
        )  # fmt: skip

    def loss(self, outputs: Outputs, batch: Batch) -> Loss:
        """The clipped surrogate plus `kl_coef` times the k3 estimate of KL from the reference (Shao
        et al. 2024, eq. 3 and 4)."""
        return with_kl(clipped_ratio(outputs, batch, self.clip), outputs, batch, self.kl_coef)
