"""Self-AC: self-actor-critic, one transformer that acts and values its own states.

After every state of an episode a critic prompt puts the model into the critic's role, and a linear
head reads V(s) at the prompt's last token. The prompts are branches that no later token sees
(models/packed_attention.py), so one forward pass trains the critic on all states of an episode and
the actor on all of its turns (lambda discounts):

    T_k^m = sum_{j<m} lambda^j r_{k+j} + lambda^m V_{k+m}
    L_critic = mean_m sum_k (V_k - T_k^m)^2
    L_actor = - mean_k min(r_k A_k, clip(r_k, 1 - eps, 1 + eps) A_k)
    L = alpha L_critic + (1 - alpha) L_actor

The only source is a set of slides. Our choices: the advantage is GAE over turns (arXiv 1506.02438).
A truncated episode bootstraps from its last value, which is not trained. The ratio of a turn may be
its geometric mean per token (arXiv 2507.18071). The slides name three agents: ReAct uses the turns
of the environment; CoT splits an answer into thoughts (`thought_tokens`); ToT searches with the
trained critic (generators/tree_search.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from agentrl_cli.algos.base import Algorithm, Context, Phase
from agentrl_cli.algos.critics import truncated_state_ids, value_metrics
from agentrl_cli.algos.losses import clipped_turns, sum_by_turn, td_targets, turn_advantages
from agentrl_cli.algos.samples import skipped_metrics
from agentrl_cli.algos.self_ac import packing
from agentrl_cli.algos.self_ac.packing import BatchStates, PackedEpisode
from agentrl_cli.algos.settings import SelfACConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.models.forward import Batch, Outputs, causal_lm, logprobs_and_values, max_positions
from agentrl_cli.models.packed_attention import enable_packing
from agentrl_cli.models.specs import ModelSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer


@dataclass(kw_only=True)
class SelfAC(SelfACConfig, Algorithm):
    """Self-actor-critic. `scale` is the mean and deviation that normalise advantages."""

    critic_prompt_ids: list[int] = field(init=False, repr=False)
    scale: tuple[float, float] = field(init=False, default=(0.0, 1.0), repr=False)
    turns_per_state: float = field(init=False, default=1.0, repr=False)

    uses_ratio = True

    def models(self) -> dict[str, ModelSpec]:
        """Return one model; only its value head belongs to the critic alone."""
        spec = ModelSpec(kind="trained", generates=True, optimizer=self.optimizer, head="value")
        return {"policy": spec}

    def bind(self, context: Context) -> None:
        """Store the context. Raises UserError if the critic prompt is empty or cannot be packed for
        this model, or if the environment already splits replies into thoughts."""
        super().bind(context)
        if self.thought_tokens and context.turn_delimiter:
            line = f"algo.thought_tokens is {self.thought_tokens} but env splits replies"
            remedy = "give algo.thought_tokens=0, or env.turn_mode=single"
            raise UserError(f"{line}; {remedy}", code="split-twice")
        self.critic_prompt_ids = context.chat.encode_raw(self.critic_prompt)
        if not self.critic_prompt_ids:
            line = f"algo.critic_prompt {self.critic_prompt!r} has no token; give it a word"
            raise UserError(line, code="empty-prompt")
        policy = causal_lm(context.models.module("policy"))
        enable_packing(policy, self.critic_prompt_ids, self.layout, self.advanced.critic_grad)

    @property
    def pretrains_values(self) -> bool:
        """Whether this update trains only the value head, so that the first advantages do not come
        from an untrained critic (VC-PPO, arXiv 2503.01491)."""
        return self.context.step < self.critic_warmup

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Yield one phase; each episode is one packed sample per segment."""
        packed_episodes = self.pack(episodes)
        samples = [sample for packed in packed_episodes for sample in packed.samples]
        turns = [turn for packed in packed_episodes for turn in packed.episode.turns]
        self.scale = 0.0, 1.0
        if self.advanced.normalise_advantages and turns:
            advantages = [turn.info["advantage"] for turn in turns]
            self.scale = statistics.fmean(advantages), statistics.pstdev(advantages) or 1.0
        trained_states = sum(sum(sample.per_token["value_mask"]) for sample in samples)
        trained_turns = sum(map(packing.trained_turns, samples))
        self.turns_per_state = trained_turns / max(1.0, trained_states)
        whole_turns = sum(bool(turn.observation_ids) for turn in turns)
        yield Phase(
            "actor_critic", samples, self.loss, epochs=self.epochs,
            minibatch_tokens=self.minibatch_tokens, units=packing.trained_turns,
            head_only=self.pretrains_values,
            metrics={"self_ac/thoughts": len(turns) / max(1, whole_turns)}
            | skipped_metrics("self_ac", episodes, self._skip_reason, more=("long",)),
        )  # fmt: skip

    def pack(self, episodes: list[Episode]) -> list[PackedEpisode]:
        """Return the trainable episodes, packed, with values and old log-probs from the trainer.
        Writes `value`, `advantage`, `td_error` and, if split, `thoughts` into the turns' info."""
        trainable = [episode for episode in episodes if self._skip_reason(episode) is None]
        packed_episodes = [self._pack_episode(episode) for episode in trainable]
        self._add_old_values(packed_episodes)
        for packed in packed_episodes:
            advantages, td_errors = packed.estimate_advantages(self.gamma, self.gae_lambda)
            packed.bootstrap_across_restarts(advantages, self.gae_lambda)
            rows = zip(packed.values[:-1], advantages, td_errors, strict=True)
            for turn, row in zip(packed.episode.turns, rows, strict=True):
                turn.info |= zip(("value", "advantage", "td_error"), row, strict=True)
        for episode, packed in zip(trainable, packed_episodes, strict=True):
            if packed.episode is not episode:
                packing.merge_info(episode, packed.episode, self.gamma)
        return packed_episodes

    def _skip_reason(self, episode: Episode) -> str | None:
        positions = max_positions(self.context.models.module("policy"))
        return packing.skip_reason(episode, len(self.critic_prompt_ids), positions)

    def _pack_episode(self, episode: Episode) -> PackedEpisode:
        chat, module = self.context.chat, self.context.models.module("policy")
        tail = truncated_state_ids(episode, chat, module, len(self.critic_prompt_ids))
        decode = partial(chat.text_of, special=False)
        split = packing.split_episode(episode, decode, self.thought_tokens)
        return packing.pack_episode(split, self.critic_prompt_ids, tail)

    def _add_old_values(self, packed_episodes: list[PackedEpisode]) -> None:
        """Add fields `old_logprob` and `old_value`, and each episode's values."""
        samples = [sample for packed in packed_episodes for sample in packed.samples]
        rows = logprobs_and_values(self.context.models.forward("policy"), samples)
        for sample, (logprobs, values) in zip(samples, rows, strict=True):
            value_at = torch.tensor(sample.per_token["value_at"])  # [tokens]
            sample.per_token |= {"old_logprob": logprobs, "old_value": (values * value_at).tolist()}
        for packed in packed_episodes:
            packed.values = packing.at_states(packed.samples, "old_value")

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return alpha L_critic + (1 - alpha) L_actor.

        The critic's mean is over states with a trained value, the actor's over turns. The learner
        divides both by turns, so the critic's sum is first multiplied by turns per trained state.
        During the critic's warm-up, alpha is 1.
        """
        assert outputs.values is not None
        states = BatchStates.of(batch)
        values = sum_by_turn(outputs.values * batch.per_token["value_at"], batch)  # [batch, states]
        frozen = self.advanced.values == "frozen"
        old = batch.per_token["old_value"]
        target_values = sum_by_turn(old, batch) if frozen else values.detach()
        # the last reward of a segment is the outcome, or V if the episode was truncated there
        rewards = torch.where(states.cut_off, target_values, states.rewards)
        # in targets, an end with an untrained V (truncated, restart) counts as its reward
        target_values = torch.where(states.ends & ~states.trained, rewards, target_values)
        # [td_steps, batch, states]
        targets = td_targets(rewards, target_values, self.gamma, self.td_steps)
        # [batch, states], 0 where a segment ends
        advantages, _ = turn_advantages(
            rewards, target_values, states.ends, self.gamma, self.gae_lambda
        )
        critic = self.turns_per_state * td_loss(values, targets, states.trained)
        mean, std = self.scale
        normalised = (advantages - mean) / std
        actor, metrics = clipped_turns(outputs, batch, normalised, self.clip_eps, self.ratio)
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
        """Return metrics of the values against the returns. The outcome is one step after the last
        turn's state."""
        valued = [packed.episode for packed in self.pack(episodes)]
        return value_metrics(valued, self.gamma, lambda turn: 1 + turn.done)

    @torch.no_grad()
    def state_values(self, states: list[list[int]]) -> list[float]:
        """Return V of each state. Reads the critic prompt after the state's cached prefix. Raises
        UserError if a state is too long for the model."""
        prompt = self.critic_prompt_ids
        room = max_positions(self.context.models.module("policy")) - len(prompt)
        if max(map(len, states), default=0) > room:
            line = f"a state has more than {room} tokens; set rollout.max_seq_len to {room}"
            raise UserError(line, code="context-too-long")
        head = self.context.models.head("policy")
        assert head is not None
        return head(self.context.generator.hidden([s + prompt for s in states])).tolist()


def td_loss(values: Tensor, targets: Tensor, trained: Tensor) -> Tensor:
    """Return squared errors of `values` [batch, states], averaged over `targets` [td_steps, batch,
    states], summed over the states where `trained` [batch, states] is true."""
    return ((values - targets) ** 2).mean(0)[trained].sum()
