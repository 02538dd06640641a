"""Adapters compute in the number format of their base, and keep no more for the backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.types import Sample
from agentrl_cli.models.forward import collate, forward
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.training.learner import Optimizer
from tests.builders.models import ADAM, SPECS, model_config, write_model

LORA = LoraConfig(rank=4, alpha=8, targets=["all-linear"])
TEXT = Sample([5 + i % 40 for i in range(200)], [0, *[1] * 199])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def build(folder, dtype: str, lora: LoraConfig | None = LORA) -> ModelSet:
    return ModelSet(model_config(folder, dtype=dtype, lora=lora), SPECS, "cpu", 0)


def kept_bytes(models: ModelSet, dtype: torch.dtype) -> int:
    """Bytes of that format which one text leaves for its backward pass, weights left out."""
    module, kept = models.module("policy"), {}
    weights = {weight.data_ptr() for weight in module.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.dtype == dtype and tensor.data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no place is reused
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        forward(module, collate([TEXT])).logprobs.sum()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_have_base_dtype_and_float32_masters(folder, dtype):
    models = build(folder, dtype)
    optimizer = Optimizer(models.trainable("policy"), ADAM)
    assert {w.dtype for w in models.module("policy").parameters()} == {getattr(torch, dtype)}
    assert {master.dtype for master in optimizer.masters.values()} == {torch.float32}


def test_bfloat16_adapters_keep_no_float32_activations(folder):
    adapted, full = (build(folder, "bfloat16", lora) for lora in (LORA, None))
    assert kept_bytes(adapted, torch.float32) <= kept_bytes(full, torch.float32)
