"""Self-AC: self-actor-critic, one transformer that acts and values its own states.

After every state of an episode a critic prompt puts the model into the critic's role, and a linear
head reads V(s) at the prompt's last token. The prompts cp_k are branches that no later token sees
(models/packed_attention.py), so one forward pass trains the critic on all states of an episode and
the actor on all of its turns (lambda discounts):

    s_0 | cp_0 | a_0 o_0 | cp_1 | a_1 o_1 | ... | a_{n-1} o_{n-1} | cp_n

    T_k^m = sum_{j<m} lambda^j r_{k+j} + lambda^m V_{k+m}
    L_critic = mean_m mean_k (V_k - T_k^m)^2
    L_actor = - mean_k min(r_k A_k, clip(r_k, 1 - eps, 1 + eps) A_k)
    L = alpha L_critic + (1 - alpha) L_actor

An episode has n turns, n + 1 states and rewards r_0 ... r_n; r_n, in the last state's place, is the
outcome.

The only source is a set of slides. Our choices: L_critic is a mean over states, where the slides
have a squared norm. The log-probs of the ratio come from the trainer. The advantage is GAE over
turns (arXiv 1506.02438). A truncated episode bootstraps from its last value, which is not trained.
The ratio of a turn may be its geometric mean per token (arXiv 2507.18071). The slides name three
agents: ReAct uses the turns of the environment; CoT splits an answer into thoughts
(`thought_tokens`); ToT searches with the trained critic (generators/tree_search.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress, pairwise

import torch
from torch import Tensor

from agentrl_cli.algos.base import Algorithm, Context, Phase
from agentrl_cli.algos.critics import truncated_state_ids, value_metrics
from agentrl_cli.algos.losses import (
    clipped_turns,
    shift_left,
    sum_by_turn,
    td_targets,
    turn_advantages,
)
from agentrl_cli.algos.samples import append_tokens, skip_reason, skipped_metrics
from agentrl_cli.algos.settings import SelfACConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Sample, Turn
from agentrl_cli.models.forward import Batch, Outputs, causal_lm, logprobs_and_values, max_positions
from agentrl_cli.models.packed_attention import enable_packing
from agentrl_cli.models.specs import ModelSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer

FIELDS = ("branch", "turn", "value_at", "reward", "cut_off", "value_mask")
BLANK_LINE = "\n\n"
Decode = Callable[[list[int]], str]


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
        """Whether this update trains only the critic, so that the first advantages do not come
        from an untrained critic (VC-PPO, arXiv 2503.01491)."""
        return self.context.step < self.critic_warmup

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Yield one phase; each episode is one packed sample."""
        packed_episodes = self.pack(episodes)
        samples = [packed.sample for packed in packed_episodes]
        turns = [turn for packed in packed_episodes for turn in packed.episode.turns]
        self.scale = 0.0, 1.0
        if self.advanced.normalise_advantages and turns:
            advantages = [turn.info["advantage"] for turn in turns]
            self.scale = statistics.fmean(advantages), statistics.pstdev(advantages) or 1.0
        trained_states = sum(sum(sample.per_token["value_mask"]) for sample in samples)
        self.turns_per_state = sum(map(trained_turns, samples)) / max(1.0, trained_states)
        whole_turns = sum(bool(turn.observation_ids) for turn in turns)
        yield Phase(
            "actor_critic", samples, self.loss, epochs=self.epochs,
            minibatch_tokens=self.minibatch_tokens, units=trained_turns,
            head_only=self.pretrains_values and self.advanced.warmup_trains == "head",
            metrics={"self_ac/thoughts": len(turns) / max(1, whole_turns)}
            | skipped_metrics("self_ac", episodes, self._skip_reason, more=("long",)),
        )  # fmt: skip

    def pack(self, episodes: list[Episode]) -> list[PackedEpisode]:
        """Return the trainable episodes, packed, with values and old log-probs from the trainer.
        Writes `value`, `advantage`, `td_error` and, if split, `thoughts` into the turns' info."""
        trainable = [episode for episode in episodes if self._skip_reason(episode) is None]
        packed_episodes = [self._pack_episode(episode) for episode in trainable]
        self._add_old_values(packed_episodes)
        for episode, packed in zip(trainable, packed_episodes, strict=True):
            advantages, td_errors = packed.estimate_advantages(self.gamma, self.gae_lambda)
            rows = zip(packed.values[:-1], advantages, td_errors, strict=True)
            for turn, row in zip(packed.episode.turns, rows, strict=True):
                turn.info |= zip(("value", "advantage", "td_error"), row, strict=True)
            if packed.episode is not episode:
                merge_info(episode, packed.episode, self.gamma)
        return packed_episodes

    def _skip_reason(self, episode: Episode) -> str | None:
        """Return why an episode is not trained: a reason of `samples.skip_reason`, or `long` if its
        states and the critic prompt exceed the model's positions; else None."""
        if reason := skip_reason(episode):
            return reason
        positions = max_positions(self.context.models.module("policy"))
        return "long" if episode.tokens + len(self.critic_prompt_ids) > positions else None

    def _pack_episode(self, episode: Episode) -> PackedEpisode:
        chat, module = self.context.chat, self.context.models.module("policy")
        tail = truncated_state_ids(episode, chat, module, len(self.critic_prompt_ids))
        split = split_episode(episode, partial(chat.text_of, special=False), self.thought_tokens)
        return pack_episode(split, self.critic_prompt_ids, tail)

    def _add_old_values(self, packed_episodes: list[PackedEpisode]) -> None:
        """Add fields `old_logprob` and `old_value`, and each episode's values."""
        samples = [packed.sample for packed in packed_episodes]
        rows = logprobs_and_values(self.context.models.forward("policy"), samples)
        for sample, (logprobs, values) in zip(samples, rows, strict=True):
            value_at = torch.tensor(sample.per_token["value_at"])  # [tokens]
            sample.per_token |= {"old_logprob": logprobs, "old_value": (values * value_at).tolist()}
        for packed in packed_episodes:
            packed.values = at_states(packed.sample, "old_value")

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return alpha L_critic + (1 - alpha) L_actor.

        The critic's mean is over states with a trained value, the actor's over turns. The learner
        divides both by turns, so the critic's sum is first multiplied by turns per trained state.
        During the critic's warm-up, alpha is 1. Rows with fewer states are padded with zeros.
        """
        assert outputs.values is not None
        per_token = batch.per_token
        # of each state, [batch, states]: its reward, whether it exists, whether one follows,
        # whether its value is trained, and whether the episode was truncated there
        rewards = sum_by_turn(per_token["reward"], batch)
        exists = sum_by_turn(per_token["value_at"], batch)
        follows = shift_left(exists, 1)
        trained = sum_by_turn(per_token["value_mask"], batch) > 0
        cut_off = sum_by_turn(per_token["cut_off"], batch) > 0
        acted, ends = follows > 0, exists > follows
        values = sum_by_turn(outputs.values * per_token["value_at"], batch)
        frozen = self.advanced.values == "frozen"
        target_values = sum_by_turn(per_token["old_value"], batch) if frozen else values.detach()
        # the last reward is the outcome, or V if the episode was truncated there
        rewards = torch.where(cut_off, target_values, rewards)
        # in targets, an end with an untrained V (truncated) counts as its reward
        target_values = torch.where(ends & ~trained, rewards, target_values)
        # [td_steps, batch, states]
        targets = td_targets(rewards, target_values, self.gamma, self.td_steps)
        # [batch, states], 0 where the episode ends
        advantages, _ = turn_advantages(rewards, target_values, ends, self.gamma, self.gae_lambda)
        critic = self.turns_per_state * ((values - targets) ** 2).mean(0)[trained].sum()
        mean, std = self.scale
        normalised = (advantages - mean) / std
        actor, metrics = clipped_turns(outputs, batch, normalised, self.clip_eps, self.ratio)
        metrics |= {
            "critic_loss": critic.detach(),
            "actor_loss": actor.detach(),
            "value": values.detach()[acted].sum(),
            "advantage": advantages[acted].sum(),
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


# --- packed samples -------------------------------------------------------------------------------


@dataclass
class PackedEpisode:
    """An episode, its sample, rewards r_0 ... r_n, and (once read) values V_0 ... V_n."""

    episode: Episode
    sample: Sample
    rewards: list[float]
    values: list[float] = field(default_factory=list)

    def estimate_advantages(
        self, gamma: float, gae_lambda: float
    ) -> tuple[list[float], list[float]]:
        """Return the advantage and the TD error of every turn. A truncated episode bootstraps from
        V_n."""
        done = self.episode.stop == "done"
        rewards = self.rewards if done else [*self.rewards[:-1], self.values[-1]]
        ends = torch.tensor([False] * (len(rewards) - 1) + [True])
        advantages, td_errors = turn_advantages(
            torch.tensor(rewards), torch.tensor(self.values), ends, gamma, gae_lambda
        )
        return advantages[:-1].tolist(), td_errors[:-1].tolist()


def pack_episode(
    episode: Episode, critic_prompt: list[int], truncated_state: list[int]
) -> PackedEpisode:
    """Pack an episode; `truncated_state` are the tokens of the last state if it was truncated.

    Fields: `branch` labels the tokens of critic prompts. `turn` is the number of an action. The
    last token of a critic prompt has the state's number in `turn`, 1 in `value_at` and the state's
    `reward`. `value_mask` is 1 there if the value is trained, which it is not for the last state of
    a truncated episode (`cut_off` is 1).
    """
    turns, done = episode.turns, episode.stop == "done"
    rewards = [turn.reward for turn in turns]
    rewards = [*rewards[:-1], 0.0, rewards[-1]] if done else [*rewards, 0.0]
    sample = Sample([], [], {name: [] for name in FIELDS})
    for k, reward in enumerate(rewards):
        append_tokens(sample, turns[k].observation_ids if k < len(turns) else truncated_state)
        append_tokens(sample, critic_prompt, branch=k + 1)
        at_last_token = {"turn": k, "value_at": 1, "reward": reward, "value_mask": 1}
        for name, number in at_last_token.items():
            sample.per_token[name][-1] = float(number)
        append_tokens(sample, turns[k].action_ids if k < len(turns) else [], trained=1, turn=k)
    sample.per_token["value_mask"][-1] = float(done)
    sample.per_token["cut_off"][-1] = float(not done)
    return PackedEpisode(episode, sample, rewards)


def trained_turns(sample: Sample) -> int:
    """Return the number of actions of a packed sample, one fewer than states."""
    return int(sum(sample.per_token["value_at"])) - 1


def at_states(sample: Sample, name: str) -> list[float]:
    """Return a per-token field at the states s_0 ... s_n of a packed episode."""
    return list(compress(sample.per_token[name], sample.per_token["value_at"]))


# --- thoughts -------------------------------------------------------------------------------------


def split_episode(episode: Episode, decode: Decode, min_tokens: int) -> Episode:
    """Return the episode with a turn per thought; unchanged if `min_tokens` is 0."""
    if not min_tokens:
        return episode
    turns = [part for turn in episode.turns for part in split_turn(turn, decode, min_tokens)]
    return replace(episode, turns=turns)


def split_turn(turn: Turn, decode: Decode, min_tokens: int) -> list[Turn]:
    """Return one turn per thought. The first has the observation, the last the reward and the
    end."""
    bounds = [0, *thought_ends([decode([i]) for i in turn.action_ids], min_tokens)]
    cuts = [(turn.action_ids[i:k], turn.logprobs[i:k]) for i, k in pairwise(bounds)]
    parts = [Turn([], decode(ids), [], ids, logprobs) for ids, logprobs in cuts]
    first, last = parts[0], parts[-1]
    first.observation, first.observation_ids = turn.observation, turn.observation_ids
    last.info = dict(turn.info)
    last.reward, last.done, last.finish_reason = turn.reward, turn.done, turn.finish_reason
    return parts


def thought_ends(texts: Sequence[str], min_tokens: int) -> list[int]:
    """Return the ends of the thoughts of an answer, in tokens with the given texts: after the first
    token that completes a blank line. A thought of fewer than `min_tokens` joins the next one; the
    last joins the one before it."""
    ends, begin, last_character = [], 0, ""
    for end, text in enumerate(texts, 1):
        joined = last_character + text  # two tokens can form a blank line
        last_character = joined[-1:]
        long_enough = end - begin >= min_tokens and len(texts) - end >= min_tokens
        if BLANK_LINE in joined and long_enough:
            ends.append(end)
            begin, last_character = end, ""
    return [*ends, len(texts)]


def merge_info(episode: Episode, split: Episode, gamma: float) -> None:
    """Write into each turn's `info` the value before its first thought, the mean advantage, the TD
    error over all thoughts, and the info of each thought."""
    thoughts = iter(split.turns)
    for turn in episode.turns:
        parts, length = [], 0
        while length < len(turn.action_ids):
            parts.append(next(thoughts))
            length += len(parts[-1].action_ids)
        turn.info |= {
            "value": parts[0].info["value"],
            "advantage": statistics.fmean(part.info["advantage"] for part in parts),
            "td_error": sum(gamma**k * part.info["td_error"] for k, part in enumerate(parts)),
            "thoughts": [{"text": part.action, **part.info} for part in parts],
        }
