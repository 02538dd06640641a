"""Demonstrations for tests."""

from __future__ import annotations

from typing import Any

from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.envs.twentyq.env import TwentyQ
from tests.fakes.coin import CoinEnv

COIN = CoinEnv(turns=2)
SYSTEM = {"role": "system", "content": "Say something."}
SEEN = {"role": "user", "content": "This is train-0."}
SAID = {"role": "assistant", "content": "Is it  a dog?"}
MORE = {"role": "user", "content": "Go on."}
GOOD = [SYSTEM, SEEN, SAID, MORE, SAID, MORE]


def twentyq(**changes: Any) -> TwentyQ:
    overrides = [f"env.{key}={value}" for key, value in changes.items()]
    skip = ("algo", "hardware", "model", "rollout")
    return build(check(compose(["env=twentyq", *overrides]), skip=skip).env)
