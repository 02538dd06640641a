"""PPO: proximal policy optimisation with a learned value (Schulman et al. 2017, arXiv 1707.06347).

A value head on the policy's own body reads the state before every step; advantages come from
generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438); the policy follows the
clipped ratio, the value its returns. A step is a whole turn, whose state is read at the last token
of its observation, or a single token of an action. Our choices: one state follows the other across
observations and restarts, which the policy did not write; a turn's value error counts once for each
token of its action, so that both losses are means over the same tokens; old log-probs and values
come from one pass of the trainer before the first update.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from agentrl_cli.algos import losses, value_spans
from agentrl_cli.algos.base import Algorithm, Phase
from agentrl_cli.algos.critic_metrics import explained_variance
from agentrl_cli.algos.left_out import left_out_metrics, without_left_out
from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.algos.value_spans import StepSpan
from agentrl_cli.core.errors import require_at_least, require_fraction
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.models.policy import Batch, Outputs
from agentrl_cli.models.reader import add_logprobs, logprobs_and_values
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer


@dataclass(frozen=True)
class StepEstimate:
    """A step, the value of the state before it, its advantage, and that value's training target."""

    span: StepSpan
    value: float
    advantage: float
    value_target: float


@dataclass(kw_only=True)
class PPO(Algorithm):
    """`value_clip` of 0 leaves the value's steps unbounded; in the first `critic_warmup` updates
    only the value head learns; `kl_coef` weighs the divergence from the start's weights, 0 keeps no
    reference model; `entropy_coef` weighs the bonus for it."""

    level: Literal["turn", "token"]
    discount: float
    gae_lambda: float
    normalise_advantages: bool
    clip: float
    value_clip: float
    value_coef: float
    critic_warmup: int
    kl_coef: float
    entropy_coef: float
    epochs: int
    tokens_per_step: int
    optimizer: OptimizerSpec

    uses_ratio = True

    def __post_init__(self) -> None:
        require_at_least(1, epochs=self.epochs)
        require_at_least(0, clip=self.clip, value_clip=self.value_clip, value_coef=self.value_coef)
        require_at_least(0, kl_coef=self.kl_coef, entropy_coef=self.entropy_coef)
        require_at_least(0, critic_warmup=self.critic_warmup)
        require_at_least(0, tokens_per_step=self.tokens_per_step)
        require_fraction(discount=self.discount, gae_lambda=self.gae_lambda)

    def models(self) -> dict[str, ModelSpec]:
        """The policy with a value head on it, and its start where the KL is paid for."""
        policy = ModelSpec(kind="trained", generates=True, optimizer=self.optimizer, head="value")
        reference = {"reference": ModelSpec(kind="frozen", generates=False)} if self.kl_coef else {}
        return {"policy": policy, **reference}

    @property
    def pretrains_values(self) -> bool:
        """Whether this update trains the value head alone, on play of a policy that waits, so that
        its first advantages are not those of a blind critic (VC-PPO, arXiv 2503.01491)."""
        return self.context.step < self.critic_warmup

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """One phase in which policy and value learn from the same pass."""
        samples, estimates = self.estimate_advantages(without_left_out(episodes))
        self._write_streams(estimates)
        if self.kl_coef:
            add_logprobs(self.context.models.reader("reference"), samples, "reference_logprob")
        values, returns = [e.value for e in estimates], [e.value_target for e in estimates]
        yield Phase(
            "policy", samples, self.loss, epochs=self.epochs, tokens_per_step=self.tokens_per_step,
            entropy_gradient=self.entropy_coef > 0, head_only=self.pretrains_values,
            metrics={"policy/explained_variance": explained_variance(values, returns)}
            | left_out_metrics("ppo", episodes),
        )  # fmt: skip

    def estimate_advantages(
        self, episodes: list[Episode]
    ) -> tuple[list[Sample], list[StepEstimate]]:
        """Samples with old log-probs and values, and the estimates of every step in them. Every
        turn's info gets the value of its state and the mean advantage of its steps."""
        samples_of = [self._samples(episode) for episode in episodes]
        samples = [sample for row in samples_of for sample in row]
        self._add_old_values(samples)
        pairs = zip(episodes, samples_of, strict=True)
        estimates = [e for episode, row in pairs for e in self._gae(episode, row)]
        write_info(estimates)
        return samples, estimates

    def _samples(self, episode: Episode) -> list[Sample]:
        """The episode's samples, the last with the state whose value stands for what is cut off."""
        samples, policy = episode_samples(episode), self.context.models.module("policy")
        tail = value_spans.truncated_state_ids(episode, self.context.chat, policy)
        samples[-1].ids += tail
        samples[-1].mask += [0] * len(tail)
        return samples

    def _add_old_values(self, samples: list[Sample]) -> None:
        """Streams `old_logprob` and `old_value`, by a pass of the trainer, not of the generator."""
        models = self.context.models
        rows = logprobs_and_values(models.reader("policy"), samples)
        for sample, (logprobs, values) in zip(samples, rows, strict=True):
            sample.streams["old_logprob"] = logprobs
            sample.streams["old_value"] = values.tolist()

    def _gae(self, episode: Episode, samples: list[Sample]) -> list[StepEstimate]:
        """The estimates of the episode's steps, by generalised advantage estimation."""
        turns = value_spans.turn_spans(episode, samples)
        spans = turns if self.level == "turn" else value_spans.token_spans(turns)
        rewards = [span.reward for span in spans]
        values = [span.sample.streams["old_value"][span.state_at] for span in spans]
        last_value = samples[-1].streams["old_value"][-1]
        dones = [False] * (len(spans) - 1) + [episode.stop == "done"]
        advantages, returns = losses.gae(
            rewards, [*values, last_value], dones, self.discount, self.gae_lambda
        )
        return list(map(StepEstimate, spans, values, advantages, returns))

    def _write_streams(self, estimates: list[StepEstimate]) -> None:
        """Write each step's advantage on its tokens, its return where its state is read; there
        `value_at` is the number of its tokens."""
        advantages = [estimate.advantage for estimate in estimates]
        if self.normalise_advantages:
            advantages = losses.standardise(advantages)
        for estimate, advantage in zip(estimates, advantages, strict=True):
            span, streams = estimate.span, estimate.span.sample.streams
            for name in ("advantage", "return", "value_at"):
                streams.setdefault(name, [0.0] * len(span.sample.ids))
            streams["advantage"][span.start : span.end] = [advantage] * span.size
            streams["return"][span.state_at] = estimate.value_target
            streams["value_at"][span.state_at] = float(span.size)

    def loss(self, outputs: Outputs, batch: Batch) -> losses.Loss:
        """The clipped surrogate, `value_coef` times the value's error, `kl_coef` times the k3
        estimate of the KL from the reference, less `entropy_coef` times the entropy (Schulman et
        al. 2017, eq. 9). While values are pretrained, their error alone."""
        actor, actor_metrics = losses.clipped_ratio(outputs, batch, self.clip)
        critic, critic_metrics = losses.value_error(outputs, batch, self.value_clip)
        both = actor + self.value_coef * critic, actor_metrics | critic_metrics
        anchored = losses.with_kl(both, outputs, batch, self.kl_coef)
        loss, metrics = losses.with_entropy(anchored, outputs, self.entropy_coef)
        return critic if self.pretrains_values else loss, metrics

    def annotate(self, episodes: list[Episode]) -> None:
        """Write `value` and `advantage` into every turn."""
        self.estimate_advantages(without_left_out(episodes))

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        """Do the values foresee what was still earned; every turn's is noted in it."""
        self.annotate(episodes)
        sound, by_turn = without_left_out(episodes), self.level == "turn"
        return value_spans.value_metrics(
            sound, self.discount, lambda turn: 1 if by_turn else len(turn.action_ids)
        )


def write_info(estimates: list[StepEstimate]) -> None:
    """Note in every turn the value before its first step and the mean advantage of its steps."""
    for _, group in groupby(estimates, key=lambda estimate: id(estimate.span.turn)):
        steps = list(group)
        advantage = statistics.fmean(step.advantage for step in steps)
        steps[0].span.turn.info |= {"value": steps[0].value, "advantage": advantage}
