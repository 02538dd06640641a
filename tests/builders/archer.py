"""ArCHer on small models, for tests."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import torch

from agentrl_cli.algos.archer import ArCHer
from agentrl_cli.algos.base import Phase
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from tests.builders.critics import bound, learner, randomise_heads
from tests.builders.models import disturb
from tests.builders.nlac import LOST, WON, Troupe, filled, troupe

Q, V = 0, 1


ACTION = "Is it a fish?"


def archer(**changes) -> ArCHer:
    usual = {
        "episodes_per_update": 5, "critic_updates": 1, "critic_warmup": 0, "buffer_size": 100,
        "action": "fresh", "gamma": 0.9, "ema_decay": 0.75,
        "num_critics": 1, "head_layers": 0, "normalise_advantages": False, "clip_eps": 0.2,
        "actor_states": 0, "actor_epochs": 1, "minibatch_tokens": 0,
        "optimizer": OptimizerSpec(lr=1e-2),
        "critic_optimizer": OptimizerSpec(lr=1e-2),
    }  # fmt: skip
    return ArCHer(**{**usual, **changes})


def archer_with_values(
    folder: Path, lora: LoraConfig | None = None, **changes
) -> tuple[ArCHer, ModelSet, Troupe]:
    """The algorithm; critic and target differ, and no value of theirs is zero."""
    algo, generator = archer(**changes), troupe(act=ACTION)
    models = bound(algo, folder, generator, lora)
    disturb(models, "target")
    randomise_heads(models, "critic", "target")
    with torch.no_grad():
        for weight in models.heads["target"].parameters():
            weight.mul_(-0.5)
    return algo, models, generator


def phases(algo: ArCHer, episodes: list[Episode], buffer: ReplayBuffer) -> list[Phase]:
    return list(algo.update(episodes, buffer))


def run_update(algo: ArCHer, models: ModelSet, step: int = 0) -> dict[str, float]:
    fresh, buffer = [deepcopy(WON), deepcopy(LOST)], filled(WON, LOST)
    algo.context.step = step
    return learner(algo, models).run(algo.update(fresh, buffer), step)


def targets(samples: list[Sample], what: str) -> list[float]:
    return [
        target
        for sample in samples
        for target, at in zip(
            sample.per_token[f"{what}_target"], sample.per_token[f"{what}_at"], strict=True
        )
        if at
    ]
