"""Mixed precision computes in bfloat16 and keeps float32 weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.losses import clipped_ratio, nll
from agentrl_cli.config.compose import check, compose
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Sample
from agentrl_cli.models.forward import Passes, add_logprobs, collate, forward
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.training.learner import Learner
from tests.builders.models import SAMPLES, SPECS, model_config


def learner(folder: Path, precision: torch.dtype | None) -> tuple[Learner, ModelSet]:
    models = ModelSet(model_config(folder), SPECS, "cpu", 0, passes=Passes(precision))
    made = Learner(models, SPECS, microbatch_tokens=64, seed=0, publish=lambda name: None)
    return made, models


def weights(models: ModelSet) -> dict[str, torch.Tensor]:
    return {name: w.detach().clone() for name, w in models.weights("policy").items()}


def test_mixed_precision_is_bfloat16_or_none():
    cfg = check(compose(["hardware.mixed_precision=bf16"]))
    assert cfg.hardware.mixed_precision == "bf16"
    assert check(compose([])).hardware.mixed_precision is None
    with pytest.raises(UserError, match="mixed_precision"):
        check(compose(["hardware.mixed_precision=fp8"]))


def test_float32_loss_equals_plain_forward(model_folder: Path):
    made, models = learner(model_folder, None)
    module = models.module("policy")
    loss = -forward(module, collate(SAMPLES)).logprobs.sum() / sum(sum(s.mask) for s in SAMPLES)
    metrics = made.run(iter([Phase("sft", SAMPLES, nll)]), 0)
    assert metrics["sft/loss"] == pytest.approx(loss.item(), rel=1e-6)
    mixed, _ = learner(model_folder, torch.bfloat16)
    coarse = mixed.run(iter([Phase("sft", SAMPLES, nll)]), 0)
    assert coarse["sft/loss"] != pytest.approx(loss.item(), rel=1e-6)
    assert coarse["sft/loss"] == pytest.approx(loss.item(), rel=0.05)


def test_mixed_precision_keeps_float32_weights(model_folder: Path):
    made, models = learner(model_folder, torch.bfloat16)
    before = weights(models)
    losses = [made.run(iter([Phase("sft", SAMPLES, nll)]), step)["sft/loss"] for step in range(4)]
    assert losses[-1] < losses[0]
    for name, weight in weights(models).items():
        assert weight.dtype == torch.float32 and not torch.equal(weight, before[name])


def test_first_ratio_is_one(model_folder: Path):
    """Old and new log-probs are computed alike."""
    made, models = learner(model_folder, torch.bfloat16)
    samples = [Sample(s.ids, s.mask, {"advantage": [float(m) for m in s.mask]}) for s in SAMPLES]
    add_logprobs(models.forward("policy"), samples, "old_logprob")
    loss = partial(clipped_ratio, clip_eps=0.2)
    metrics = made.run(iter([Phase("policy", samples, loss)]), 0)
    assert metrics["policy/ratio"] == 1 and metrics["policy/approx_kl"] == 0
