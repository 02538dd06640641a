"""Losses with a turn as the unit: shifts, TD(1..m), GAE over turns, the clipped ratio of a turn."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl_cli.algos import losses
from agentrl_cli.algos.losses import (
    clipped_turns,
    shift_left,
    sum_by_turn,
    td_targets,
    turn_advantages,
)
from agentrl_cli.models.forward import Batch, Outputs

numbers = st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=7)
shares = st.floats(0, 1)


def turns(lengths: list[list[int]]) -> Batch:
    """Rows of actions with these lengths, an untrained token before each, padded."""
    parts = [[(k, m) for k, n in enumerate(row) for m in [0, *[1] * n]] for row in lengths]
    longest = max(map(len, parts))
    padded = [row + [(0, 0)] * (longest - len(row)) for row in parts]
    turn, mask = (torch.tensor([[pair[i] for pair in row] for row in padded]) for i in (0, 1))
    ids, sizes = torch.zeros_like(turn), torch.tensor([len(row) for row in parts])
    return Batch(ids, mask.float(), {"turn": turn.float()}, sizes)


def outputs_of(batch: Batch, drift: Any = 0.0, seed: int = 0) -> Outputs:
    """Random log-probs; the old ones are these less `drift`, a number for each token."""
    draw = torch.Generator().manual_seed(seed)
    logprobs = -torch.rand(batch.mask.shape, generator=draw) * batch.mask
    batch.streams["old_logprob"] = logprobs - torch.as_tensor(drift) * batch.mask
    return Outputs(logprobs.requires_grad_(), torch.ones_like(batch.mask) * batch.mask, None)


@settings(deadline=None)
@given(numbers, st.integers(0, 9))
def test_shift_equals_loop(row: list[float], by: int):
    expected = [row[k + by] if k + by < len(row) else 0.0 for k in range(len(row))]
    assert shift_left(torch.tensor(row), by).tolist() == expected


@settings(deadline=None)
@given(numbers, shares, st.integers(1, 6))
def test_td_targets_equal_loop(row: list[float], gamma: float, steps: int):
    values, n = [x / 3 for x in row], len(row)
    found = td_targets(torch.tensor(row), torch.tensor(values), gamma, steps)
    for m in range(1, steps + 1):
        for k in range(n):
            expected = sum(gamma**j * row[k + j] for j in range(m) if k + j < n)
            expected += gamma**m * values[k + m] if k + m < n else 0.0
            assert found[m - 1, k] == pytest.approx(expected, abs=1e-5)


def last(length: int) -> Tensor:
    return torch.arange(length) == length - 1


@settings(deadline=None)
@given(numbers, shares, shares)
def test_turn_advantages_equal_gae(row: list[float], gamma: float, gae_lambda: float):
    rewards, values = [0.5, *row], [0.25, *(x / 2 for x in row)]
    n = len(rewards) - 1
    found, _ = turn_advantages(
        torch.tensor(rewards), torch.tensor(values), last(n + 1), gamma, gae_lambda
    )
    known = [*values[:-1], rewards[-1]]  # the outcome in the last value's place
    expected, _ = losses.gae(rewards[:-1], known, [False] * n, gamma, gae_lambda)
    assert found.tolist() == pytest.approx([*expected, 0.0], abs=1e-5)


def test_lambda_one_and_zero_by_hand():
    rewards, values = torch.tensor([1.0, 0.0, -2.0, 4.0]), torch.tensor([0.5, 3.0, 1.0, 9.0])
    full, errors = turn_advantages(rewards, values, last(4), 0.5, 1.0)
    # earned from each state on: 1 + 0 - 2/4 + 4/8; 0 - 2/2 + 4/4; -2 + 4/2
    assert full.tolist() == pytest.approx([1.0 - 0.5, 0.0 - 3.0, 0.0 - 1.0, 0.0])
    single, _ = turn_advantages(rewards, values, last(4), 0.5, 0.0)
    # 1 + 3/2 - 1/2; 0 + 1/2 - 3; -2 + 4/2 - 1: the outcome, not V_n = 9
    assert single.tolist() == errors.tolist() == [2.0, -2.5, -1.0, 0.0]


@pytest.mark.parametrize("ratio", ["turn", "turn_geo", "token"])
def test_ratio_one_has_gradient_of_reinforce(ratio: str):
    batch = turns([[2, 1, 3], [4]])
    outputs, advantages = outputs_of(batch), torch.tensor([[2.0, -1.0, 0.5], [3.0, 0.0, 0.0]])
    loss, metrics = clipped_turns(outputs, batch, advantages, 0.2, ratio)
    assert metrics["ratio"] == 4 and metrics["clip_fraction"] == metrics["approx_kl"] == 0
    loss.backward()
    shares = 1.0 if ratio == "turn" else 1 / sum_by_turn(batch.mask, batch).clamp(min=1)
    per_turn = (-advantages * shares).gather(1, batch.streams["turn"].long())
    assert outputs.logprobs.grad is not None
    assert torch.allclose(outputs.logprobs.grad, per_turn * batch.mask)
    assert metrics["entropy"] == pytest.approx(4)  # of one nat a token, the mean over each turn


def test_ratio_of_5000_tokens_is_exact_and_finite():
    batch = turns([[5000]])
    drift = torch.linspace(-0.01, 0.0108, 5001)[None]
    outputs = outputs_of(batch, drift)
    old = batch.streams["old_logprob"]
    exact = ((outputs.logprobs.double() - old.double()) * batch.mask).sum().exp()
    _, metrics = clipped_turns(outputs, batch, torch.ones(1, 1), 0.2, "turn")
    assert metrics["ratio"].item() == pytest.approx(exact.item(), rel=1e-4)
    for huge in (1.0, -1.0):
        loss, _ = clipped_turns(outputs_of(batch, huge), batch, -torch.ones(1, 1), 0.2, "turn")
        assert torch.isfinite(loss)


def test_clipped_turn_gets_no_gradient():
    batch = turns([[2, 2]])
    outputs = outputs_of(batch, torch.tensor([[0, 0.2, 0.2, 0, 0.05, 0.0]]))
    loss, metrics = clipped_turns(outputs, batch, torch.ones(1, 2), 0.2, "turn")
    loss.backward()
    assert metrics["clip_fraction"] == 1 and outputs.logprobs.grad is not None
    expected = [0, 0, 0, 0, -math.exp(0.05), -math.exp(0.05)]
    assert outputs.logprobs.grad[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("ratio", ["turn", "turn_geo", "token"])
def test_padded_turns_add_nothing(ratio: str):
    rows, drift = [[3], [1, 2, 2, 4], [2, 1]], 0.05
    together = turns(rows)
    outputs = outputs_of(together, drift)
    advantages = torch.ones(3, 4)  # also where there is no turn
    loss, metrics = clipped_turns(outputs, together, advantages, 0.2, ratio)
    parts = []
    for lengths in rows:
        batch = turns([lengths])
        part = clipped_turns(
            outputs_of(batch, drift), batch, advantages[:1, : len(lengths)], 0.2, ratio
        )
        parts.append((part[0], part[1]["ratio"]))
    assert loss.item() == pytest.approx(sum(part.item() for part, _ in parts), rel=1e-5)
    assert metrics["ratio"].item() == pytest.approx(sum(r.item() for _, r in parts), rel=1e-5)
