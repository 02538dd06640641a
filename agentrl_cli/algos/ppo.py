"""PPO: proximal policy optimization with a value head (Schulman et al. 2017, arXiv 1707.06347).

Advantages are generalized advantage estimates (Schulman et al. 2016, arXiv 1506.02438, eq. 16):

    delta_k = r_k + gamma V(s_{k+1}) - V(s_k)
    A_k = sum_l (gamma lambda)^l delta_{k+l}
    L = - mean min(r A, clip(r, 1 - eps, 1 + eps) A) + value_coef (V - R)^2
        + kl_coef KL(pi || pi_ref) - entropy_coef H(pi)                            (eq. 7 and 9)

A step k is a whole turn or a single token. The value head sits on the policy's body and reads V(s)
at the last token before the step. Our choices: the state after an action is the state before the
next action, after the environment's response. The value error of a turn counts once per token of
its action, so that both losses are means over the same tokens. Old log-probs and values come from
the trainer.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from agentrl_cli.algos import critics, losses
from agentrl_cli.algos.base import Algorithm, Phase
from agentrl_cli.algos.critics import StepSpan
from agentrl_cli.algos.samples import skipped_metrics, without_skipped
from agentrl_cli.algos.settings import PPOConfig
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.models.forward import Batch, Outputs, add_logprobs, logprobs_and_values
from agentrl_cli.models.specs import ModelSpec, with_reference
from agentrl_cli.rollout.replay_buffer import ReplayBuffer


@dataclass(frozen=True)
class StepEstimate:
    """A step, V of the state before it, its advantage, and the training target of V."""

    span: StepSpan
    value: float
    advantage: float
    value_target: float


@dataclass(kw_only=True)
class PPO(PPOConfig, Algorithm):
    """Proximal policy optimization with a value head."""

    uses_ratio = True

    def models(self) -> dict[str, ModelSpec]:
        """Return the policy with a value head, and the reference model if there is a KL penalty."""
        return with_reference(self.optimizer, "value", needed=self.kl_coef > 0)

    @property
    def pretrains_values(self) -> bool:
        """Whether this update trains only the value head, so that the first advantages do not come
        from an untrained critic (VC-PPO, arXiv 2503.01491)."""
        return self.context.step < self.critic_warmup

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Yield one phase that trains policy and values together."""
        samples, estimates = self.estimate_advantages(without_skipped(episodes))
        advantages = [estimate.advantage for estimate in estimates]
        if self.normalise_advantages:
            advantages = losses.standardise(advantages, self.advantage_std)
        for estimate, advantage in zip(estimates, advantages, strict=True):
            span, per_token = estimate.span, estimate.span.sample.per_token
            for name in ("advantage", "return", "value_at"):
                per_token.setdefault(name, [0.0] * len(span.sample.ids))
            per_token["advantage"][span.start : span.end] = [advantage] * span.size
            per_token["return"][span.state_at] = estimate.value_target
            per_token["value_at"][span.state_at] = float(span.size)
        if self.kl_coef:
            add_logprobs(self.context.models.forward("reference"), samples, "reference_logprob")
        values, returns = [e.value for e in estimates], [e.value_target for e in estimates]
        explained = {"policy/explained_variance": critics.explained_variance(values, returns)}
        yield Phase(
            "policy", samples, self.loss, epochs=self.epochs,
            minibatch_tokens=self.minibatch_tokens, entropy_gradient=self.entropy_coef > 0,
            head_only=self.pretrains_values, metrics=explained | skipped_metrics("ppo", episodes),
        )  # fmt: skip

    def estimate_advantages(
        self, episodes: list[Episode]
    ) -> tuple[list[Sample], list[StepEstimate]]:
        """Return the samples with old log-probs and values, and the estimate of every step. Writes
        the value and the mean advantage of each turn into its `info`."""
        chat, policy = self.context.chat, self.context.models.module("policy")
        samples = [critics.value_sample(episode, chat, policy) for episode in episodes]
        rows = logprobs_and_values(self.context.models.forward("policy"), samples)
        for sample, (logprobs, values) in zip(samples, rows, strict=True):
            sample.per_token |= {"old_logprob": logprobs, "old_value": values.tolist()}
        pairs = zip(episodes, samples, strict=True)
        estimates = [e for episode, sample in pairs for e in self._gae(episode, sample)]
        for _, group in groupby(estimates, key=lambda estimate: id(estimate.span.turn)):
            steps = list(group)
            advantage = statistics.fmean(step.advantage for step in steps)
            steps[0].span.turn.info |= {"value": steps[0].value, "advantage": advantage}
        return samples, estimates

    def _gae(self, episode: Episode, sample: Sample) -> list[StepEstimate]:
        """Return the estimates of an episode's steps. V after the last step is 0 only if the
        episode is done."""
        turns = critics.turn_spans(episode, sample)
        spans = turns if self.level == "turn" else critics.token_spans(turns)
        rewards = [span.reward for span in spans]
        values = [sample.per_token["old_value"][span.state_at] for span in spans]
        last_value = sample.per_token["old_value"][-1]
        dones = [False] * (len(spans) - 1) + [episode.stop == "done"]
        advantages, returns = losses.gae(
            rewards, [*values, last_value], dones, self.gamma, self.gae_lambda
        )
        return list(map(StepEstimate, spans, values, advantages, returns))

    def loss(self, outputs: Outputs, batch: Batch) -> losses.Loss:
        """Return the loss above, or the value error alone during the critic's warm-up."""
        actor, actor_metrics = losses.clipped_ratio(outputs, batch, self.clip_eps)
        critic, critic_metrics = losses.value_error(
            outputs, batch, self.value_clip, self.value_clip_error
        )
        both = actor + self.value_coef * critic, actor_metrics | critic_metrics
        anchored = losses.with_kl(both, outputs, batch, self.kl_coef)
        loss, metrics = losses.with_entropy(anchored, outputs, self.entropy_coef)
        return critic if self.pretrains_values else loss, metrics

    def annotate(self, episodes: list[Episode]) -> None:
        self.estimate_advantages(without_skipped(episodes))

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        self.annotate(episodes)
        sound, by_turn = without_skipped(episodes), self.level == "turn"
        return critics.value_metrics(
            sound, self.gamma, lambda turn: 1 if by_turn else len(turn.action_ids)
        )
