"""GRPO: group-relative policy optimization (Shao et al. 2024, arXiv 2402.03300).

Each task is played `group_size` times. The advantage of an episode is its reward relative
to its group and applies to all of its tokens (section 4.1):

    A_i = (R_i - mean(R)) / std(R)

The loss is PPO's clipped ratio plus a KL penalty (eq. 3 and 4):

    L = - mean_t min(r_t A, clip(r_t, 1 - eps, 1 + eps) A) + kl_coef KL(pi || pi_ref)

Our choices: the loss is a mean over all trained tokens of an optimizer step instead of a mean per
episode (`loss_type`). Episodes with advantage 0 are skipped, in the KL too
(`skip_zero_advantages`). Episodes that exceed `rollout.max_seq_len` have no outcome and are left
out; replies cut at `rollout.max_new_tokens` are trained on. Left out are process rewards, except
for `frozen_forecast`, which adds `coef` times the gain of forecasts (frozen_forecast.py) to each
turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentrl_cli.algos.base import Algorithm, Phase, trained_tokens
from agentrl_cli.algos.frozen_forecast import REFERENCE, add_forecast_gains, forecast_tokens
from agentrl_cli.algos.losses import Loss, clipped_ratio, group_advantages, with_kl
from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.algos.settings import GRPOConfig
from agentrl_cli.core.statistics import mean
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.models.forward import Batch, Outputs, add_logprobs
from agentrl_cli.models.specs import ModelSpec, with_reference
from agentrl_cli.rollout.replay_buffer import ReplayBuffer


@dataclass(kw_only=True)
class GRPO(GRPOConfig, Algorithm):
    """Group-relative policy optimization."""

    uses_ratio = True

    def models(self) -> dict[str, ModelSpec]:
        models = with_reference(self.optimizer, needed=self.kl_coef > 0)
        return models | (REFERENCE if self.frozen_forecast else {})

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Yield one phase on all episodes with an advantage."""
        played = [e for e in episodes if e.stop == "done" and not e.error]
        rewards, groups = [e.reward for e in played], [e.group for e in played]
        advantages = group_advantages(
            rewards, groups, self.normalise_advantages, self.advantage_std
        )
        metrics, coef = {}, 0.0
        if self.frozen_forecast:
            metrics = add_forecast_gains(self.context, self.frozen_forecast, played)
            coef = self.frozen_forecast.coef
        samples: list[Sample] = []
        for episode, advantage in zip(played, advantages, strict=True):
            for turn in episode.turns:
                turn.info["advantage"] = advantage + coef * turn.info.get("forecast_gain", 0.0)
            if not self.skip_zero_advantages or any(t.info["advantage"] for t in episode.turns):
                samples += self._samples(episode)
        models = self.context.models
        add_logprobs(models.forward("policy"), samples, "old_logprob")
        if self.kl_coef:
            add_logprobs(models.forward("reference"), samples, "reference_logprob")
        found = {group: {e.reward for e in played if e.group == group} for group in set(groups)}
        zero_std = mean([len(found[group]) == 1 for group in groups])
        yield Phase(
            "policy", samples, self.loss, epochs=self.epochs,
            minibatch_tokens=self.minibatch_tokens, units=self.units,
            metrics={"reward/frac_zero_std": zero_std} | metrics,
        )  # fmt: skip

    def _samples(self, episode: Episode) -> list[Sample]:
        """Return the episode's samples. If each episode has the same weight, field `share` is the
        weight of each token. dr_grpo multiplies the advantages of an episode by its
        length, as a share of `max_completion_length`."""
        samples = episode_samples(episode, lambda i, turn: {"advantage": turn.info["advantage"]})
        if self.loss_type == "dapo":
            return samples
        tokens = sum(map(trained_tokens, samples))
        for sample in samples:
            sample.per_token["share"] = [trained / tokens for trained in sample.mask]
            if self.loss_type == "dr_grpo" and self.max_completion_length:
                scale, row = tokens / self.max_completion_length, sample.per_token["advantage"]
                sample.per_token["advantage"] = [scale * advantage for advantage in row]
        return samples

    def units(self, sample: Sample) -> float:
        """Return the unit of the loss: trained tokens, or 1 per episode."""
        share = sample.per_token.get("share")
        return trained_tokens(sample) if share is None else sum(share)

    def extra_prompt_tokens(self) -> int:
        return forecast_tokens(self.context, self.frozen_forecast)

    def loss(self, outputs: Outputs, batch: Batch) -> Loss:
        """Return the clipped surrogate plus the KL penalty."""
        surrogate = clipped_ratio(outputs, batch, self.clip_eps, self.clip_eps_high)
        return with_kl(surrogate, outputs, batch, self.kl_coef, self.use_bias_correction_kl)
