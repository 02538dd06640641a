"""Episodes to packed samples: every state s_k is followed by the critic prompt as a shadow, at
whose last token its value is read. What is trained on them, algos/self_ac.py says."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from agentrl_cli.algos import value_spans
from agentrl_cli.algos.losses import turn_advantages
from agentrl_cli.core.types import Episode, Sample, Turn

STREAMS = ("shadow", "turn", "value_at", "reward", "bootstrap", "graded")


@dataclass
class PackedEpisode:
    """An episode, one sample for each unbroken segment of it, rewards r_0 … r_n with the outcome in
    the last state's place, and, once it is read, values V_0 … V_n of its states."""

    episode: Episode
    samples: list[Sample]
    rewards: list[float]
    values: list[float] = field(default_factory=list)

    def credit(self, discount: float, gae_lambda: float) -> tuple[list[float], list[float]]:
        """Advantage and TD error of every turn by the values that were read."""
        done = self.episode.stop == "done"
        known = self.rewards if done else [*self.rewards[:-1], self.values[-1]]
        ends = torch.tensor([False] * (len(known) - 1) + [True])
        rows = torch.tensor(known), torch.tensor(self.values), ends
        advantages, errors = turn_advantages(*rows, discount, gae_lambda)
        return advantages[:-1].tolist(), errors[:-1].tolist()


def left_out_reason(episode: Episode, prompt: int, reach: float) -> str | None:
    """Why an episode is not trained: `broken`, an `empty` action, or states that with `prompt` more
    tokens are too `long` for a model that reads `reach`; None for a sound one."""
    if reason := value_spans.left_out_reason(episode):
        return reason
    lengths = [sum(map(_length, turns)) for turns in segments(episode)]
    return "long" if max(lengths) + prompt > reach else None


def pack_episode(episode: Episode, prompt: list[int], behind: list[int]) -> PackedEpisode:
    """The samples, with `prompt` behind every state; `behind` are the last state's own ids, of an
    episode that was cut off there (values.py). Streams: `shadow` labels the prompts' tokens;
    `turn` is an action's place in its segment, and a state's on its prompt's last token, where
    `value_at` is 1, `reward` the state's, and `graded` 1 if its value is trained: not that of a
    state after which the episode was cut off, which has `bootstrap` 1, nor of one that a restart
    replaced."""
    earned = [turn.reward for turn in episode.turns]
    done = episode.stop == "done"
    rewards = [*earned[:-1], 0.0, earned[-1]] if done else [*earned, 0.0]
    samples, begin, parts = [], 0, segments(episode)
    for i, turns in enumerate(parts):
        end, last = begin + len(turns), i == len(parts) - 1
        earned_here = [*rewards[begin:end], rewards[-1] if last else 0.0]
        sample = _states(earned_here, turns, prompt, behind if last else [])
        sample.streams["graded"][-1] = float(last and done)
        sample.streams["bootstrap"][-1] = float(last and not done)
        samples.append(sample)
        begin = end
    return PackedEpisode(episode, samples, rewards)


def bootstrap_across_restarts(
    packed: PackedEpisode, advantages: list[float], gae_lambda: float
) -> None:
    """Where a restart ends a segment, its last reward becomes what GAE expects of the turn that
    follows: V + gae_lambda A, as read before the update."""
    turn = 0
    for sample in packed.samples[:-1]:
        turn += turns_of(sample)
        sample.streams["reward"][-1] = packed.values[turn] + gae_lambda * advantages[turn]


def state_values(samples: list[Sample], rows: list[list[float]]) -> list[float]:
    """V_0 … V_n of an episode from one value for each token of its samples; a state that a restart
    replaced does not count."""
    found: list[float] = []
    for sample, row in zip(samples, rows, strict=True):
        at = zip(sample.streams["value_at"], row, strict=True)
        found = [*found[:-1], *(value for here, value in at if here)]
    return found


def turns_of(sample: Sample) -> int:
    """How many actions a packed sample has: one fewer than states."""
    return int(sum(sample.streams["value_at"])) - 1


def segments(episode: Episode) -> list[list[Turn]]:
    """The episode's turns, cut where the context was begun anew: by a world or generator of one's
    own, since play here never does it (chat.py refuses a template that rewrites history)."""
    parts: list[list[Turn]] = []
    for i, turn in enumerate(episode.turns):
        if i == 0 or turn.restart:
            parts.append([])
        parts[-1].append(turn)
    return parts


def _states(
    rewards: list[float], turns: list[Turn], prompt: list[int], behind: list[int]
) -> Sample:
    """s_0 cp_0 a_0 o_0 cp_1 … a_{n-1} o_{n-1} cp_n: a segment of n turns under its n + 1 rewards,
    whose last observation is `behind`."""
    sample = Sample([], [], {name: [] for name in STREAMS})
    for k, reward in enumerate(rewards):
        _append(sample, turns[k].observation_ids if k < len(turns) else behind)
        _append(sample, prompt, shadow=k + 1)
        at_end = {"turn": k, "value_at": 1, "reward": reward, "graded": 1}
        for name, number in at_end.items():
            sample.streams[name][-1] = float(number)
        _append(sample, turns[k].action_ids if k < len(turns) else [], trained=1, turn=k)
    return sample


def _append(sample: Sample, ids: list[int], trained: int = 0, **numbers: int) -> None:
    sample.ids += ids
    sample.mask += [trained] * len(ids)
    for name, row in sample.streams.items():
        row += [float(numbers.get(name, 0))] * len(ids)


def _length(turn: Turn) -> int:
    return len(turn.observation_ids) + len(turn.action_ids)
