"""REINFORCE with a group baseline: each turn is weighted by the reward of its episode minus the
mean reward of the episodes of the same task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from agentrl_cli.algos.base import Algorithm, Phase
from agentrl_cli.algos.losses import nll
from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.core.types import Episode
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer


@dataclass(kw_only=True)
class MyMethod(Algorithm):
    """The fields are the keys of conf/algo/my_method.yaml."""

    group_size: int
    optimizer: OptimizerSpec

    def models(self) -> dict[str, ModelSpec]:
        return {"policy": ModelSpec(kind="trained", generates=True, optimizer=self.optimizer)}

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        rewards = defaultdict(list)
        for episode in episodes:
            rewards[episode.group].append(episode.reward)
        samples = []
        for episode in episodes:
            weight = {"weight": episode.reward - fmean(rewards[episode.group])}
            samples += episode_samples(episode, lambda index, turn, weight=weight: weight)
        yield Phase("policy", samples, nll)
