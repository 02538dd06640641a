"""ArCHer: an actor-critic with a hierarchy (Zhou et al. 2024, arXiv 2402.19446).

High level: Q(s, a) and V(s) of whole utterances are learned from replay by temporal differences
against a slow target, so play of any policy teaches them. Low level: the policy's tokens follow a
policy gradient whose advantage is their utterance's Q(s, a) - V(s). Our choices: the critic is a
copy of the language model (its own adapter under LoRA) with two linear heads, Q read at the last
token of the action and V at the last token of the observation; replay draws whole episodes, for one
pass reads all their turns, with fresh actions as shadows behind their states
(models/packed_attention.py); the actor learns from this step's fresh episodes instead of fresh
actions in replayed states; its ratio to the weights before the update is clipped, which with one
optimizer step is REINFORCE. Left out: the token-level baseline and, from the authors' code, the
second critic whose minimum with the first is taken.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from agentrl_cli.algos import value_spans
from agentrl_cli.algos.base import Algorithm, Context, Phase, Texts
from agentrl_cli.algos.left_out import left_out_metrics, without_left_out
from agentrl_cli.algos.losses import Loss, clipped_ratio, standardise
from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.algos.value_spans import by_segment, turn_spans, with_fresh_actions
from agentrl_cli.core.errors import UserError, require_at_least, require_fraction
from agentrl_cli.core.types import Episode, Sample, derive_seed
from agentrl_cli.models.packable import enable_packing
from agentrl_cli.models.policy import Batch, Outputs, causal_lm
from agentrl_cli.models.reader import add_logprobs, logprobs_and_values
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.rollout.play import first_turn
from agentrl_cli.rollout.replay_buffer import ReplayBuffer

Q, V = 0, 1  # the critic's outputs
STREAMS = ("q_at", "q_target", "v_at", "v_target")


@dataclass(frozen=True)
class TargetValues:
    """The slow target's V'(s) and Q'(s, a') of a turn, and V' where the turn's segment ends."""

    v: float
    q: float
    v_at_end: float


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

    uses_ratio = True

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
        optimizer, head = self.critic_optimizer, "action_value"
        return {
            "policy": ModelSpec(kind="trained", generates=True, optimizer=self.optimizer),
            "critic": ModelSpec(kind="trained", generates=False, optimizer=optimizer, head=head),
            "target": ModelSpec(kind="ema", generates=False, head=head, follows="critic"),
        }

    def texts(self, turns: int, max_tokens: int) -> dict[str, Texts]:
        """A fresh action for every turn that the critic reads."""
        count = self.critic_updates * self.episodes_per_update * turns
        return {"fresh actions": Texts(count, max_tokens)} if self.action == "fresh" else {}

    def bind(self, context: Context) -> None:
        """Receive the given objects. Raises UserError where the target cannot read fresh actions
        packed with the stored ones."""
        super().bind(context)
        if self.action == "fresh":
            target = causal_lm(context.models.module("target"))
            try:
                enable_packing(target, [context.chat.closing], "visible_first", "full")
            except UserError as error:
                raise UserError(f"algo.action=fresh: {error}; or set algo.action=stored") from error

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """The critic from replay, then its slow target; then the actor, once the critic is warm."""
        for i in range(self.critic_updates):
            drawn = buffer.sample_episodes(self.episodes_per_update, self._seed(i, "replay"))
            samples = self.transitions(without_left_out(drawn), i)
            yield Phase(
                "critic", samples, td_loss, model="critic", units=trained_turns,
                metrics=left_out_metrics("archer", episodes),
            )  # fmt: skip
            self.context.models.ema_update("target", "critic", self.ema_decay)
        played = without_left_out(episodes)
        self.estimate_advantages(played)
        if self.context.step >= self.critic_warmup:
            yield self._actor_phase(played)

    def transitions(self, episodes: list[Episode], update: int) -> list[Sample]:
        """One sample for each unbroken segment of an episode, with the targets of every turn:
        Q(s, a) <- r + discount V'(s') and V(s) <- Q'(s, a') with a' ~ policy(s). The primed
        functions are the slow target's; V'(s') is 0 where an episode is done."""
        spans_of = [turn_spans(episode, self._critic_samples(episode)) for episode in episodes]
        segments = by_segment([span for spans in spans_of for span in spans])
        target_values = iter(self._target_values(segments, self._fresh_actions(episodes, update)))
        for episode, spans in zip(episodes, spans_of, strict=True):
            values = [next(target_values) for _ in spans]
            last_v = 0.0 if episode.stop == "done" else values[-1].v_at_end
            next_v = [*(value.v for value in values[1:]), last_v]
            for span, value, v in zip(spans, values, next_v, strict=True):
                write_targets(span, q_target=span.reward + self.discount * v, v_target=value.q)
        return [spans[0].sample for spans in segments]

    def _critic_samples(self, episode: Episode) -> list[Sample]:
        """The episode's samples, untrained, the last with the state in which it was cut off."""
        samples = episode_samples(episode)
        chat, target = self.context.chat, self.context.models.module("target")
        samples[-1].ids += value_spans.truncated_state_ids(episode, chat, target)
        for sample in samples:
            sample.mask = [0] * len(sample.ids)
            sample.streams = {name: [0.0] * len(sample.ids) for name in STREAMS}
        return samples

    def _fresh_actions(self, episodes: list[Episode], update: int) -> list[list[int]] | None:
        """a' ~ policy(s) for the state of each turn; None where the stored actions stand for it."""
        if self.action == "stored":
            return None
        prompts = [e.state_ids(k) for e in episodes for k in range(len(e.turns))]
        seeds = [self._seed(update, "act", i) for i in range(len(prompts))]
        completions = self.context.generator.generate(prompts, seeds, self.context.sampling)
        delimiter, chat = self.context.turn_delimiter, self.context.chat
        return [first_turn(row[0].ids, delimiter, chat) for row in completions]

    def _target_values(
        self, segments: list[list[value_spans.StepSpan]], fresh_actions: list[list[int]] | None
    ) -> list[TargetValues]:
        """The slow target's values of every turn, by one pass over all segments."""
        if fresh_actions is not None:
            actions = iter(fresh_actions)
            segments = [with_fresh_actions(row, [next(actions) for _ in row]) for row in segments]
        tables = self._q_and_v("target", [spans[0].sample for spans in segments])
        values = []
        for spans, table in zip(segments, tables, strict=True):
            at_end = float(table[-1, V])
            for span in spans:
                v, q = float(table[span.state_at, V]), float(table[span.action_at, Q])
                values.append(TargetValues(v, q, at_end))
        return values

    def _q_and_v(self, model: str, samples: list[Sample]) -> list[Tensor]:
        """What `model` reads at every token of each sample, [tokens, 2]: columns Q and V."""
        models = self.context.models
        rows = logprobs_and_values(models.reader(model), samples)
        return [table for _, table in rows]

    def estimate_advantages(self, episodes: list[Episode]) -> None:
        """Write V(s) as `value` and Q(s, a) - V(s) as `advantage` into every turn's info."""
        samples_of = [episode_samples(episode) for episode in episodes]
        tables = self._q_and_v("critic", [sample for row in samples_of for sample in row])
        spans_of = map(turn_spans, episodes, samples_of)
        segments = by_segment([span for spans in spans_of for span in spans])
        for spans, table in zip(segments, tables, strict=True):
            for span in spans:
                value = float(table[span.state_at, V])
                advantage = float(table[span.action_at, Q]) - value
                span.turn.info |= {"value": value, "advantage": advantage}

    def _actor_phase(self, episodes: list[Episode]) -> Phase:
        """Every token of a turn carries its advantage; old log-probs are the trainer's own."""
        turns = [turn for episode in episodes for turn in episode.turns]
        advantages = [turn.info["advantage"] for turn in turns]
        std = statistics.pstdev(advantages) if advantages else 0.0
        if self.normalise_advantages:
            advantages = standardise(advantages)
        of_turn = dict(zip(map(id, turns), advantages, strict=True))
        samples = [
            sample
            for episode in episodes
            for sample in episode_samples(episode, lambda i, turn: {"advantage": of_turn[id(turn)]})
        ]
        add_logprobs(self.context.models.reader("policy"), samples, "old_logprob")
        return Phase(
            "policy", samples, self.loss, epochs=self.actor_epochs,
            tokens_per_step=self.tokens_per_step, metrics={"policy/advantage_std": std},
        )  # fmt: skip

    def loss(self, outputs: Outputs, batch: Batch) -> Loss:
        """The actor's: the clipped surrogate per token."""
        return clipped_ratio(outputs, batch, self.clip)

    def annotate(self, episodes: list[Episode]) -> None:
        """Write `value` and `advantage` into every turn."""
        self.estimate_advantages(without_left_out(episodes))

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        """Do the values foresee what was still earned; every turn's is noted in it."""
        self.annotate(episodes)
        return value_spans.value_metrics(without_left_out(episodes), self.discount, lambda turn: 1)

    def _seed(self, *parts: object) -> int:
        return derive_seed(self.context.seed, "archer", self.context.step, *parts)


def write_targets(span: value_spans.StepSpan, *, q_target: float, v_target: float) -> None:
    """Write what Q and V are to become into the streams, where the two are read."""
    streams = span.sample.streams
    streams["q_at"][span.action_at], streams["q_target"][span.action_at] = 1.0, q_target
    streams["v_at"][span.state_at], streams["v_target"][span.state_at] = 1.0, v_target


def td_loss(outputs: Outputs, batch: Batch) -> Loss:
    """The critic's: squared errors of Q and of V against their targets, summed over turns (Zhou et
    al. 2024). Streams: `q_at` and `v_at`, 1 where they are read, `q_target` and `v_target`."""
    assert outputs.values is not None
    q, v = outputs.values.unbind(-1)  # [batch, tokens] each
    streams = batch.streams
    q_at, v_at = streams["q_at"], streams["v_at"]
    q_loss = ((q - streams["q_target"]) ** 2 * q_at).sum()
    v_loss = ((v - streams["v_target"]) ** 2 * v_at).sum()
    metrics = {
        "q_loss": q_loss, "v_loss": v_loss, "q": (q * q_at).sum(), "v": (v * v_at).sum(),
    }  # fmt: skip
    return q_loss + v_loss, {name: number.detach() for name, number in metrics.items()}


def trained_turns(sample: Sample) -> float:
    """The unit of the critic's loss: one per turn."""
    return sum(sample.streams["q_at"])
