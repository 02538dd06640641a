"""ArCHer: an actor-critic with a hierarchy (Zhou et al. 2024, arXiv 2402.19446).

High level: Q(s, a) and V(s) of whole utterances are learned from replay by temporal differences
against a slow target, so play of any policy teaches them. Low level: the policy's tokens follow a
policy gradient whose advantage is their utterance's Q(s, a) - V(s). Our choices: the critic is a
copy of the language model (its own adapter under LoRA) with two linear heads, Q read at the last
token of the action and V at the last token of the observation; replay draws whole episodes, for one
pass reads all their turns, with fresh actions as shadows behind their states (models/shadow.py);
the actor learns from this step's fresh episodes instead of fresh actions in replayed states; its
ratio to the weights that played is clipped, which with one optimizer step is REINFORCE. Left out:
the token-level baseline and, from the authors' code, the second critic whose minimum with the first
is taken.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from torch import Tensor

from agentrl_cli.algos.base import Algorithm, Context, Phase
from agentrl_cli.algos.losses import clipped_ratio
from agentrl_cli.algos.ppo import standardise
from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.algos.value_spans import (
    StepSpan,
    left_out_metrics,
    truncated_state_ids,
    turn_spans,
    value_metrics,
    with_fresh_actions,
    with_stored_actions,
    without_faults,
)
from agentrl_cli.core.errors import UserError, require_at_least, require_fraction
from agentrl_cli.core.types import Episode, Sample, derive_seed
from agentrl_cli.models.packable import enable_packing
from agentrl_cli.models.policy import Batch, Outputs, add_logprobs, causal_lm, logprobs_and_values
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer

Q, V = 0, 1  # the critic's outputs
STREAMS = ("q_at", "q_target", "v_at", "v_target")


@dataclass(kw_only=True)
class ArCHer(Algorithm):
    """`action` says whether V(s) learns from a fresh action of the policy (the paper) or from the
    stored one; `ema_decay` is the share that the target keeps. `normalise_advantages` takes from
    every advantage their mean over the update's turns, and divides by their deviation: Q and V both
    climb from zero, out of step, and the difference says nothing of an action."""

    episodes_per_update: int
    critic_updates: int
    critic_warmup: int
    buffer_size: int
    action: Literal["fresh", "stored"]
    discount: float
    ema_decay: float
    normalise_advantages: bool
    clip: float
    actor_epochs: int
    tokens_per_step: int
    optimizer: OptimizerSpec
    critic_optimizer: OptimizerSpec

    def __post_init__(self) -> None:
        require_at_least(
            1, episodes_per_update=self.episodes_per_update, buffer_size=self.buffer_size
        )
        require_at_least(1, critic_updates=self.critic_updates, actor_epochs=self.actor_epochs)
        require_at_least(0, critic_warmup=self.critic_warmup, clip=self.clip)
        require_at_least(0, tokens_per_step=self.tokens_per_step)
        require_fraction(discount=self.discount, ema_decay=self.ema_decay)

    @property
    def replay_capacity(self) -> int:
        """Episodes kept for replay."""
        return self.buffer_size

    def models(self) -> dict[str, ModelSpec]:
        """The actor, the critic, and the critic's slow target."""
        learns, head = self.critic_optimizer, "action_value"
        return {
            "policy": ModelSpec(kind="trained", generates=True, optimizer=self.optimizer),
            "critic": ModelSpec(kind="trained", generates=False, optimizer=learns, head=head),
            "target": ModelSpec(kind="ema", generates=False, head=head, follows="critic"),
        }

    def bind(self, context: Context) -> None:
        """Receive the given objects. Raises UserError where the target cannot read fresh actions
        beside the stored ones."""
        super().bind(context)
        if self.action == "fresh":
            target = causal_lm(context.models.module("target"))
            try:
                enable_packing(target, [context.chat.closing], "visible_first", "full")
            except UserError as error:
                raise UserError(f"algo.action=fresh: {error}; or set algo.action=stored") from error

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """The critic from replay, its target behind it; then the actor, once the critic is warm."""
        for i in range(self.critic_updates):
            drawn = buffer.sample_episodes(self.episodes_per_update, self._seed(i, "replay"))
            samples = self.transitions(without_faults(drawn), i)
            yield Phase(
                "critic", samples, td_loss, model="critic", units=turns_of,
                tokens_per_step=self.tokens_per_step,
                metrics=left_out_metrics("archer", episodes),
            )  # fmt: skip
            self.context.models.ema_update("target", "critic", self.ema_decay)
        self.credit(without_faults(episodes))
        if self.context.step >= self.critic_warmup:
            yield self._actor(without_faults(episodes))

    # the critic

    def transitions(self, episodes: list[Episode], update: int) -> list[Sample]:
        """One sample for each unbroken segment of an episode. Q(s, a) is to be r + discount V'(s'),
        and V(s) is to be Q'(s, a') with a' ~ policy(s); the primed ones are the target's."""
        played = [turn_spans(episode, self._segments(episode)) for episode in episodes]
        every = [span for spans in played for span in spans]
        segments = [list(group) for _, group in groupby(every, key=lambda span: id(span.sample))]
        said = iter(self._said(segments, self._tried(episodes, update)))
        for episode, spans in zip(episodes, played, strict=True):
            values, worth, behind = zip(*(next(said) for _ in spans), strict=True)
            later = [*values[1:], 0.0 if episode.stop == "done" else behind[-1]]
            for span, value, q in zip(spans, later, worth, strict=True):
                note_targets(span, span.reward + self.discount * value, q)
        return [spans[0].sample for spans in segments]

    def _segments(self, episode: Episode) -> list[Sample]:
        """The episode's samples, untrained, the last with the state in which it was cut off."""
        samples = episode_samples(episode, lambda i, turn: {})
        tail = truncated_state_ids(episode, self.context.chat, self.context.models.module("target"))
        samples[-1].ids += tail
        for sample in samples:
            sample.mask = [0] * len(sample.ids)
            sample.streams = {name: [0.0] * len(sample.ids) for name in STREAMS}
        return samples

    def _tried(self, episodes: list[Episode], update: int) -> list[list[int]]:
        """A fresh action of the policy in the state of each turn; none where the stored ones
        stand."""
        if self.action == "stored":
            return []
        prompts = [e.state_ids(k) for e in episodes for k in range(len(e.turns))]
        seeds = [self._seed(update, "act", i) for i in range(len(prompts))]
        found = self.context.generator.generate(prompts, seeds, self.context.sampling)
        return [row[0].ids for row in found]

    def _said(
        self, segments: list[list[StepSpan]], tried: list[list[int]]
    ) -> list[tuple[float, float, float]]:
        """For each turn, by the target: V' of its state, Q' of the action tried there (of the
        stored one where none is), and V' where its segment ends."""
        fresh = iter(tried)
        rows = [
            with_fresh_actions(spans, [next(fresh) for _ in spans])
            if tried
            else with_stored_actions(spans)
            for spans in segments
        ]
        tables = self._read("target", [sample for sample, _ in rows])
        return [
            (float(table[state, V]), float(table[action, Q]), float(table[-1, V]))
            for (_, columns), table in zip(rows, tables, strict=True)
            for state, action in columns
        ]

    def _read(self, model: str, samples: list[Sample]) -> list[Tensor]:
        """The pairs (Q, V) [tokens, 2] of each sample."""
        models = self.context.models
        return [
            pairs
            for _, pairs in logprobs_and_values(models.module(model), models.head(model), samples)
        ]

    # the actor

    def _actor(self, episodes: list[Episode]) -> Phase:
        """Every token of a turn carries its advantage; old log-probs are the trainer's own."""
        advantages = [turn.info["advantage"] for episode in episodes for turn in episode.turns]
        given = iter(standardise(advantages) if self.normalise_advantages else advantages)
        samples = [
            sample
            for episode in episodes
            for sample in episode_samples(episode, lambda i, turn: {"advantage": next(given)})
        ]
        add_logprobs(self.context.models.module("policy"), samples, "old_logprob")
        spread = statistics.pstdev(advantages) if advantages else 0.0
        return Phase(
            "policy", samples, self.loss, epochs=self.actor_epochs,
            tokens_per_step=self.tokens_per_step, metrics={"policy/advantage_std": spread},
        )  # fmt: skip

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The clipped surrogate per token."""
        return clipped_ratio(outputs, batch, self.clip)

    def credit(self, episodes: list[Episode]) -> None:
        """Tell every turn V(s) as its value and Q(s, a) - V(s) as its advantage."""
        segments = [episode_samples(episode, lambda i, turn: {}) for episode in episodes]
        samples = [sample for row in segments for sample in row]
        rows = self._read("critic", samples)
        pairs = {id(sample): row for sample, row in zip(samples, rows, strict=True)}
        for episode, row in zip(episodes, segments, strict=True):
            for span in turn_spans(episode, row):
                found = pairs[id(span.sample)]
                value = float(found[span.start - 1, V])
                advantage = float(found[span.end - 1, Q]) - value
                span.turn.info |= {"value": value, "advantage": advantage}

    # what a reader sees

    def annotate(self, episodes: list[Episode]) -> None:
        """Write `value` and `advantage` into every turn."""
        self.credit(without_faults(episodes))

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        """Do the values foresee what was still earned; every turn's is noted in it."""
        self.annotate(episodes)
        return value_metrics(without_faults(episodes), self.discount, lambda turn: 1)

    def _seed(self, *parts: object) -> int:
        return derive_seed(self.context.seed, "archer", self.context.step, *parts)


def note_targets(span: StepSpan, q_target: float, v_target: float) -> None:
    """Write what Q and V are to become where they are read."""
    streams, state, action = span.sample.streams, span.start - 1, span.end - 1
    streams["q_at"][action], streams["q_target"][action] = 1.0, q_target
    streams["v_at"][state], streams["v_target"][state] = 1.0, v_target


def turns_of(sample: Sample) -> float:
    """The unit of the critic's loss."""
    return sum(sample.streams["q_at"])


def td_loss(outputs: Outputs, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Squared errors of Q and of V against their targets, summed over turns (Zhou et al. 2024)."""
    assert outputs.values is not None
    q, v = outputs.values.unbind(-1)
    at = batch.streams
    q_loss = ((q - at["q_target"]) ** 2 * at["q_at"]).sum()
    v_loss = ((v - at["v_target"]) ** 2 * at["v_at"]).sum()
    sums = {
        "q_loss": q_loss, "v_loss": v_loss,
        "q": (q * at["q_at"]).sum(), "v": (v * at["v_at"]).sum(),
    }  # fmt: skip
    return q_loss + v_loss, {name: each.detach() for name, each in sums.items()}
