"""What tests of StepAgent share."""

from __future__ import annotations

from agentrl_cli.algos.base import OptimizerSpec
from agentrl_cli.buffer import ReplayBuffer

STILL = OptimizerSpec(lr=0.0)
FORMS = ("logit", "unlike_agent", "like_expert")


def buffer() -> ReplayBuffer:
    return ReplayBuffer(None, 1)
