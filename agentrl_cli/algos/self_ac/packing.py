"""Self-AC's episodes as packed samples.

Every state s_k is followed by the critic prompt cp_k as a branch, which no later token sees; V(s_k)
is read at its last token:

    s_0 | cp_0 | a_0 o_0 | cp_1 | a_1 o_1 | ... | a_{n-1} o_{n-1} | cp_n

An episode has n turns, n + 1 states and rewards r_0 ... r_n; r_n, in the last state's place, is the
outcome. A context restart starts a new sample.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, pairwise

import torch
from torch import Tensor

from agentrl_cli.algos import samples
from agentrl_cli.algos.losses import shift_left, sum_by_turn, turn_advantages
from agentrl_cli.algos.samples import append_tokens
from agentrl_cli.core.types import Episode, Sample, Turn
from agentrl_cli.models.forward import Batch

FIELDS = ("branch", "turn", "value_at", "reward", "cut_off", "value_mask")
BLANK_LINE = "\n\n"
Decode = Callable[[list[int]], str]


@dataclass
class PackedEpisode:
    """An episode, its samples, rewards r_0 ... r_n, and (once read) values V_0 ... V_n."""

    episode: Episode
    samples: list[Sample]
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

    def bootstrap_across_restarts(self, advantages: list[float], gae_lambda: float) -> None:
        """Replace the last reward of each segment that ends with a restart by GAE's estimate of the
        next turn, V + lambda A, from before the update."""
        turn = 0
        for sample in self.samples[:-1]:
            turn += trained_turns(sample)
            sample.per_token["reward"][-1] = self.values[turn] + gae_lambda * advantages[turn]


def skip_reason(episode: Episode, prompt_length: int, max_positions: int) -> str | None:
    """Return why an episode is not trained: a reason of `samples.skip_reason`, or `long` if its
    states and the critic prompt exceed the model's positions; else None."""
    if reason := samples.skip_reason(episode):
        return reason
    parts = segments(episode)
    lengths = [sum(len(t.observation_ids) + len(t.action_ids) for t in part) for part in parts]
    return "long" if max(lengths) + prompt_length > max_positions else None


def segments(episode: Episode) -> list[list[Turn]]:
    """Return the episode's turns, split at context restarts."""
    parts: list[list[Turn]] = []
    for i, turn in enumerate(episode.turns):
        if i == 0 or turn.context_reset:
            parts.append([])
        parts[-1].append(turn)
    return parts


def pack_episode(
    episode: Episode, critic_prompt: list[int], truncated_state: list[int]
) -> PackedEpisode:
    """Pack an episode; `truncated_state` are the tokens of the last state if it was truncated.

    Fields: `branch` labels the tokens of critic prompts. `turn` is the number of an action in its
    segment. The last token of a critic prompt has the state's number in `turn`, 1 in `value_at` and
    the state's `reward`. `value_mask` is 1 there if the value is trained, which it is not for the
    last state of a truncated episode (`cut_off` is 1) or before a restart.
    """
    rewards, done = [turn.reward for turn in episode.turns], episode.stop == "done"
    rewards = [*rewards[:-1], 0.0, rewards[-1]] if done else [*rewards, 0.0]
    packed, begin, parts = [], 0, segments(episode)
    for i, turns in enumerate(parts):
        end, last = begin + len(turns), i == len(parts) - 1
        sample = Sample([], [], {name: [] for name in FIELDS})
        earned = [*rewards[begin:end], rewards[-1] if last else 0.0]
        for k, reward in enumerate(earned):
            final_observation = truncated_state if last else []
            append_tokens(sample, turns[k].observation_ids if k < len(turns) else final_observation)
            append_tokens(sample, critic_prompt, branch=k + 1)
            at_last_token = {"turn": k, "value_at": 1, "reward": reward, "value_mask": 1}
            for name, number in at_last_token.items():
                sample.per_token[name][-1] = float(number)
            append_tokens(sample, turns[k].action_ids if k < len(turns) else [], trained=1, turn=k)
        sample.per_token["value_mask"][-1] = float(last and done)
        sample.per_token["cut_off"][-1] = float(last and not done)
        packed.append(sample)
        begin = end
    return PackedEpisode(episode, packed, rewards)


def trained_turns(sample: Sample) -> int:
    """Return the number of actions of a packed sample, one fewer than states."""
    return int(sum(sample.per_token["value_at"])) - 1


def at_states(samples: list[Sample], name: str) -> list[float]:
    """Return a per-token field at the states s_0 ... s_n of an episode. A state before a restart
    does not count."""
    numbers: list[float] = []
    for sample in samples:
        numbers = [*numbers[:-1], *compress(sample.per_token[name], sample.per_token["value_at"])]
    return numbers


@dataclass(frozen=True)
class BatchStates:
    """The states of a batch, [batch, states]: `rewards`, and whether a state has an action
    (`acted`), `ends` its segment, has a `trained` value, or is where the episode was `cut_off`.
    Shorter rows are padded with zeros."""

    rewards: Tensor
    acted: Tensor
    ends: Tensor
    trained: Tensor
    cut_off: Tensor

    @classmethod
    def of(cls, batch: Batch) -> BatchStates:
        """Gather the fields of `pack_episode` by state."""
        per_token = batch.per_token
        exists = sum_by_turn(per_token["value_at"], batch)  # [batch, states], 1 for each state
        follows = shift_left(exists, 1)  # 1 if another state follows in the segment
        return cls(
            rewards=sum_by_turn(per_token["reward"], batch),
            acted=follows > 0,
            ends=exists > follows,
            trained=sum_by_turn(per_token["value_mask"], batch) > 0,
            cut_off=sum_by_turn(per_token["cut_off"], batch) > 0,
        )


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
    first.context_reset = turn.context_reset
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
