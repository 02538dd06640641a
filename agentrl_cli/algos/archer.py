"""ArCHer: an actor-critic with a hierarchy (Zhou et al. 2024, arXiv 2402.19446).

High level: Q(s, a) and V(s) of whole utterances are learned from replay by temporal differences
against a slow target, so play of any policy teaches them. Low level: the policy's tokens follow a
policy gradient whose advantage is their utterance's Q(s, a) - V(s). Our choices: the critic is a
copy of the language model (its own adapter under LoRA) with two linear heads, Q read at the last
token of the action and V at the last token of the observation; the actor learns from this step's
fresh episodes instead of fresh actions in replayed states; its ratio to the weights that played is
clipped, which with one optimizer step is REINFORCE. Left out: the token-level baseline and, from
the authors' code, the second critic whose minimum with the first is taken.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from agentrl_cli.algos.base import Algorithm, ModelSpec, OptimizerSpec, Phase, one
from agentrl_cli.algos.roles import Place
from agentrl_cli.algos.samples import episode_samples, turn_advantage
from agentrl_cli.algos.values import cut_off, measured, turn_spans, whole
from agentrl_cli.buffer import ReplayBuffer
from agentrl_cli.errors import at_least, share
from agentrl_cli.losses import clipped_ratio
from agentrl_cli.models.policy import Batch, Outputs, assess, note_logprobs
from agentrl_cli.types import Episode, Sample, derive_seed

Q, V = 0, 1  # the critic's outputs


@dataclass(kw_only=True)
class ArCHer(Algorithm):
    """`action` says whether V(s) learns from a fresh action of the policy (the paper) or from the
    stored one; `ema` is the share that the target keeps."""

    turns_per_update: int
    critic_updates: int
    critic_warmup: int
    replay: int
    action: Literal["fresh", "stored"]
    discount: float
    ema: float
    clip: float
    actor_epochs: int
    tokens_per_step: int
    optimizer: OptimizerSpec
    critic_optimizer: OptimizerSpec

    def __post_init__(self) -> None:
        at_least(1, turns_per_update=self.turns_per_update, critic_updates=self.critic_updates)
        at_least(1, replay=self.replay, actor_epochs=self.actor_epochs)
        at_least(0, critic_warmup=self.critic_warmup, clip=self.clip)
        at_least(0, tokens_per_step=self.tokens_per_step)
        share(discount=self.discount, ema=self.ema)

    @property
    def capacity(self) -> int:
        """Episodes kept for replay."""
        return self.replay

    def models(self) -> dict[str, ModelSpec]:
        """The actor, the critic, and the critic's slow target."""
        learns, head = self.critic_optimizer, "action_value"
        return {
            "policy": ModelSpec(kind="trained", generates=True, optimizer=self.optimizer),
            "critic": ModelSpec(kind="trained", generates=False, optimizer=learns, head=head),
            "target": ModelSpec(kind="ema", generates=False, head=head, follows="critic"),
        }

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """The critic from replay, its target behind it; then the actor, once the critic is warm."""
        for i in range(self.critic_updates):
            keys = buffer.sample_turns(self.turns_per_update, self._seed(i, "replay"), 0.0)
            places = [Place(buffer.episode(key), key.turn) for key in keys]
            yield Phase(
                "critic", self.transitions(places, i), td_loss, model="critic", count=one,
                tokens_per_step=self.tokens_per_step,
            )  # fmt: skip
            self.context.models.ema_update("target", "critic", self.ema)
        self.credit(whole(episodes))
        if self.context.step >= self.critic_warmup:
            yield self._actor(whole(episodes))

    # the critic

    def transitions(self, places: list[Place], update: int) -> list[Sample]:
        """Q(s, a) is to be r + discount V'(s'), and V(s) is to be Q'(s, a') with a' ~ policy(s);
        the primed ones are the target's."""
        fresh = self.action == "fresh"
        actions = self._act(places, update) if fresh else [place.action for place in places]
        tried = [place.state + action for place, action in zip(places, actions, strict=True)]
        worth = [float(pairs[-1, Q]) for pairs in self._read("target", tried)]
        rewards = [place.episode.turns[place.turn].reward for place in places]
        later = self._values_after(places)
        returns = [r + self.discount * v for r, v in zip(rewards, later, strict=True)]
        return [transition(*row) for row in zip(places, returns, worth, strict=True)]

    def _values_after(self, places: list[Place]) -> list[float]:
        """V'(s') of each place's next state; 0 where the episode was done."""
        going = [i for i, p in enumerate(places) if not (p.last and p.episode.stop == "done")]
        states = [self._next_state(places[i]) for i in going]
        read_off = [float(pairs[-1, V]) for pairs in self._read("target", states)]
        found = dict(zip(going, read_off, strict=True))
        return [found.get(i, 0.0) for i in range(len(places))]

    def _next_state(self, place: Place) -> list[int]:
        if not place.last:
            return place.episode.state_ids(place.turn + 1)
        module = self.context.models.module("target")
        return place.state + place.action + cut_off(place.episode, self.context.chat, module)

    def _act(self, places: list[Place], update: int) -> list[list[int]]:
        """A fresh action of the policy at each place."""
        seeds = [self._seed(update, "act", i) for i in range(len(places))]
        prompts, sampling = [place.state for place in places], self.context.sampling
        return [row[0].ids for row in self.context.generator.generate(prompts, seeds, sampling)]

    def _read(self, model: str, rows: list[list[int]]) -> list[Tensor]:
        """The pairs (Q, V) [tokens, 2] of each row of ids."""
        models, samples = self.context.models, [Sample(ids, [0] * len(ids)) for ids in rows]
        return [pairs for _, pairs in assess(models.module(model), models.head(model), samples)]

    # the actor

    def _actor(self, episodes: list[Episode]) -> Phase:
        """Every token of a turn carries its advantage; old log-probs are the trainer's own."""
        samples = [s for episode in episodes for s in episode_samples(episode, turn_advantage)]
        note_logprobs(self.context.models.module("policy"), samples, "old_logprob")
        advantages = [turn.info["advantage"] for episode in episodes for turn in episode.turns]
        spread = statistics.pstdev(advantages) if advantages else 0.0
        return Phase(
            "policy", samples, self.loss, epochs=self.actor_epochs,
            tokens_per_step=self.tokens_per_step, metrics={"policy/advantage_spread": spread},
        )  # fmt: skip

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The clipped surrogate per token."""
        return clipped_ratio(outputs, batch, self.clip)

    def credit(self, episodes: list[Episode]) -> None:
        """Tell every turn V(s) as its value and Q(s, a) - V(s) as its advantage."""
        segments = [episode_samples(episode, lambda i, turn: {}) for episode in episodes]
        samples = [sample for row in segments for sample in row]
        rows = self._read("critic", [sample.ids for sample in samples])
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
        self.credit(whole(episodes))

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        """Do the values foresee what was still earned; every turn's is noted in it."""
        self.annotate(episodes)
        return measured(whole(episodes), self.discount, lambda turn: 1)

    def _seed(self, *parts: object) -> int:
        return derive_seed(self.context.seed, "archer", self.context.step, *parts)


def transition(place: Place, q_target: float, v_target: float) -> Sample:
    """State and action; the targets stand where V and Q are read."""
    size, end = len(place.state), len(place.state) + len(place.action)
    streams = {name: [0.0] * end for name in ("q_at", "q_target", "v_at", "v_target")}
    streams["q_at"][-1], streams["q_target"][-1] = 1.0, q_target
    streams["v_at"][size - 1], streams["v_target"][size - 1] = 1.0, v_target
    return Sample(place.state + place.action, [0] * end, streams)


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
