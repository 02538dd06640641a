"""Episodes to packed samples and back: every state s_k is followed by the critic prompt as a
shadow, at whose last token its value is read. What is trained on them, algorithm.py says."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress

import torch
from torch import Tensor

from agentrl_cli.algos import left_out
from agentrl_cli.algos.losses import shift_left, sum_by_turn, turn_advantages
from agentrl_cli.algos.samples import append_tokens
from agentrl_cli.core.types import Episode, Sample, Turn
from agentrl_cli.models.policy import Batch

STREAMS = ("shadow", "turn", "value_at", "reward", "cut_off", "value_mask")


@dataclass
class PackedEpisode:
    """An episode, one sample for each unbroken segment of it, rewards r_0 … r_n with the outcome in
    the last state's place, and, once they are read, values V_0 … V_n of its states."""

    episode: Episode
    samples: list[Sample]
    rewards: list[float]
    values: list[float] = field(default_factory=list)

    def estimate_advantages(
        self, discount: float, gae_lambda: float
    ) -> tuple[list[float], list[float]]:
        """Advantage and TD error of every turn by the values that were read."""
        done = self.episode.stop == "done"
        rewards = self.rewards if done else [*self.rewards[:-1], self.values[-1]]
        ends = torch.tensor([False] * (len(rewards) - 1) + [True])
        advantages, td_errors = turn_advantages(
            torch.tensor(rewards), torch.tensor(self.values), ends, discount, gae_lambda
        )
        return advantages[:-1].tolist(), td_errors[:-1].tolist()


def left_out_reason(episode: Episode, prompt_length: int, max_positions: int) -> str | None:
    """Why an episode is not trained: `broken`, an `empty` action, or states that with the critic
    prompt are too `long` for the model; None for a sound one."""
    if reason := left_out.left_out_reason(episode):
        return reason
    parts = segments(episode)
    lengths = [sum(len(t.observation_ids) + len(t.action_ids) for t in part) for part in parts]
    return "long" if max(lengths) + prompt_length > max_positions else None


def pack_episode(
    episode: Episode, critic_prompt: list[int], truncated_state: list[int]
) -> PackedEpisode:
    """The samples, with `critic_prompt` behind every state; `truncated_state` are the last state's
    own ids where the episode was cut off there (value_spans.py).

    Streams: `shadow` labels the prompts' tokens; `turn` is an action's number in its segment, and a
    state's on its prompt's last token, where `value_at` is 1 and `reward` the state's. `value_mask`
    is 1 there if the value is trained: not that of a state after which the episode was cut off,
    which has `cut_off` 1, nor of one that a restart replaced.
    """
    rewards = [turn.reward for turn in episode.turns]
    done = episode.stop == "done"
    rewards = [*rewards[:-1], 0.0, rewards[-1]] if done else [*rewards, 0.0]
    samples, begin, parts = [], 0, segments(episode)
    for i, turns in enumerate(parts):
        end, last = begin + len(turns), i == len(parts) - 1
        earned = [*rewards[begin:end], rewards[-1] if last else 0.0]
        sample = _pack_segment(turns, earned, critic_prompt, truncated_state if last else [])
        sample.streams["value_mask"][-1] = float(last and done)
        sample.streams["cut_off"][-1] = float(last and not done)
        samples.append(sample)
        begin = end
    return PackedEpisode(episode, samples, rewards)


def _pack_segment(
    turns: list[Turn], rewards: list[float], critic_prompt: list[int], last_observation: list[int]
) -> Sample:
    """s_0 cp_0 a_0 o_0 cp_1 … a_{n-1} o_{n-1} cp_n: n turns, n + 1 rewards, a last observation."""
    sample = Sample([], [], {name: [] for name in STREAMS})
    for k, reward in enumerate(rewards):
        append_tokens(sample, turns[k].observation_ids if k < len(turns) else last_observation)
        append_tokens(sample, critic_prompt, shadow=k + 1)
        at_last_token = {"turn": k, "value_at": 1, "reward": reward, "value_mask": 1}
        for name, number in at_last_token.items():
            sample.streams[name][-1] = float(number)
        append_tokens(sample, turns[k].action_ids if k < len(turns) else [], trained=1, turn=k)
    return sample


def bootstrap_across_restarts(
    packed: PackedEpisode, advantages: list[float], gae_lambda: float
) -> None:
    """Where a restart ends a segment, its last reward becomes what GAE expects of the turn that
    follows: V + gae_lambda A, as read before the update."""
    turn = 0
    for sample in packed.samples[:-1]:
        turn += trained_turns(sample)
        sample.streams["reward"][-1] = packed.values[turn] + gae_lambda * advantages[turn]


def segments(episode: Episode) -> list[list[Turn]]:
    """The episode's turns, cut where the context was begun anew: by a world or generator of one's
    own, as play here never does it (chat_template.py refuses a template that rewrites history)."""
    parts: list[list[Turn]] = []
    for i, turn in enumerate(episode.turns):
        if i == 0 or turn.restart:
            parts.append([])
        parts[-1].append(turn)
    return parts


def trained_turns(sample: Sample) -> int:
    """How many actions a packed sample has: one fewer than states."""
    return int(sum(sample.streams["value_at"])) - 1


def turns_per_state(samples: list[Sample]) -> float:
    """How many turns the samples have for each state whose value is trained."""
    states = sum(sum(sample.streams["value_mask"]) for sample in samples)
    return sum(map(trained_turns, samples)) / max(1.0, states)


def at_states(samples: list[Sample], stream: str) -> list[float]:
    """A stream's numbers at the states s_0 … s_n of an episode; a state that a restart replaced
    does not count."""
    numbers: list[float] = []
    for sample in samples:
        here = compress(sample.streams[stream], sample.streams["value_at"])
        numbers = [*numbers[:-1], *here]
    return numbers


@dataclass(frozen=True)
class BatchStates:
    """What a batch of packed samples says of its states, [batch, states]: `rewards`; and as bool
    whether a state was `acted` in, `ends` its segment, has its value `trained`, and is where the
    episode was `cut_off`. Rows of fewer states are padded with zeros."""

    rewards: Tensor
    acted: Tensor
    ends: Tensor
    trained: Tensor
    cut_off: Tensor


def batch_states(batch: Batch) -> BatchStates:
    """The streams of `pack_episode`, gathered by state."""
    streams = batch.streams
    exists = sum_by_turn(streams["value_at"], batch)  # [batch, states], 1 for each state
    follows = shift_left(exists, 1)  # 1 where another state follows in the segment
    return BatchStates(
        rewards=sum_by_turn(streams["reward"], batch),
        acted=follows > 0,
        ends=exists > follows,
        trained=sum_by_turn(streams["value_mask"], batch) > 0,
        cut_off=sum_by_turn(streams["cut_off"], batch) > 0,
    )
