"""Self-AC on a small random model, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.self_ac import SelfAC
from agentrl_cli.algos.settings import SelfACAdvanced
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.models.forward import Batch, Outputs, collate, forward
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from tests.builders.critics import bound
from tests.builders.nlac import episode

PROMPT = "{closing} Judge"
ADVANCED = SelfACAdvanced(normalise_advantages=False, values="recomputed", critic_grad="full")


def settings(**changes: Any) -> dict[str, Any]:
    """Plain settings: no discount, the product of a turn, half the loss for each part."""
    usual = {
        "advanced": ADVANCED, "critic_prompt": PROMPT, "ratio": "turn", "clip_eps": 0.2,
        "gamma": 1.0, "gae_lambda": 1.0, "alpha": 0.5, "td_steps": 5, "critic_warmup": 0,
        "layout": "visible_first", "thought_tokens": 0, "epochs": 1, "minibatch_tokens": 0,
        "optimizer": OptimizerSpec(lr=1e-2),
    }  # fmt: skip
    return {**usual, **changes}


def self_ac(
    folder: Path | str, lora: LoraConfig | None = None, attention: str = "sdpa", **changes: Any
) -> tuple[SelfAC, ModelSet]:
    algo = SelfAC(**settings(**changes))
    return algo, bound(algo, Path(folder), lora=lora, attention=attention)


def played(name: str, rewards: Sequence[float], *, stop: str = "done") -> Episode:
    """An episode with one turn for each reward, of actions of unequal lengths."""
    actions = ["Is it a cat?" * (1 + k % 2) for k in range(len(rewards))]
    made = episode(name, actions, success=rewards[-1] > 0, stop=stop)
    for turn, reward in zip(made.turns, rewards, strict=True):
        turn.reward = reward
    return made


def phase_of(algo: SelfAC, *episodes: Episode) -> Phase:
    (phase,) = algo.update(list(episodes), ReplayBuffer(None, 1))
    return phase


def forward_pass(models: ModelSet, samples: list[Sample]) -> tuple[Outputs, Batch]:
    batch = collate(samples)
    return forward(models.module("policy"), batch, models.head("policy")), batch


def outputs_with_values(phase: Phase, values: list[list[float]]) -> tuple[Outputs, Batch]:
    """A pass that reads these values in the states of each sample, with the old log-probs."""
    batch = collate(phase.samples)
    token_values = torch.zeros_like(batch.mask)  # [batch, tokens]
    at_states = batch.per_token["value_at"].bool()
    token_values[at_states] = torch.tensor([value for row in values for value in row])
    old = batch.per_token["old_logprob"].clone()
    entropy = torch.zeros_like(old)
    return Outputs(old.requires_grad_(), entropy, token_values.requires_grad_()), batch
