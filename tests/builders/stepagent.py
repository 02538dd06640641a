"""StepAgent and DPO on random models with a few demonstrations, and a bandit, for tests."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from typing import Any

from agentrl_cli.algos.base import Algorithm, Phase
from agentrl_cli.algos.dpo import DPO
from agentrl_cli.algos.samples import completion_sample
from agentrl_cli.algos.sft import SFT
from agentrl_cli.algos.stepagent import StepAgentImplicit, StepAgentInverse
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.types import Episode
from agentrl_cli.generators.base import Generator
from agentrl_cli.generators.hf import HFGenerator
from agentrl_cli.models.forward import token_logprobs
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from tests.builders.critics import Weights, bound, learner
from tests.builders.nlac import CHAT, SAMPLING, episode
from tests.builders.ppo import ppo

ADAM = OptimizerSpec(lr=1e-3)
STILL = OptimizerSpec(lr=0.0)
FORMS = ("logit", "neg_log_d", "log_one_minus_d")
SHOWN = episode("shown", ["Is it big?", "Maybe.\nIs it red?", "Is it a cat?"], success=True)
OTHER = episode("other", ["Is it old?", "Is it an owl?"], success=True)


def implicit(**changes: Any) -> StepAgentImplicit:
    usual: dict[str, Any] = {
        "expert_states_per_update": 0, "attempt": "turn", "beta": 0.1, "nll_coef": 0.0,
        "reference": "start", "reference_epochs": 3, "epochs": 1, "minibatch_tokens": 0,
        "optimizer": ADAM,
    }  # fmt: skip
    return StepAgentImplicit(**{**usual, **changes})


def inverse(ppo_changes: dict[str, Any] | None = None, **changes: Any) -> StepAgentInverse:
    usual: dict[str, Any] = {
        "expert_states_per_update": 3, "num_samples": 2, "attempt": "turn", "rollout": "fragment",
        "reward": "logit", "reward_clip": 5.0, "nll_coef": 0.0,
        "discriminator_epochs": 1, "discriminator_turns_per_step": 0,
        "discriminator_optimizer": ADAM, "ppo": ppo(**{"optimizer": ADAM, **(ppo_changes or {})}),
    }  # fmt: skip
    return StepAgentInverse(**{**usual, **changes})


def eto(**changes: Any) -> DPO:
    usual: dict[str, Any] = {
        "beta": 0.1, "nll_coef": 0.0, "reference": "start", "epochs": 1, "minibatch_tokens": 0,
        "optimizer": ADAM,
    }  # fmt: skip
    return DPO(**{**usual, **changes})


def shown(
    algo: Algorithm,
    folder: Path,
    demos: list[Episode],
    generator: Generator | None = None,
    lora: LoraConfig | None = None,
) -> ModelSet:
    models = bound(algo, folder, generator, lora)
    algo.context.demos = demos
    return models


def phases(algo: Algorithm, episodes: list[Episode] | None = None) -> dict[str, Phase]:
    return {p.name: p for p in algo.update(episodes or [], ReplayBuffer(None, 1))}


# a bandit: one state, four arms, an expert that draws them with known chances

ARMS = ("one", "two", "three", "four")
EXPERT = (0.55, 0.3, 0.15, 0.0)
EVEN = (0.25, 0.25, 0.25, 0.25)


def pulls(chances: tuple[float, ...], count: int) -> list[Episode]:
    """Demonstrations of one action each, as near to these chances as whole numbers allow."""
    arms = [
        arm for arm, chance in zip(ARMS, chances, strict=True) for _ in range(round(chance * count))
    ]
    found = [episode(f"pull{i}", [arm], success=True) for i, arm in enumerate(arms)]
    for one in found:
        one.turns[0].observation_ids = found[0].turns[0].observation_ids
    random.Random(0).shuffle(found)
    return found


@dataclass
class Bandit:
    """A policy that begins by pulling all arms alike, and an algorithm that is to teach it."""

    algo: Algorithm
    folder: Path
    demos: list[Episode]
    cycle: int = 0

    def __post_init__(self) -> None:
        self.models = shown(self.algo, self.folder, self.demos)
        self.generator = HFGenerator(Weights(self.models), max_batch=256, cache_tokens=0)
        self.algo.context.generator = self.generator
        self.algo.context.sampling = replace(SAMPLING, max_tokens=4)
        self._begin_evenly()
        self.learner = learner(self.algo, self.models, self.generator)

    def _begin_evenly(self) -> None:
        even = SFT(
            only_success=False, epochs=60, minibatch_tokens=0, optimizer=OptimizerSpec(lr=1e-2)
        )
        even.demos = pulls(EVEN, 16)
        learner(even, self.models).run(even.update([], ReplayBuffer(None, 1)), 0)
        if "reference" in self.models.names:
            self.models.ema_update("reference", "policy", 0.0)

    def step(self) -> dict[str, float]:
        self.algo.context.step = self.cycle
        self.cycle += 1
        return self.learner.run(self.algo.update([], ReplayBuffer(None, 1)), self.cycle)

    def chances(self) -> list[float]:
        """The policy's exact chance of every arm; what is missing to 1 is any other text."""
        state = self.demos[0].state_ids(0)
        samples = [completion_sample(state, CHAT.encode_action(arm)) for arm in ARMS]
        rows = token_logprobs(self.models.forward("policy"), samples)
        return [exp(sum(row)) for row in rows]

    def distance(self) -> float:
        said = Counter(demo.turns[0].action for demo in self.demos)
        shares = [said[arm] / len(self.demos) for arm in ARMS]
        mine = self.chances()
        other = 1 - sum(mine)
        return (sum(abs(a - b) for a, b in zip(shares, mine, strict=True)) + other) / 2

    def nearer(self) -> float:
        self.step()
        return self.distance()


def buffer() -> ReplayBuffer:
    return ReplayBuffer(None, 1)
