"""How samples divide into optimizer steps, and what one step of AdamW does."""

from __future__ import annotations

import math

import pytest
import torch

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.losses import nll
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.types import Sample
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.training.learner import Optimizer, split_steps
from tests.builders.models import texts

LORA = LoraConfig(rank=4, alpha=8, targets=["all-linear"])


@pytest.mark.parametrize("prompt", [1, 40])
def test_step_size_counts_trained_tokens(prompt):
    samples = [Sample([7] * prompt + [8] * 3, [0] * prompt + [1] * 3) for _ in range(8)]
    steps = split_steps(Phase("x", samples, nll, minibatch_tokens=6), 0)
    assert [sum(map(len, step)) for step in steps] == [2, 2, 2, 2]


def test_step_size_counts_units_without_tokens():
    samples = [Sample([7] * 9, [0] * 9) for _ in range(8)]
    phase = Phase("critic", samples, nll, minibatch_tokens=5, units=lambda sample: 1.5)
    assert [sum(map(len, step)) for step in split_steps(phase, 0)] == [3, 3, 2]


def test_incomplete_groups_are_an_error():
    with pytest.raises(ValueError, match="keeps 2 samples together but has 3"):
        split_steps(Phase("dpo", texts(3), nll, keep_together=2), 0)


@pytest.mark.parametrize("lr", [1e-3, 3e-5])
@pytest.mark.parametrize(("warmup", "decay"), [(0, 0), (7, 0), (7, 40), (0, 40), (20, 12)])
@pytest.mark.parametrize("restart", [0, 9])
def test_learning_rates_equal_stored_runs_bitwise(lr, warmup, decay, restart):
    def expected(step: int) -> float:
        if step < warmup:
            return lr * (step + 1) / warmup
        if decay == 0:
            return lr
        height, share = lr, min(1.0, (step - warmup) / max(1, decay - warmup))
        if restart and step >= decay:
            height = lr / 2 ** ((step - decay) // restart + 1)
            share = (step - decay) % restart / restart
        return height * (0.5 * (1 + math.cos(math.pi * share)))

    spec = OptimizerSpec(lr=lr, warmup_steps=warmup, decay_steps=decay, restart_steps=restart)
    optimizer = Optimizer([("w", torch.nn.Parameter(torch.ones(1)))], spec)
    for step in range(80):
        assert optimizer.lr == expected(step), step
        optimizer.step()
        assert optimizer.adam.param_groups[0]["lr"] == expected(step)


def test_first_adamw_step_by_hand():
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = Optimizer([("w", weight)], OptimizerSpec(lr=0.1, weight_decay=0.5))
    weight.grad = torch.tensor([3.0])
    optimizer.step()
    assert weight.item() == pytest.approx(2.0 * (1 - 0.1 * 0.5) - 0.1, abs=1e-6)
    assert weight.grad is None


def test_small_steps_on_bfloat16_weights_add_up():
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = Optimizer([("w", weight)], OptimizerSpec(lr=1e-4))
    for _ in range(200):
        weight.grad = torch.ones(1, dtype=torch.bfloat16)
        optimizer.step()
    assert weight.item() == pytest.approx(0.98, abs=0.004)


def body_and_head(
    lr: float, head_lr: float | None = None, warmup: int = 0
) -> tuple[Optimizer, torch.nn.Parameter, torch.nn.Parameter]:
    body, head = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    spec = OptimizerSpec(lr=lr, head_lr=head_lr, warmup_steps=warmup)
    return Optimizer([("w", body), ("head.weight", head)], spec), body, head


def test_head_has_its_own_learning_rate():
    optimizer, body, head = body_and_head(0.1, 2.0, warmup=2)
    moved = []
    for _ in range(3):
        before = body.item(), head.item()
        body.grad, head.grad = torch.ones(1), torch.ones(1)
        optimizer.step()
        moved.append((before[0] - body.item(), before[1] - head.item()))
    # with equal gradients Adam's step is its rate: half of it in the first of two warm-up steps
    assert moved == [pytest.approx(pair, rel=1e-5) for pair in [(0.05, 1), (0.1, 2), (0.1, 2)]]


def in_bfloat16() -> tuple[Optimizer, list[torch.nn.Parameter]]:
    """An optimizer of two bfloat16 weights that have gradients."""
    weights = [torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = Optimizer([("a", weights[0]), ("b", weights[1])], OptimizerSpec(lr=1e-4))
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    return optimizer, weights


def test_gradients_exist_once_during_a_step():
    optimizer, weights = in_bfloat16()
    masters, alive = list(optimizer.masters.values()), []

    def look(*_: object) -> None:
        alive.extend(tensor.grad is not None for tensor in [*weights, *masters])

    optimizer.adam.register_step_pre_hook(look)
    optimizer.step()
    assert alive == [False, False, True, True]
    assert all(tensor.grad is None for tensor in [*weights, *masters])


def test_state_without_masters_is_refused():
    optimizer, _ = in_bfloat16()
    optimizer.step()
    found = {key: t for key, t in optimizer.tensors().items() if not key.endswith("|master")}
    with pytest.raises(ValueError, match=r"a\|master is missing"):
        optimizer.load(found, 1)
