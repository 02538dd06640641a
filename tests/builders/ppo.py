"""PPO on random models, and played episodes to credit, for tests."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.ppo import PPO
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.types import Episode, Message
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from tests.builders.critics import bound, randomise_heads, with_rewards
from tests.builders.nlac import WON, episode

LEVELS = ("turn", "token")


def ppo(**changes) -> PPO:
    usual = {
        "level": "turn", "gamma": 0.9, "gae_lambda": 0.8,
        "normalise_advantages": False, "clip_eps": 0.2,
        "value_clip": 0.0, "value_coef": 0.5, "kl_coef": 0.0, "entropy_coef": 0.0, "epochs": 1,
        "critic_warmup": 0, "minibatch_tokens": 0, "optimizer": OptimizerSpec(lr=1e-2),
    }  # fmt: skip
    return PPO(**{**usual, **changes})


def ppo_with_values(
    folder: Path, lora: LoraConfig | None = None, **changes
) -> tuple[PPO, ModelSet]:
    algo = ppo(**changes)
    models = bound(algo, folder, lora=lora)
    randomise_heads(models, "policy")
    return algo, models


def phase_of(algo: PPO, episodes: list[Episode]) -> Phase:
    (phase,) = algo.update(episodes, ReplayBuffer(None, 1))
    return phase


def cut(stop: str = "truncated", closing: str = "Too late.") -> Episode:
    made = deepcopy(episode("cut", ["Is it big?", "Is it red?"], success=False, stop=stop))
    made.final_observation = [Message("user", closing)]
    return with_rewards(made, 0.25, 0.5)


def won() -> Episode:
    return with_rewards(deepcopy(WON), 0.1, -0.2, 1.0)
