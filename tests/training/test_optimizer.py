"""How samples divide into optimizer steps, and what one step of AdamW does."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.losses import nll
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Sample
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.training.learner import split_steps
from agentrl_cli.training.optimizer import Optimizer
from tests.builders.models import texts

LORA = LoraConfig(rank=4, alpha=8, targets=["all-linear"])


@pytest.mark.parametrize("limit", [0, 1, 9, 17, 40, 10_000])
def test_steps_hold_every_sample_once_within_the_bound_and_evenly(limit):
    phase = Phase("x", texts(23), nll, tokens_per_step=limit)
    steps = split_steps(phase, seed=4)
    assert sorted(i for step in steps for group in step for i in group) == list(range(23))
    sizes = [sum(sum(phase.samples[i].mask) for group in step for i in group) for step in steps]
    if limit == 0:
        assert len(steps) == 1
    else:
        assert all(size <= limit or len(step) == 1 for size, step in zip(sizes, steps, strict=True))
        assert len(steps) >= min(23, sum(sizes) / limit)
    if limit in (17, 40):
        assert max(sizes) - min(sizes) <= 2 * max(sum(s.mask) for s in phase.samples)


@pytest.mark.parametrize("prompt", [1, 40])
def test_a_step_is_as_large_as_what_it_trains_however_long_the_prompts_are(prompt):
    samples = [Sample([7] * prompt + [8] * 3, [0] * prompt + [1] * 3) for _ in range(8)]
    steps = split_steps(Phase("x", samples, nll, tokens_per_step=6), 0)
    assert [sum(map(len, step)) for step in steps] == [2, 2, 2, 2]


def test_samples_of_which_only_a_head_learns_count_their_units():
    samples = [Sample([7] * 9, [0] * 9) for _ in range(8)]
    phase = Phase("critic", samples, nll, tokens_per_step=5, units=lambda sample: 1.5)
    assert [sum(map(len, step)) for step in split_steps(phase, 0)] == [3, 3, 2]


def test_samples_that_do_not_divide_into_groups_are_refused():
    with pytest.raises(ValueError, match="keeps 2 samples together but has 3"):
        split_steps(Phase("dpo", texts(3), nll, keep_together=2), 0)


def test_the_learning_rate_warms_up_then_falls_by_a_cosine_to_zero():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = Optimizer([("w", weight)], OptimizerSpec(lr=8.0, warmup_steps=4, decay_steps=12))
    rates = []
    for _ in range(14):
        rates.append(optimizer.lr)
        weight.grad = torch.ones(1)
        optimizer.step()
    assert rates[:5] == [2.0, 4.0, 6.0, 8.0, 8.0]
    assert rates[8] == pytest.approx(4.0)
    assert rates[12:] == [0.0, 0.0]
    assert all(a >= b for a, b in pairwise(rates[4:]))


@pytest.mark.parametrize("lr", [1e-3, 3e-5])
@pytest.mark.parametrize(("warmup", "decay"), [(0, 0), (7, 0), (7, 40), (0, 40), (20, 12)])
@pytest.mark.parametrize("restart", [0, 9])
def test_the_learning_rates_of_stored_runs_come_again_to_the_bit(lr, warmup, decay, restart):
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


def test_adamw_takes_the_first_step_by_hand():
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


def test_a_head_steps_at_a_rate_of_its_own_whose_schedule_has_the_bodys_shape():
    optimizer, body, head = body_and_head(0.1, 2.0, warmup=2)
    moved = []
    for _ in range(3):
        before = body.item(), head.item()
        body.grad, head.grad = torch.ones(1), torch.ones(1)
        optimizer.step()
        moved.append((before[0] - body.item(), before[1] - head.item()))
    # with equal gradients Adam's step is its rate: half of it in the first of two warm-up steps
    assert moved == [pytest.approx(pair, rel=1e-5) for pair in [(0.05, 1), (0.1, 2), (0.1, 2)]]


def test_a_head_without_a_rate_of_its_own_steps_as_the_body_does_to_the_bit():
    (own, *_), (shared, *_) = (body_and_head(0.1, rate) for rate in (0.1, None))
    for optimizer in (own, shared):
        for _ in range(5):
            for i, weight in enumerate(optimizer.weights.values()):
                weight.grad = torch.tensor([0.3 + i])
            optimizer.step()
    pairs = zip(own.weights.values(), shared.weights.values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("rate", [0.0, -1e-3, math.nan])
def test_a_heads_rate_that_trains_nothing_is_refused(rate: float):
    with pytest.raises(UserError, match=rf"head_lr is {rate}; give more than 0"):
        OptimizerSpec(lr=1e-3, head_lr=rate)


def test_a_heads_rate_without_a_head_is_refused():
    optimizer = OptimizerSpec(lr=1e-3, head_lr=1e-2)
    ModelSpec(kind="trained", generates=True, optimizer=optimizer, head="value")
    with pytest.raises(UserError, match=r"head_lr is 0\.01 but this model has no value head"):
        ModelSpec(kind="trained", generates=True, optimizer=optimizer)


def in_bfloat16() -> tuple[Optimizer, list[torch.nn.Parameter]]:
    """An optimizer of two bfloat16 weights that have gradients."""
    weights = [torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = Optimizer([("a", weights[0]), ("b", weights[1])], OptimizerSpec(lr=1e-4))
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    return optimizer, weights


def test_a_gradient_exists_once_during_a_step_and_not_at_all_behind_it():
    optimizer, weights = in_bfloat16()
    masters, alive = list(optimizer.masters.values()), []

    def look(*_: object) -> None:
        alive.extend(tensor.grad is not None for tensor in [*weights, *masters])

    optimizer.adam.register_step_pre_hook(look)
    optimizer.step()
    assert alive == [False, False, True, True]
    assert all(tensor.grad is None for tensor in [*weights, *masters])


def test_a_state_without_the_masters_of_bfloat16_weights_is_refused():
    optimizer, _ = in_bfloat16()
    optimizer.step()
    found = {key: t for key, t in optimizer.tensors().items() if not key.endswith("|master")}
    with pytest.raises(ValueError, match=r"a\|master is missing"):
        optimizer.load(found, 1)
