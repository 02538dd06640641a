"""A random model as a folder, and model sets built on it, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch

from agentrl_cli.config.settings import LoraConfig, ModelConfig
from agentrl_cli.core.types import Sample
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from tests.builders.tiny_models import tiny_model, tiny_tokenizer

LORA = LoraConfig(rank=4, alpha=8, targets=["q_proj", "v_proj"])
ADAM = OptimizerSpec(lr=1e-2)
SPECS = {
    "policy": ModelSpec(kind="trained", generates=True, optimizer=ADAM),
    "target": ModelSpec(kind="ema", generates=True),
    "reference": ModelSpec(kind="frozen", generates=False),
    "critic": ModelSpec(kind="trained", generates=False, optimizer=ADAM, head="value"),
}
SAMPLES = [
    Sample([5, 6, 7, 8, 9], [0, 0, 1, 1, 0]),
    Sample([10, 11, 12], [0, 1, 1]),
    Sample([13, 14, 15, 16], [0, 0, 0, 1]),
]


def write_model(path: Path, *, width: int = 64, head: int = 32) -> Path:
    """A random model and its tokenizer as a Hugging Face folder; from here on one torch thread."""
    torch.set_num_threads(1)  # a tiny model is slower on two
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer, width=width, head=head).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def model_config(
    folder: Path | str,
    *,
    dtype: Any = "float32",
    lora: LoraConfig | None = None,
    checkpointing: bool = False,
    attention: str = "sdpa",
    weights: str | None = None,
    chat_template: str | None = None,
    system_role: Literal["system", "user"] = "system",
) -> ModelConfig:
    return ModelConfig(
        path=str(folder), weights=weights, dtype=dtype, attention=attention,
        gradient_checkpointing=checkpointing, lora=lora, chat_template=chat_template,
        system_role=system_role,
    )  # fmt: skip


def build(
    folder: Path | str, lora: LoraConfig | None = None, *, seed: int = 0, dtype: Any = "float32"
) -> ModelSet:
    return ModelSet(model_config(folder, dtype=dtype, lora=lora), SPECS, "cpu", seed)


@torch.no_grad()
def disturb(models: ModelSet, name: str, seed: int = 1) -> None:
    torch.manual_seed(seed)
    for weight in models.weights(name).values():
        weight.add_(torch.randn_like(weight) * 0.1)


def texts(n: int = 12) -> list[Sample]:
    """Samples of several lengths: a prompt of one token, then tokens that follow from it."""
    return [
        Sample([20 + i % 4] + [30 + i % 4] * (1 + i % 5), [0] + [1] * (1 + i % 5)) for i in range(n)
    ]
