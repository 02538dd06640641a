"""Games of Twenty Questions for tests."""

from __future__ import annotations

from typing import Any

from agentrl_cli.core.types import Task
from agentrl_cli.envs.twentyq.env import TwentyQ
from agentrl_cli.envs.twentyq.world import load_world

SMALL, FULL = load_world("small"), load_world("full")


def game(secret: str = "dog", **changes: Any) -> TwentyQ:
    settings = {
        "world": "small", "max_turns": 10, "reward": "win", "test_objects": 40, "split_seed": 0,
        "show_turns_left": True, "final_hint": "graded",
    }  # fmt: skip
    env = TwentyQ(**{**settings, **changes})
    env.reset(Task("t", "train", {"object": secret}), 0)
    return env


def reply_to(env: TwentyQ, action: str) -> str:
    return env.step(action).messages[0].content
