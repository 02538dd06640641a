"""ArCHer: hierarchical actor-critic over turns and tokens (Zhou et al. 2024, arXiv 2402.19446).

High level: Q(s, a) and V(s) of whole turns learn off-policy from replay, with a slow target network
(section 3.2):

    Q(s, a) <- r + gamma V'(s')        V(s) <- Q'(s, a'),  a' ~ pi(s)

Low level: the tokens of each turn follow a policy gradient with the advantage A = Q(s, a) - V(s).

`algo=archer` follows the authors' code (github.com/YifeiZhou02/ArCHer, configuration
archer_20q.yaml): two critics, each with targets of its own, A = min(Q1, Q2) - min(V1, V2), and an
actor that trains by REINFORCE on fresh actions in replayed states. `algo=archer_small` has one
critic with linear heads, and its actor trains on this step's episodes with a clipped ratio, which
is REINFORCE if there is one optimizer step.

Both differ from that code. The critic is a copy of the language model (an adapter with LoRA), not
an encoder. V is read at the last token of the state. Q is read at the last token of the action,
which sees the state; there, state and action are encoded apart. Replay draws whole episodes for the
critic, because one forward pass reads all of their turns, with each fresh action a' packed as a
branch after its state (models/packed_attention.py). A truncated episode bootstraps. The token-level
baseline of the paper is left out, as in that code.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from agentrl_cli.algos.base import Algorithm, Context, Phase, Texts
from agentrl_cli.algos.critics import (
    turn_spans,
    value_metrics,
    value_sample,
    with_fresh_actions,
)
from agentrl_cli.algos.losses import Loss, clipped_ratio, nll, standardise
from agentrl_cli.algos.samples import (
    TurnRef,
    completion_sample,
    episode_samples,
    skip_reason,
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

Q, V = slice(0, None, 2), slice(1, None, 2)  # columns of the critic's output, one per critic
TARGETS = (("q_target", "v_target"), ("q2_target", "v2_target"))  # fields of each critic


@dataclass(kw_only=True)
class ArCHer(ArCHerConfig, Algorithm):
    """Hierarchical actor-critic over turns and tokens."""

    uses_ratio = True

    @property
    def replay_capacity(self) -> int:
        return self.buffer_size

    @property
    def off_policy(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.actor_states > 0

    def models(self) -> dict[str, ModelSpec]:
        """Return the actor, the critic, and the critic's target network."""
        critic = ModelSpec(
            kind="trained", generates=False, optimizer=self.critic_optimizer,
            head="action_value" if self.num_critics == 1 else "double_action_value",
            head_layers=self.head_layers, begins_as="policy",
        )  # fmt: skip
        return {
            "policy": ModelSpec(kind="trained", generates=True, optimizer=self.optimizer),
            "critic": critic,
            "target": replace(critic, kind="ema", optimizer=None, follows="critic", begins_as=None),
        }

    def texts(self, turns: int, max_tokens: int) -> dict[str, Texts]:
        """Return the number of fresh actions: one per turn that the critic reads, and one per
        state that the actor trains on."""
        count = self.actor_epochs * self.actor_states
        if self.action == "fresh":
            count += self.critic_updates * self.episodes_per_update * turns
        return {"fresh actions": Texts(count, max_tokens)} if count else {}

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
        if self.context.step < self.critic_warmup:
            return
        if not self.actor_states:
            yield self._actor_phase(played)
            return
        for epoch in range(self.actor_epochs):
            yield self._replay_actor_phase(buffer, epoch)

    def transitions(self, episodes: list[Episode], update: int) -> list[Sample]:
        """Return one sample per episode, with the targets of every turn. V'(s') is 0 if the episode
        is done."""
        spans_of = [turn_spans(episode, self._critic_sample(episode)) for episode in episodes]
        packed = spans_of
        if self.action == "fresh":
            states = [e.state_ids(k) for e in episodes for k in range(len(e.turns))]
            actions = iter(self._fresh_actions(states, update, "act"))
            packed = [with_fresh_actions(row, [next(actions) for _ in row]) for row in spans_of]
        tables = self._q_and_v("target", [row[0].sample for row in packed])
        reads = ((table, span) for row, table in zip(packed, tables, strict=True) for span in row)
        for episode, spans in zip(episodes, spans_of, strict=True):
            found = [next(reads) for _ in spans]  # the table and the span of each turn
            next_v = [table[read.state_at, V] for table, read in found[1:]]
            last_v = found[-1][0][-1, V]
            next_v.append(torch.zeros_like(last_v) if episode.stop == "done" else last_v)
            for span, (table, read), v in zip(spans, found, next_v, strict=True):
                per_token = span.sample.per_token
                per_token["q_at"][span.action_at] = 1.0
                per_token["v_at"][span.state_at] = 1.0
                q = table[read.action_at, Q]
                for (q_target, v_target), own_q, own_v in zip(
                    TARGETS, q.tolist(), v.tolist(), strict=False
                ):
                    per_token[q_target][span.action_at] = span.reward + self.gamma * own_v
                    per_token[v_target][span.state_at] = own_q
        return [spans[0].sample for spans in spans_of]

    def _critic_sample(self, episode: Episode) -> Sample:
        """Return the episode's `value_sample` without trained tokens."""
        target = self.context.models.module("target")
        sample = value_sample(episode, self.context.chat, target)
        fields = ("q_at", "v_at", *chain(*TARGETS[: self.num_critics]))
        sample.mask = [0] * len(sample.ids)
        sample.per_token = {name: [0.0] * len(sample.ids) for name in fields}
        return sample

    def _fresh_actions(self, states: list[list[int]], *seed: object) -> list[list[int]]:
        """Return an action of the policy in each state."""
        seeds = [self._seed(*seed, i) for i in range(len(states))]
        completions = self.context.generator.generate(states, seeds, self.context.sampling)
        delimiter, chat = self.context.turn_delimiter, self.context.chat
        return [first_turn(row[0].ids, delimiter, chat) for row in completions]

    def _q_and_v(self, model: str, samples: list[Sample]) -> list[Tensor]:
        """Return Q and V of each critic at every token of each sample, [tokens, 2 * critics]."""
        models = self.context.models
        return [table for _, table in logprobs_and_values(models.forward(model), samples)]

    def estimate_advantages(self, episodes: list[Episode]) -> None:
        """Write V(s) as `value` and Q(s, a) - V(s) as `advantage` into every turn's info. Q and V
        are the minimum of the critics."""
        samples = [sample for episode in episodes for sample in episode_samples(episode)]
        tables = self._q_and_v("critic", samples)
        for episode, sample, table in zip(episodes, samples, tables, strict=True):
            for span in turn_spans(episode, sample):
                value = float(table[span.state_at, V].min())
                advantage = float(table[span.action_at, Q].min()) - value
                span.turn.info |= {"value": value, "advantage": advantage}

    def _replay_actor_phase(self, buffer: ReplayBuffer, epoch: int) -> Phase:
        """Return the phase that trains on fresh actions in replayed states: REINFORCE, whose loss
        is the mean over states of -A times the log-prob of the action."""
        keys = buffer.sample_turns(self.actor_states, self._seed(epoch, "states"), 0.0)
        turns = [TurnRef(buffer.episode(key), key.turn) for key in keys]
        states = [turn.state_ids for turn in turns if skip_reason(turn.episode) is None]
        actions = self._fresh_actions(states, epoch, "actor")
        samples = list(map(completion_sample, states, actions))
        advantages = [
            float(table[-1, Q].min() - table[len(state) - 1, V].min())
            for state, table in zip(states, self._q_and_v("critic", samples), strict=True)
        ]
        given, metrics = self._given_advantages(advantages)
        for sample, state, action, advantage in zip(samples, states, actions, given, strict=True):
            sample.per_token["weight"] = [0.0] * len(state) + [advantage] * len(action)
        return Phase(
            "policy", samples, nll, minibatch_tokens=self.minibatch_tokens,
            units=lambda sample: 1.0, metrics=metrics,
        )  # fmt: skip

    def _given_advantages(self, advantages: list[float]) -> tuple[list[float], dict[str, float]]:
        """Return the advantages that the actor trains on, and their metric."""
        std = statistics.pstdev(advantages) if advantages else 0.0
        if self.normalise_advantages:  # Q and V start at 0 and rise at different speeds
            advantages = standardise(advantages)
        return advantages, {"policy/advantage_std": std}

    def _actor_phase(self, episodes: list[Episode]) -> Phase:
        """Return the phase in which every token of a turn has the turn's advantage."""
        turns = [turn for episode in episodes for turn in episode.turns]
        given, metrics = self._given_advantages([turn.info["advantage"] for turn in turns])
        of_turn = dict(zip(map(id, turns), given, strict=True))
        samples = [
            sample
            for episode in episodes
            for sample in episode_samples(episode, lambda i, turn: {"advantage": of_turn[id(turn)]})
        ]
        add_logprobs(self.context.models.forward("policy"), samples, "old_logprob")
        return Phase(
            "policy", samples, partial(clipped_ratio, clip_eps=self.clip_eps),
            epochs=self.actor_epochs, minibatch_tokens=self.minibatch_tokens,
            metrics=metrics,
        )  # fmt: skip

    def annotate(self, episodes: list[Episode]) -> None:
        self.estimate_advantages(without_skipped(episodes))

    def action_values(self, turns: list[TurnRef]) -> list[float]:
        """Return Q(s, a) of the turns, the minimum of the critics."""
        self.estimate_advantages([turn.episode for turn in turns])
        infos = [turn.episode.turns[turn.turn].info for turn in turns]
        return [info["value"] + info["advantage"] for info in infos]

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        self.annotate(episodes)
        return value_metrics(without_skipped(episodes), self.gamma, lambda turn: 1)

    def _seed(self, *parts: object) -> int:
        return derive_seed(self.context.seed, "archer", self.context.step, *parts)


def td_loss(outputs: Outputs, batch: Batch) -> Loss:
    """Return the critic's loss: squared errors of Q and V against their targets, summed over turns
    and critics. Fields: `q_at` and `v_at` (1 at the tokens that are read), `q_target`, `v_target`,
    and `q2_target`, `v2_target` of a second critic. Metrics are means over critics."""
    assert outputs.values is not None
    q, v = outputs.values[..., Q], outputs.values[..., V]  # [batch, tokens, critics]
    per_token, critics = batch.per_token, q.shape[-1]
    q_target, v_target = (
        torch.stack([per_token[name] for name in names], -1)
        for names in zip(*TARGETS[:critics], strict=True)
    )
    q_at, v_at = per_token["q_at"][..., None], per_token["v_at"][..., None]
    q_loss = ((q - q_target) ** 2 * q_at).sum()
    v_loss = ((v - v_target) ** 2 * v_at).sum()
    metrics = {
        "q_loss": q_loss, "v_loss": v_loss, "q": (q * q_at).sum(), "v": (v * v_at).sum(),
    }  # fmt: skip
    return q_loss + v_loss, {name: n.detach() / critics for name, n in metrics.items()}


def trained_turns(sample: Sample) -> float:
    """Return the unit of the critic's loss: the number of turns."""
    return sum(sample.per_token["q_at"])
