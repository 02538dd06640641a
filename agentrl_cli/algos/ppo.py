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

from torch import Tensor

from agentrl_cli.algos.base import Algorithm, Phase
from agentrl_cli.algos.critic_metrics import explained_variance
from agentrl_cli.algos.losses import clipped_ratio, gae, value_error, with_entropy, with_kl
from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.algos.value_spans import (
    StepSpan,
    left_out_metrics,
    token_spans,
    truncated_state_ids,
    turn_spans,
    value_metrics,
    without_faults,
)
from agentrl_cli.core.errors import require_at_least, require_fraction
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.models.policy import Batch, Outputs, add_logprobs, logprobs_and_values
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer


@dataclass
class Credit:
    """A step with the value of the state before it, its advantage and its return."""

    span: StepSpan
    value: float
    advantage: float
    target: float


@dataclass(kw_only=True)
class PPO(Algorithm):
    """`value_clip` of 0 leaves the value's steps unbounded; `kl_coef` weighs the divergence from
    the start's weights, 0 keeps no reference model; `entropy_coef` weighs the bonus for it."""

    level: Literal["turn", "token"]
    discount: float
    gae_lambda: float
    normalise_advantages: bool
    clip: float
    value_clip: float
    value_coef: float
    kl_coef: float
    entropy_coef: float
    epochs: int
    tokens_per_step: int
    optimizer: OptimizerSpec

    def __post_init__(self) -> None:
        require_at_least(1, epochs=self.epochs)
        require_at_least(0, clip=self.clip, value_clip=self.value_clip, value_coef=self.value_coef)
        require_at_least(
            0,
            kl_coef=self.kl_coef,
            entropy_coef=self.entropy_coef,
            tokens_per_step=self.tokens_per_step,
        )
        require_fraction(discount=self.discount, gae_lambda=self.gae_lambda)

    def models(self) -> dict[str, ModelSpec]:
        """The policy with a value head on it, and its start where the KL is paid for."""
        policy = ModelSpec(kind="trained", generates=True, optimizer=self.optimizer, head="value")
        reference = {"reference": ModelSpec(kind="frozen", generates=False)} if self.kl_coef else {}
        return {"policy": policy, **reference}

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """One phase in which policy and value learn from the same pass."""
        samples, credits = self.credit(without_faults(episodes))
        self._train_on(credits)
        if self.kl_coef:
            reference = self.context.models.module("reference")
            add_logprobs(reference, samples, "reference_logprob")
        known = explained_variance([c.value for c in credits], [c.target for c in credits])
        yield Phase(
            "policy", samples, self.loss, epochs=self.epochs, tokens_per_step=self.tokens_per_step,
            entropy_gradient=self.entropy_coef > 0,
            metrics={"policy/explained_variance": known}
            | left_out_metrics("ppo", episodes),
        )  # fmt: skip

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The clipped surrogate, `value_coef` times the value's error, `kl_coef` times the k3
        estimate of the KL from the reference, less `entropy_coef` times the entropy."""
        loss, metrics = clipped_ratio(outputs, batch, self.clip)
        error, value_metrics = value_error(outputs, batch, self.value_clip)
        both = loss + self.value_coef * error, metrics | value_metrics
        return with_entropy(with_kl(both, outputs, batch, self.kl_coef), outputs, self.entropy_coef)

    def credit(self, episodes: list[Episode]) -> tuple[list[Sample], list[Credit]]:
        """Samples with old log-probs and values, and the credit of every step in them.

        Every turn is told the value of its state and the mean advantage of its steps.
        """
        segments = [episode_samples(episode, lambda i, turn: {}) for episode in episodes]
        for episode, row in zip(episodes, segments, strict=True):
            self._continue(episode, row[-1])
        samples = [sample for row in segments for sample in row]
        self._read(samples)
        rows = zip(episodes, segments, strict=True)
        return samples, [c for episode, row in rows for c in self._gae(episode, row)]

    def _continue(self, episode: Episode, sample: Sample) -> None:
        """Append the state in which an episode was cut off, whose value stands for the rest."""
        ids = truncated_state_ids(episode, self.context.chat, self.context.models.module("policy"))
        sample.ids += ids
        sample.mask += [0] * len(ids)

    def _read(self, samples: list[Sample]) -> None:
        """Log-probs and values by the trainer's own pass, never the generator's."""
        models = self.context.models
        rows = logprobs_and_values(models.module("policy"), models.head("policy"), samples)
        for sample, (logprobs, values) in zip(samples, rows, strict=True):
            sample.streams["old_logprob"] = logprobs
            sample.streams["old_value"] = values.tolist()

    def _gae(self, episode: Episode, samples: list[Sample]) -> list[Credit]:
        turns = turn_spans(episode, samples)
        spans = turns if self.level == "turn" else token_spans(turns)
        values = [span.sample.streams["old_value"][span.start - 1] for span in spans]
        end = samples[-1].streams["old_value"][-1]
        dones = [False] * (len(spans) - 1) + [episode.stop == "done"]
        advantages, targets = gae(
            [span.reward for span in spans], [*values, end], dones, self.discount, self.gae_lambda
        )
        credits = [Credit(*row) for row in zip(spans, values, advantages, targets, strict=True)]
        for _, group in groupby(credits, key=lambda credit: id(credit.span.turn)):
            first, *others = group
            info = first.span.turn.info
            info["value"] = first.value
            info["advantage"] = statistics.fmean(c.advantage for c in [first, *others])
        return credits

    def _train_on(self, credits: list[Credit]) -> None:
        """Write each step's advantage on its tokens, its return where its state is read."""
        advantages = [credit.advantage for credit in credits]
        if self.normalise_advantages:
            advantages = standardise(advantages)
        for credit, advantage in zip(credits, advantages, strict=True):
            span, size = credit.span, credit.span.end - credit.span.start
            for name in ("advantage", "return", "value_at"):
                span.sample.streams.setdefault(name, [0.0] * len(span.sample.ids))
            span.sample.streams["advantage"][span.start : span.end] = [advantage] * size
            span.sample.streams["return"][span.start - 1] = credit.target
            span.sample.streams["value_at"][span.start - 1] = float(size)

    def annotate(self, episodes: list[Episode]) -> None:
        """Write `value` and `advantage` into every turn."""
        self.credit(without_faults(episodes))

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        """Do the values foresee what was still earned; every turn's is noted in it."""
        self.annotate(episodes)
        by_turn = self.level == "turn"
        return value_metrics(
            without_faults(episodes),
            self.discount,
            lambda turn: 1 if by_turn else len(turn.action_ids),
        )


def standardise(numbers: list[float]) -> list[float]:
    """Less their mean, over their population standard deviation unless that is 0."""
    mean = statistics.fmean(numbers) if numbers else 0.0
    spread = statistics.pstdev(numbers) if numbers else 0.0
    return [(number - mean) / (spread or 1.0) for number in numbers]
