"""What the shipped configurations of Self-AC ask of the critic."""

from __future__ import annotations

import pytest
import torch

from agentrl_cli.config.compose import as_dataclass, check, compose
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core.types import Message
from agentrl_cli.models.load import load_base
from agentrl_cli.rollout.chat_template import Chat

SLIDES = [f"{env}_self_ac_slides" for env in ("twentyq", "math", "tau_mini", "wiki")]


def test_bundled_models_get_their_forecast_instruction():
    forecast = compose(["algo=nlac"]).algo.prompts.forecast
    cfg = check(compose(["algo=self_ac", "env=arithmetic", "model=tiny"]))
    chat = Chat(load_base(as_dataclass(cfg.model, ModelConfig), torch.device("cpu"), 0)[1])
    asked = chat.encode_raw(cfg.algo.critic_prompt)
    assert asked == chat.extend([Message("user", forecast)], None)


@pytest.mark.parametrize("preset", SLIDES)
def test_slides_presets_follow_the_slides(preset: str):
    algo = check(compose([f"experiment={preset}"])).algo
    assert algo.critic_prompt == (
        "{closing}system: Critic Mode! Evaluate the current state with a single expressive word:"
        "{closing}assistant:"
    )
    said = {
        "td_steps": 5, "alpha": pytest.approx(1 / 3), "gamma": 1.0, "ratio": "turn",
        "clip_eps": 0.2, "gae_lambda": 1.0, "critic_warmup": 0, "thought_tokens": 0,
    }  # fmt: skip
    assert {key: algo[key] for key in said} == said
    assert algo.optimizer.head_lr is None and not algo.advanced.normalise_advantages
    assert algo.advanced.critic_grad == "full"


@pytest.mark.parametrize(
    ("model", "ratio"), [("model=tiny", "turn"), ("model=hf model.path=x", "turn_geo")]
)
def test_model_chooses_the_ratio_of_a_turn(model: str, ratio: str):
    chosen = ["algo=self_ac", *model.split()]
    assert check(compose(chosen)).algo.ratio == ratio
    assert check(compose([*chosen, "ablation=slides"])).algo.ratio == "turn"
    assert check(compose([*chosen, "algo.ratio=token"])).algo.ratio == "token"
