"""Self-AC on a small random model, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agentrl_cli.algos.base import Context, Phase
from agentrl_cli.algos.self_ac.algorithm import Advanced, SelfAC
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.models.policy import Batch, Outputs, forward, pack
from agentrl_cli.models.set import ModelSet
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from tests.builders.models import model_config
from tests.builders.nlac import CHAT, SAMPLING, episode, troupe

PROMPT = "{closing} Judge"


def settings(**changes: Any) -> dict[str, Any]:
    """Plain settings: no discount, the product of a turn, half the loss for each part."""
    usual = {
        "advanced": Advanced(normalise_advantages=False, values="recomputed"),
        "critic_prompt": PROMPT, "ratio": "turn", "clip": 0.2, "discount": 1.0, "gae_lambda": 1.0,
        "alpha": 0.5, "td_steps": 5, "critic_grad": "full", "layout": "visible_first",
        "thought_tokens": 0, "epochs": 1, "tokens_per_step": 0, "optimizer": OptimizerSpec(lr=1e-2),
    }  # fmt: skip
    return {**usual, **changes}


def self_ac(
    folder: Path | str, lora: LoraConfig | None = None, attention: str = "sdpa", **changes: Any
) -> tuple[SelfAC, ModelSet]:
    """The algorithm, bound to models of its own."""
    algo = SelfAC(**settings(**changes))
    config = model_config(folder, lora=lora, attention=attention)
    models = ModelSet(config, algo.models(), "cpu", 0)
    algo.bind(
        Context(
            chat=CHAT, models=models, generator=troupe(), sampling=SAMPLING, seed=0,
            probe=lambda starts: [], indistinguishable_tasks=lambda played, turn: [played.task],
        )
    )  # fmt: skip
    return algo, models


def played(name: str, rewards: Sequence[float], *, stop: str = "done") -> Episode:
    """An episode with one turn for each reward, of actions of unequal lengths."""
    actions = ["Is it a cat?" * (1 + k % 2) for k in range(len(rewards))]
    made = episode(name, actions, success=rewards[-1] > 0, stop=stop)
    for turn, reward in zip(made.turns, rewards, strict=True):
        turn.reward = reward
    return made


def phase_of(algo: SelfAC, *episodes: Episode) -> Phase:
    """The one phase of an update."""
    (phase,) = algo.update(list(episodes), ReplayBuffer(None, 1))
    return phase


def passed(models: ModelSet, samples: list[Sample]) -> tuple[Outputs, Batch]:
    """What the learner computes of one micro-batch."""
    batch = pack(samples)
    return forward(models.module("policy"), batch, models.head("policy")), batch


def said(phase: Phase, values: list[list[float]]) -> tuple[Outputs, Batch]:
    """A pass that reads these values in the states of each sample, with the old log-probs."""
    batch = pack(phase.samples)
    read = torch.zeros_like(batch.mask)
    at = batch.streams["value_at"].bool()
    read[at] = torch.tensor([value for row in values for value in row])
    old = batch.streams["old_logprob"].clone()
    return Outputs(old.requires_grad_(), torch.zeros_like(old), read.requires_grad_()), batch
