"""Settings outside their limits are refused, for objects built in Python too."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any, get_type_hints

import pytest

from agentrl_cli.algos import settings
from agentrl_cli.algos.sft import SFT
from agentrl_cli.core.errors import UserError
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from tests.builders.archer import archer
from tests.builders.ppo import ppo
from tests.builders.stepagent import eto, implicit, inverse


def sft(**changes: Any) -> SFT:
    usual = {"only_success": False, "epochs": 1, "minibatch_tokens": 0}
    return SFT(optimizer=OptimizerSpec(lr=1e-3), **{**usual, **changes})


@pytest.mark.parametrize(
    ("build", "name", "value", "code"),
    [
        (sft, "epochs", 0, "too-small"),
        (sft, "minibatch_tokens", -1, "too-small"),
        (ppo, "clip_eps", -0.1, "too-small"),
        (ppo, "value_coef", float("nan"), "too-small"),
        (ppo, "gamma", 1.01, "too-large"),
        (archer, "critic_warmup", -1, "too-small"),
        (archer, "ema_decay", 1.5, "too-large"),
        (eto, "beta", -1.0, "too-small"),
        (implicit, "expert_states_per_update", -1, "too-small"),
        (inverse, "num_samples", 1, "too-small"),
        (OptimizerSpec, "lr", 11.0, "too-large"),
    ],
)
def test_values_outside_limits_are_refused(build: Any, name: str, value: float, code: str):
    with pytest.raises(UserError, match=name) as caught:
        build(**{name: value})
    assert caught.value.code == code


def test_every_setting_has_a_description():
    for name, cls in vars(settings).items():
        if name.endswith("Config"):
            for key, kind in get_type_hints(cls, include_extras=True).items():
                described = getattr(kind, "__metadata__", None)
                assert is_dataclass(kind) or (described and described[0].description), (name, key)


@pytest.mark.parametrize(
    ("rate", "code"), [(0.0, "too-small"), (-1e-3, "too-small"), (float("nan"), "too-large")]
)
def test_head_rate_must_be_positive(rate: float, code: str):
    with pytest.raises(UserError) as caught:
        OptimizerSpec(lr=1e-3, head_lr=rate)
    assert caught.value.code == code


def test_head_rate_needs_a_head():
    optimizer = OptimizerSpec(lr=1e-3, head_lr=1e-2)
    ModelSpec(kind="trained", generates=True, optimizer=optimizer, head="value")
    with pytest.raises(UserError) as caught:
        ModelSpec(kind="trained", generates=True, optimizer=optimizer)
    assert caught.value.code == "head-lr-without-head"
