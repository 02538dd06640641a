"""ArCHer: hierarchical actor-critic over turns and tokens (Zhou et al. 2024, arXiv 2402.19446).

High level: Q(s, a) and V(s) of whole turns learn off-policy from replay, with a slow target network
(section 3.2):

    Q(s, a) <- r + gamma V'(s')        V(s) <- Q'(s, a'),  a' ~ pi(s)

Low level: the tokens of each turn follow a policy gradient with the advantage A = Q(s, a) - V(s).

Our choices: the critic is a copy of the language model (an adapter with LoRA) with two linear
heads; Q is read at the last token of the action, V at the last token of the state. Replay draws
whole episodes, because one forward pass reads all of their turns, with each fresh action a' packed
as a branch after its state (models/packed_attention.py). The actor trains on this step's episodes
with a clipped ratio, which is REINFORCE if there is one optimizer step. Left out: the token-level
baseline, and the second critic of the authors' code.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from agentrl_cli.algos.base import Algorithm, Context, Phase, Texts
from agentrl_cli.algos.critics import (
    by_segment,
    turn_spans,
    value_metrics,
    value_samples,
    with_fresh_actions,
)
from agentrl_cli.algos.losses import Loss, clipped_ratio, standardise
from agentrl_cli.algos.samples import (
    TurnRef,
    episode_samples,
    skipped_metrics,
    without_skipped,
)
from agentrl_cli.algos.settings import ArCHerConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Sample, derive_seed
from agentrl_cli.models.forward import Batch, Outputs, add_logprobs, causal_lm, logprobs_and_values
from agentrl_cli.models.packed_attention import enable_packing
from agentrl_cli.models.specs import ModelSpec
from agentrl_cli.rollout.play import first_turn
from agentrl_cli.rollout.replay_buffer import ReplayBuffer

Q, V = 0, 1  # columns of the critic's output
FIELDS = ("q_at", "q_target", "v_at", "v_target")


@dataclass(kw_only=True)
class ArCHer(ArCHerConfig, Algorithm):
    """Hierarchical actor-critic over turns and tokens."""

    uses_ratio = True

    @property
    def replay_capacity(self) -> int:
        return self.buffer_size

    def models(self) -> dict[str, ModelSpec]:
        """Return the actor, the critic, and the critic's target network."""
        optimizer, head = self.critic_optimizer, "action_value"
        return {
            "policy": ModelSpec(kind="trained", generates=True, optimizer=self.optimizer),
            "critic": ModelSpec(kind="trained", generates=False, optimizer=optimizer, head=head),
            "target": ModelSpec(kind="ema", generates=False, head=head, follows="critic"),
        }

    def texts(self, turns: int, max_tokens: int) -> dict[str, Texts]:
        """Return the number of fresh actions: one per turn that the critic reads."""
        count = self.critic_updates * self.episodes_per_update * turns
        return {"fresh actions": Texts(count, max_tokens)} if self.action == "fresh" else {}

    def bind(self, context: Context) -> None:
        """Store the context. Raises UserError if fresh actions cannot be packed for this model."""
        super().bind(context)
        if self.action == "fresh":
            target = causal_lm(context.models.module("target"))
            try:
                enable_packing(target, [context.chat.end_of_turn], "visible_first", "full")
            except UserError as error:
                line = f"algo.action=fresh: {error}; or set algo.action=stored"
                raise UserError(line, code=error.code) from error

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Train the critic from replay and move its target; then train the actor, after warm-up."""
        for i in range(self.critic_updates):
            drawn = buffer.sample_episodes(self.episodes_per_update, self._seed(i, "replay"))
            samples = self.transitions(without_skipped(drawn), i)
            yield Phase(
                "critic", samples, td_loss, model="critic", units=trained_turns,
                metrics=skipped_metrics("archer", episodes),
            )  # fmt: skip
            self.context.models.ema_update("target", "critic", self.ema_decay)
        played = without_skipped(episodes)
        self.estimate_advantages(played)
        if self.context.step >= self.critic_warmup:
            yield self._actor_phase(played)

    def transitions(self, episodes: list[Episode], update: int) -> list[Sample]:
        """Return one sample per unbroken segment, with the targets of every turn. V'(s') is 0 if
        the episode is done."""
        spans_of = [turn_spans(episode, self._critic_samples(episode)) for episode in episodes]
        segments = by_segment([span for spans in spans_of for span in spans])
        packed = segments
        if self.action == "fresh":
            actions = iter(self._fresh_actions(episodes, update))
            packed = [with_fresh_actions(row, [next(actions) for _ in row]) for row in segments]
        tables = self._q_and_v("target", [row[0].sample for row in packed])
        reads = ((table, span) for row, table in zip(packed, tables, strict=True) for span in row)
        for episode, spans in zip(episodes, spans_of, strict=True):
            found = [next(reads) for _ in spans]  # the table and the span of each turn
            last_v = 0.0 if episode.stop == "done" else float(found[-1][0][-1, V])
            next_v = [*(float(table[read.state_at, V]) for table, read in found[1:]), last_v]
            for span, (table, read), v in zip(spans, found, next_v, strict=True):
                per_token = span.sample.per_token
                per_token["q_at"][span.action_at] = 1.0
                per_token["q_target"][span.action_at] = span.reward + self.gamma * v
                per_token["v_at"][span.state_at] = 1.0
                per_token["v_target"][span.state_at] = float(table[read.action_at, Q])
        return [spans[0].sample for spans in segments]

    def _critic_samples(self, episode: Episode) -> list[Sample]:
        """Return the episode's `value_samples` without trained tokens."""
        target = self.context.models.module("target")
        samples = value_samples(episode, self.context.chat, target)
        for sample in samples:
            sample.mask = [0] * len(sample.ids)
            sample.per_token = {name: [0.0] * len(sample.ids) for name in FIELDS}
        return samples

    def _fresh_actions(self, episodes: list[Episode], update: int) -> list[list[int]]:
        prompts = [e.state_ids(k) for e in episodes for k in range(len(e.turns))]
        seeds = [self._seed(update, "act", i) for i in range(len(prompts))]
        completions = self.context.generator.generate(prompts, seeds, self.context.sampling)
        delimiter, chat = self.context.turn_delimiter, self.context.chat
        return [first_turn(row[0].ids, delimiter, chat) for row in completions]

    def _q_and_v(self, model: str, samples: list[Sample]) -> list[Tensor]:
        """Return Q and V at every token of each sample, [tokens, 2]."""
        models = self.context.models
        return [table for _, table in logprobs_and_values(models.forward(model), samples)]

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
        """Return the phase in which every token of a turn has the turn's advantage."""
        turns = [turn for episode in episodes for turn in episode.turns]
        advantages = [turn.info["advantage"] for turn in turns]
        std = statistics.pstdev(advantages) if advantages else 0.0
        if self.normalise_advantages:  # Q and V start at 0 and rise at different speeds
            advantages = standardise(advantages)
        of_turn = dict(zip(map(id, turns), advantages, strict=True))
        samples = [
            sample
            for episode in episodes
            for sample in episode_samples(episode, lambda i, turn: {"advantage": of_turn[id(turn)]})
        ]
        add_logprobs(self.context.models.forward("policy"), samples, "old_logprob")
        return Phase(
            "policy", samples, partial(clipped_ratio, clip_eps=self.clip_eps),
            epochs=self.actor_epochs, minibatch_tokens=self.minibatch_tokens,
            metrics={"policy/advantage_std": std},
        )  # fmt: skip

    def annotate(self, episodes: list[Episode]) -> None:
        self.estimate_advantages(without_skipped(episodes))

    def action_values(self, turns: list[TurnRef]) -> list[float]:
        """Return Q(s, a) of the turns."""
        self.estimate_advantages([turn.episode for turn in turns])
        infos = [turn.episode.turns[turn.turn].info for turn in turns]
        return [info["value"] + info["advantage"] for info in infos]

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        self.annotate(episodes)
        return value_metrics(without_skipped(episodes), self.gamma, lambda turn: 1)

    def _seed(self, *parts: object) -> int:
        return derive_seed(self.context.seed, "archer", self.context.step, *parts)


def td_loss(outputs: Outputs, batch: Batch) -> Loss:
    """Return the critic's loss: squared errors of Q and V against their targets, summed over turns.
    Fields: `q_at` and `v_at` (1 at the tokens that are read), `q_target`, `v_target`."""
    assert outputs.values is not None
    q, v = outputs.values.unbind(-1)  # [batch, tokens] each
    per_token = batch.per_token
    q_at, v_at = per_token["q_at"], per_token["v_at"]
    q_loss = ((q - per_token["q_target"]) ** 2 * q_at).sum()
    v_loss = ((v - per_token["v_target"]) ** 2 * v_at).sum()
    metrics = {
        "q_loss": q_loss, "v_loss": v_loss, "q": (q * q_at).sum(), "v": (v * v_at).sum(),
    }  # fmt: skip
    return q_loss + v_loss, {name: number.detach() for name, number in metrics.items()}


def trained_turns(sample: Sample) -> float:
    """Return the unit of the critic's loss: the number of turns."""
    return sum(sample.per_token["q_at"])
