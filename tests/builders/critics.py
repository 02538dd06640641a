"""Algorithms with a scalar critic, bound to random models, for tests; and a game to learn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from agentrl_cli.algos.base import Algorithm, Context
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.generators.base import Generator
from agentrl_cli.generators.hf import HFGenerator
from agentrl_cli.models.forward import causal_lm, collate, forward
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.rollout.play import EpisodeStart, play
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from agentrl_cli.training.learner import Learner
from tests.builders.models import model_config
from tests.builders.nlac import CHAT, SAMPLING, troupe
from tests.fakes.coin import CoinEnv


def bound(
    algo: Algorithm,
    folder: Path,
    generator: Generator | None = None,
    lora: LoraConfig | None = None,
    attention: str = "sdpa",
) -> ModelSet:
    config = model_config(folder, lora=lora, attention=attention)
    models = ModelSet(config, algo.models(), "cpu", 0)
    algo.bind(
        Context(
            chat=CHAT, models=models, generator=generator or troupe(), sampling=SAMPLING, seed=0,
            probe=lambda starts: [], indistinguishable_tasks=lambda played, turn: [played.task],
        )
    )  # fmt: skip
    return models


@torch.no_grad()
def randomise_heads(models: ModelSet, *names: str) -> None:
    torch.manual_seed(3)
    for name in names:
        head = models.head(name)
        assert head is not None
        for weight in head.parameters():
            weight.copy_(torch.randn_like(weight) * 0.1)


@torch.no_grad()
def head_values(models: ModelSet, name: str, ids: list[int]) -> list[float]:
    """What the head of a model reads at the last of these ids, in a pass of their own."""
    batch = collate([Sample(ids, [0] * len(ids))])
    values = forward(models.module(name), batch, models.head(name)).values
    assert values is not None
    last = values[0, -1]
    return last.tolist() if last.dim() else [last.item()]


def learner(algo: Algorithm, models: ModelSet, generator: Generator | None = None) -> Learner:
    return Learner(
        models, algo.models(), microbatch_tokens=4096, seed=0,
        publish=lambda name: generator.mark_changed(name) if generator else None,
    )  # fmt: skip


@dataclass
class Weights:
    """The models as the generator asks for them."""

    models: ModelSet

    @property
    def device(self) -> torch.device:
        return self.models.device

    def module(self, name: str) -> PreTrainedModel:
        return causal_lm(self.models.module(name))


def success_while_learning(
    algo: Algorithm, folder: Path, steps: int, tokens: int, count: int = 64
) -> list[float]:
    """The share of `count` games of two turns of at most `tokens` tokens that each step won."""
    models = bound(algo, folder)
    generator = HFGenerator(Weights(models), max_batch=count, cache_tokens=0)
    algo.context.generator = generator
    algo.context.sampling = sampling = replace(SAMPLING, max_tokens=tokens)
    trainer, buffer = learner(algo, models, generator), ReplayBuffer(None, 4 * count)
    found = []
    for step in range(steps):
        algo.context.step = step
        task = CoinEnv(turns=2).tasks("train")[0]
        starts = [EpisodeStart(task, "g", step * count + i, f"{step}-{i}") for i in range(count)]
        played = play(
            starts, lambda: CoinEnv(turns=2), CHAT, generator, sampling, max_seq_len=200,
        )  # fmt: skip
        buffer.add(played)
        trainer.run(algo.update(played, buffer), step)
        found.append(sum(e.success for e in played) / count)
    return found


def with_rewards(played: Episode, *rewards: float) -> Episode:
    for turn, reward in zip(played.turns, rewards, strict=True):
        turn.reward = reward
    return played
