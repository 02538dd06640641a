"""Self-AC: self-actor-critic, one transformer that acts and judges its own states.

After every state of an episode a critic prompt puts the model in the critic's role; a linear head
reads V at the prompt's last token. The prompts are shadows that nothing later sees (models/
packed_attention.py), so one forward pass trains the critic on all states of an episode and the
actor on all its turns. Known to us from slides only, without a paper; choices where they are
silent: the advantage is GAE over turns (arXiv 1506.02438), an episode that was cut off bootstraps
from its last value, a turn's ratio may be its geometric mean (arXiv 2507.18071). The slides name
three agents: ReAct, whose turns are those of the world; CoT (`thought_tokens`), whose turns are the
thoughts of an answer; ToT, which searches with the trained critic (generators/tree_search.py) and
trains nothing.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from agentrl_cli.algos.base import Algorithm, Context, Phase
from agentrl_cli.algos.left_out import left_out_metrics
from agentrl_cli.algos.losses import clipped_turns, sum_by_turn, td_targets, turn_advantages
from agentrl_cli.algos.self_ac import packing
from agentrl_cli.algos.self_ac.packing import PackedEpisode
from agentrl_cli.algos.self_ac.thoughts import merge_info, split_episode
from agentrl_cli.algos.value_spans import truncated_state_ids, value_metrics
from agentrl_cli.core.errors import UserError, require_at_least, require_fraction
from agentrl_cli.core.types import Episode
from agentrl_cli.models.packable import enable_packing
from agentrl_cli.models.packed_attention import CriticGrad, Layout
from agentrl_cli.models.policy import Batch, Outputs, causal_lm, max_positions
from agentrl_cli.models.reader import logprobs_and_values
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer

PLACE = re.compile(r"\{(\w+)\}")  # what a critic prompt is to be given


@dataclass(frozen=True, kw_only=True)
class Advanced:
    """`normalise_advantages` takes from every advantage their mean over the update's turns, as it
    was before the update, and divides by their deviation: values that are all too high or too low,
    as in the first updates, then discourage or reinforce nothing as a whole. `values` says which V
    targets and advantages rest on: each pass's own, or the one read before the update.
    `critic_grad=detach_prefix` keeps the critic out of the actor's features."""

    normalise_advantages: bool
    values: Literal["recomputed", "frozen"]
    critic_grad: CriticGrad


@dataclass(frozen=True)
class AdvantageScale:
    """Mean and standard deviation by which an update normalises its advantages."""

    mean: float = 0.0
    std: float = 1.0


@dataclass(kw_only=True)
class SelfAC(Algorithm):
    """`discount` is the slides' λ, `td_steps` their five targets, `alpha` the critic's share of the
    loss; in the first `critic_warmup` updates only the value head learns. Above 0 `thought_tokens`
    are the fewest of a thought that counts as a turn of its own."""

    critic_prompt: str
    thought_tokens: int
    ratio: Literal["turn", "turn_geo", "token"]
    clip: float
    discount: float
    gae_lambda: float
    alpha: float
    td_steps: int
    critic_warmup: int
    layout: Layout
    epochs: int
    tokens_per_step: int
    optimizer: OptimizerSpec
    advanced: Advanced
    critic_prompt_ids: list[int] = field(init=False, repr=False)
    scale: AdvantageScale = field(init=False, default=AdvantageScale(), repr=False)
    turns_per_state: float = field(init=False, default=1.0, repr=False)

    uses_ratio = True

    def __post_init__(self) -> None:
        require_at_least(1, td_steps=self.td_steps, epochs=self.epochs)
        require_at_least(0, clip=self.clip, thought_tokens=self.thought_tokens)
        require_at_least(0, critic_warmup=self.critic_warmup)
        require_at_least(0, tokens_per_step=self.tokens_per_step)
        require_fraction(discount=self.discount, gae_lambda=self.gae_lambda, alpha=self.alpha)
        for name in PLACE.findall(self.critic_prompt.removeprefix("{message}")):
            if name != "closing":
                known = "it can be given closing and, in front of all else, message"
                raise UserError(f"algo.critic_prompt asks for '{name}'; {known}")

    def models(self) -> dict[str, ModelSpec]:
        """One model; only its head is the critic's own, and thrown away after training."""
        spec = ModelSpec(kind="trained", generates=True, optimizer=self.optimizer, head="value")
        return {"policy": spec}

    def bind(self, context: Context) -> None:
        """Receive the given objects. Raises UserError where the critic prompt is empty, the model
        cannot read it packed, or the world already cuts replies into thoughts."""
        super().bind(context)
        if self.thought_tokens and context.turn_delimiter:
            raise UserError(
                f"algo.thought_tokens is {self.thought_tokens} but the environment itself cuts "
                "replies into thoughts; give algo.thought_tokens=0, or env.turns=single"
            )
        self.critic_prompt_ids = context.chat.encode_raw(self.critic_prompt)
        if not self.critic_prompt_ids:
            prompt = repr(self.critic_prompt)
            raise UserError(f"algo.critic_prompt {prompt} has no token; give it a word")
        policy = causal_lm(context.models.module("policy"))
        enable_packing(policy, self.critic_prompt_ids, self.layout, self.advanced.critic_grad)

    @property
    def pretrains_values(self) -> bool:
        """Whether this update trains the value head alone, on play of a policy that waits, so that
        its first advantages are not those of a blind critic (VC-PPO, arXiv 2503.01491)."""
        return self.context.step < self.critic_warmup

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """One phase: each episode is one packed sample (one for each segment between restarts)."""
        packed_episodes = self.pack(episodes)
        samples = [sample for packed in packed_episodes for sample in packed.samples]
        normalise = self.advanced.normalise_advantages
        self.scale = advantage_scale(packed_episodes) if normalise else AdvantageScale()
        self.turns_per_state = packing.turns_per_state(samples)
        yield Phase(
            "actor_critic", samples, self.loss, epochs=self.epochs,
            tokens_per_step=self.tokens_per_step, units=packing.trained_turns,
            head_only=self.pretrains_values,
            metrics=thoughts_per_turn(packed_episodes)
            | left_out_metrics("self_ac", episodes, self._left_out_reason, more=("long",)),
        )  # fmt: skip

    def pack(self, episodes: list[Episode]) -> list[PackedEpisode]:
        """The episodes that can be trained, packed, with values and old log-probs by the trainer's
        own pass; turns' `info` gets `value`, `advantage`, `td_error` and, if cut, `thoughts`."""
        trainable = [episode for episode in episodes if self._left_out_reason(episode) is None]
        packed_episodes = [self._pack_episode(episode) for episode in trainable]
        self._add_old_values(packed_episodes)
        for packed in packed_episodes:
            advantages, td_errors = packed.estimate_advantages(self.discount, self.gae_lambda)
            packing.bootstrap_across_restarts(packed, advantages, self.gae_lambda)
            turns = packed.episode.turns
            notes = zip(turns, packed.values[:-1], advantages, td_errors, strict=True)
            for turn, value, advantage, td_error in notes:
                turn.info |= {"value": value, "advantage": advantage, "td_error": td_error}
        for episode, packed in zip(trainable, packed_episodes, strict=True):
            if packed.episode is not episode:
                merge_info(episode, packed.episode, self.discount)
        return packed_episodes

    def _left_out_reason(self, episode: Episode) -> str | None:
        positions = max_positions(self.context.models.module("policy"))
        return packing.left_out_reason(episode, len(self.critic_prompt_ids), positions)

    def _pack_episode(self, episode: Episode) -> PackedEpisode:
        """The episode, cut into thoughts if asked, with the critic prompt behind each state."""
        chat, module = self.context.chat, self.context.models.module("policy")
        tail = truncated_state_ids(episode, chat, module, len(self.critic_prompt_ids))
        decode = partial(chat.text_of, special=False)
        split = split_episode(episode, decode, self.thought_tokens)
        return packing.pack_episode(split, self.critic_prompt_ids, tail)

    def _add_old_values(self, packed_episodes: list[PackedEpisode]) -> None:
        """Streams `old_logprob` and `old_value`, and each episode's values, by one pass."""
        samples = [sample for packed in packed_episodes for sample in packed.samples]
        models = self.context.models
        rows = logprobs_and_values(models.reader("policy"), samples)
        for sample, (logprobs, values) in zip(samples, rows, strict=True):
            sample.streams["old_logprob"] = logprobs
            value_at = torch.tensor(sample.streams["value_at"])  # [tokens]
            sample.streams["old_value"] = (values * value_at).tolist()
        for packed in packed_episodes:
            packed.values = packing.at_states(packed.samples, "old_value")

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """L = alpha L_critic + (1 - alpha) L_actor, the slides' sum of two means: the critic's over
        the states whose value is trained, one more than turns in an episode that is done, the
        actor's over turns. The learner divides both by turns, so the critic's sum is first
        multiplied by the update's turns per such state. While values are pretrained the actor's
        weight is zero. The V in targets and advantages is this
        pass's own, or the one from before the update."""
        assert outputs.values is not None
        states = packing.batch_states(batch)
        values = sum_by_turn(outputs.values * batch.streams["value_at"], batch)  # [batch, states]
        frozen = self.advanced.values == "frozen"
        old = batch.streams["old_value"]
        target_values = sum_by_turn(old, batch) if frozen else values.detach()
        # a segment's last reward is the outcome, or V of that state where the episode was cut off
        rewards = torch.where(states.cut_off, target_values, states.rewards)
        # an end whose V is not trained (a cut-off, a restart) counts in targets as its reward
        target_values = torch.where(states.ends & ~states.trained, rewards, target_values)
        # [td_steps, batch, states]
        targets = td_targets(rewards, target_values, self.discount, self.td_steps)
        # [batch, states], 0 where a segment ends
        advantages, _ = turn_advantages(
            rewards, target_values, states.ends, self.discount, self.gae_lambda
        )
        critic = self.turns_per_state * td_loss(values, targets, states.trained)
        normalised = (advantages - self.scale.mean) / self.scale.std
        actor, metrics = clipped_turns(outputs, batch, normalised, self.clip, self.ratio)
        metrics |= {
            "critic_loss": critic.detach(),
            "actor_loss": actor.detach(),
            "value": values.detach()[states.acted].sum(),
            "advantage": advantages[states.acted].sum(),
        }
        alpha = 1.0 if self.pretrains_values else self.alpha
        return alpha * critic + (1 - alpha) * actor, metrics

    def annotate(self, episodes: list[Episode]) -> None:
        """Write `value`, `advantage` and `td_error` into every turn's info."""
        self.pack(episodes)

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        """Do the values foresee how the episodes ended: `critic/…`. The outcome belongs to the
        state after the last action, one step further on."""
        valued = [packed.episode for packed in self.pack(episodes)]
        return value_metrics(valued, self.discount, lambda turn: 1 + turn.done)

    @torch.no_grad()
    def state_values(self, states: list[list[int]]) -> list[float]:
        """V of each state: the critic prompt is read behind its cached prefix, and nothing later
        sees it. Raises UserError where a state is too long for the model."""
        prompt = self.critic_prompt_ids
        room = max_positions(self.context.models.module("policy")) - len(prompt)
        if max(map(len, states), default=0) > room:
            raise UserError(f"a state has more than {room} ids; set rollout.max_context to {room}")
        head = self.context.models.head("policy")
        assert head is not None
        return head(self.context.generator.hidden([s + prompt for s in states])).tolist()


def td_loss(values: Tensor, targets: Tensor, trained: Tensor) -> Tensor:
    """The critic's: squared errors of `values` [batch, states], a mean over `targets` [td_steps,
    batch, states], summed over the states where `trained` [batch, states] is true."""
    return ((values - targets) ** 2).mean(0)[trained].sum()


def thoughts_per_turn(packed_episodes: list[PackedEpisode]) -> dict[str, float]:
    """How many thoughts a turn was cut into, as a metric."""
    thoughts = [turn for packed in packed_episodes for turn in packed.episode.turns]
    turns = sum(bool(thought.observation_ids) for thought in thoughts)
    return {"self_ac/thoughts": len(thoughts) / max(1, turns)}


def advantage_scale(packed_episodes: list[PackedEpisode]) -> AdvantageScale:
    """Mean and population deviation of all turns' advantages; a deviation of 0 counts as 1."""
    turns = [turn for packed in packed_episodes for turn in packed.episode.turns]
    if not turns:
        return AdvantageScale()
    advantages = [turn.info["advantage"] for turn in turns]
    return AdvantageScale(statistics.fmean(advantages), statistics.pstdev(advantages) or 1.0)
