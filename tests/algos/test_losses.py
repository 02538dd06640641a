"""Losses, advantages and returns against hand computations."""

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
    sum_by_turn,
    td_targets,
    turn_advantages,
)
from agentrl_cli.models.forward import Batch, Outputs


def make(logprobs, mask, values=None, **per_token):
    """A batch and the outputs of one pass, from nested lists."""
    mask = torch.tensor(mask, dtype=torch.float32)
    tensors = {
        name: torch.tensor(values, dtype=torch.float32) for name, values in per_token.items()
    }
    lengths = torch.full((len(mask),), mask.shape[1])
    batch = Batch(torch.zeros(mask.shape, dtype=torch.long), mask, tensors, lengths)
    logprobs = torch.tensor(logprobs, dtype=torch.float32, requires_grad=True)
    values = None if values is None else torch.tensor(values, requires_grad=True)
    return Outputs(logprobs, torch.zeros(mask.shape), values), batch


def gradient(loss, outputs):
    loss.backward()
    assert outputs.logprobs.grad is not None
    return outputs.logprobs.grad


def test_nll_weighs_trained_tokens_only():
    outputs, batch = make([[0.0, -1.0, -2.0]], [[0, 1, 1]], weight=[[9.0, 0.5, 2.0]])
    loss, metrics = losses.nll(outputs, batch)
    assert loss.item() == 4.5
    assert metrics["nll"].item() == 3.0


def test_clipped_ratio_by_hand():
    old = [[0.0, -1.0, -1.0, -1.0, -1.0]]
    new = [[0.0, *(-1 + math.log(r) for r in (1.5, 0.5, 1.5, 1.1))]]
    outputs, batch = make(
        new, [[0, 1, 1, 1, 1]], old_logprob=old, advantage=[[7.0, 1.0, -1.0, -1.0, 2.0]]
    )
    loss, metrics = losses.clipped_ratio(outputs, batch, 0.2)
    assert loss.item() == pytest.approx(-(1.2 - 0.8 - 1.5 + 2.2), abs=1e-6)
    assert metrics["clip_fraction"].item() == 2
    assert metrics["ratio"].item() == pytest.approx(4.6, abs=1e-6)
    k3 = sum(r - 1 - math.log(r) for r in (1.5, 0.5, 1.5, 1.1))
    assert metrics["approx_kl"].item() == pytest.approx(k3, abs=1e-6)


def test_clipped_tokens_get_no_gradient():
    old, ratios = [[0.0, -1.0, -1.0, -1.0]], (1.5, 0.5, 1.1)
    outputs, batch = make(
        [[0.0, *(-1 + math.log(r) for r in ratios)]],
        [[0, 1, 1, 1]],
        old_logprob=old,
        advantage=[[0.0, 1.0, -1.0, 3.0]],
    )
    found = gradient(losses.clipped_ratio(outputs, batch, 0.2)[0], outputs)
    assert found.tolist()[0] == pytest.approx([0, 0, 0, -3.3], abs=1e-6)


def test_untrained_tokens_change_nothing():
    outputs, batch = make(
        [[0.0, -1.0, 0.0]],
        [[0, 1, 0]],
        old_logprob=[[0.0, -1.0, -1e4]],
        advantage=[[0.0, 2.0, 5.0]],
        reference_logprob=[[0.0, -1.0, 1e4]],
    )
    ratio_loss = losses.clipped_ratio(outputs, batch, 0.2)[0]
    kl_loss = losses.kl_to_reference(outputs, batch)[0]
    assert ratio_loss.item() == -2.0
    assert kl_loss.item() == 0.0
    assert gradient(ratio_loss + kl_loss, outputs).tolist() == [[0, -2, 0]]


def values_read(clip_eps: float, returns: float = 1, error_of: str = "larger"):
    """Four values of which the last is not trained; the first counts twice."""
    outputs, batch = make(
        [[0.0] * 4], [[0] * 4], values=[[0.5, 0.9, -0.2, 7.0]],
        value_at=[[2, 1, 1, 0]], old_value=[[0.0, 0.8, 0.0, 0.0]], **{"return": [[returns] * 4]},
    )  # fmt: skip
    loss, metrics = losses.value_error(outputs, batch, clip_eps, error_of)
    loss.backward()
    assert outputs.values is not None and outputs.values.grad is not None
    return loss.item(), metrics, outputs.values.grad.tolist()[0]


def test_value_error_by_hand():
    loss, metrics, grad = values_read(clip_eps=0.0)
    assert loss == metrics["value_loss"].item() == pytest.approx(2 * 0.25 + 0.01 + 1.44)
    assert list(metrics) == ["value_loss"]
    assert grad == pytest.approx([-2.0, -0.2, -2.4, 0.0])


def test_clipped_values_get_no_gradient():
    loss, metrics, grad = values_read(clip_eps=0.3)
    # the first is clamped to 0.3; the third has moved away from its return, which is not forgiven
    assert loss == metrics["value_loss"].item() == pytest.approx(2 * 0.49 + 0.01 + 1.44)
    assert metrics["value_clip_fraction"].item() == 2
    assert grad == pytest.approx([0.0, -0.2, -2.4, 0.0])


def test_clipped_values_are_counted_as_their_error_is():
    larger, clipped = (values_read(0.3, -1, kind)[1] for kind in ("larger", "clipped"))
    # both count the first for a return of 1; for -1 its error does not grow by the clip
    assert larger["value_clip_fraction"].item() == 0
    assert clipped["value_clip_fraction"].item() == 2


def test_kl_to_reference_is_the_k3_estimator():
    outputs, batch = make([[0.0, -1.0]], [[0, 1]], reference_logprob=[[0.0, -1.5]])
    loss, metrics = losses.kl_to_reference(outputs, batch)
    assert loss.item() == metrics["kl"].item() == pytest.approx(math.exp(-0.5) - 1 + 0.5, abs=1e-6)
    assert gradient(loss, outputs)[0, 1].item() == pytest.approx(1 - math.exp(-0.5), abs=1e-6)


def test_dpo_is_log_two_at_the_reference():
    rows = [[0.0, -1.0, -2.0], [0.0, -3.0, -1.0]]
    outputs, batch = make(rows, [[0, 1, 1], [0, 1, 1]], reference_logprob=rows)
    loss, metrics = losses.dpo(outputs, batch, 0.1)
    assert loss.item() == pytest.approx(math.log(2))
    assert metrics["margin"].item() == 0.0
    assert gradient(loss, outputs).tolist()[0] == pytest.approx([0, -0.05, -0.05])
    outputs, batch = make(
        [[0.0, -1.0], [0.0, -2.0]], [[0, 1], [0, 1]], reference_logprob=[[0.0, -2.0], [0.0, -1.0]]
    )
    assert losses.dpo(outputs, batch, 0.5)[0].item() == pytest.approx(math.log(1 + math.exp(-1.0)))


def test_dpo_imitation_term_by_hand():
    rows, mask = [[0.0, -1.0, -2.0], [0.0, -7.0, 0.0]], [[0, 1, 1], [0, 1, 0]]
    outputs, batch = make(rows, mask, reference_logprob=rows)
    loss, metrics = losses.dpo(outputs, batch, 0.1, nll_coef=2.0)
    assert loss.item() == pytest.approx(math.log(2) + 2.0 * 1.5)
    assert metrics["preferred_nll"].item() == 1.5
    found = gradient(loss, outputs).tolist()
    assert found[0] == pytest.approx([0, -0.05 - 1.0, -0.05 - 1.0])
    assert found[1] == pytest.approx([0, 0.05, 0])


def test_bce_reads_labelled_tokens_only():
    outputs, batch = make(
        [[0.0, 0.0]] * 2,
        [[0, 0]] * 2,
        values=[[9.0, 1.0], [2.0, 9.0]],
        value_at=[[0, 1], [1, 0]],
        label=[[0, 1], [0, 0]],
    )
    loss, metrics = losses.bce(outputs, batch)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1)) + math.log(1 + math.exp(2)))
    assert metrics["accuracy"].item() == 1.0


def test_entropy_bonus_by_hand():
    outputs, batch = make([[0.0, -1.0]], [[0, 1]])
    outputs.entropy = torch.tensor([[0.0, 2.0]], requires_grad=True)
    found = losses.nll(outputs, batch)
    loss, _ = losses.with_entropy(found, outputs, 0.5)
    loss.backward()
    assert loss.item() == 1.0 - 0.5 * 2.0
    assert outputs.entropy.grad is not None and outputs.entropy.grad.tolist() == [[-0.5, -0.5]]
    assert losses.with_entropy(found, outputs, 0.0) is found


def test_group_advantages_by_hand():
    rewards, groups = [1.0, 0.0, 0.0, 1.0, 5.0], ["a", "b", "a", "a", "b"]
    assert losses.group_advantages([0.1] * 3, ["a"] * 3, normalise=True) == [0.0] * 3
    plain = losses.group_advantages(rewards, groups, normalise=False)
    assert plain == pytest.approx([1 / 3, -2.5, -2 / 3, 1 / 3, 2.5])
    scaled = losses.group_advantages(rewards, groups, normalise=True)
    deviation = math.sqrt(2 / 9)
    assert scaled == pytest.approx(
        [1 / 3 / deviation, -1, -2 / 3 / deviation, 1 / 3 / deviation, 1]
    )


gae_rows = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(-5, 5), min_size=n, max_size=n),
        st.lists(st.floats(-5, 5), min_size=n + 1, max_size=n + 1),
        st.lists(st.booleans(), min_size=n, max_size=n),
    )
)


@given(gae_rows, st.floats(0, 1), st.floats(0, 1))
def test_gae_equals_double_sum_of_td_errors(rows, gamma, gae_lambda):
    rewards, values, dones = rows
    expected = []
    for t in range(len(rewards)):
        total, factor = 0.0, 1.0
        for k in range(t, len(rewards)):
            following = 0.0 if dones[k] else gamma * values[k + 1]
            total += factor * (rewards[k] + following - values[k])
            factor *= gamma * gae_lambda
            if dones[k]:
                break
        expected.append(total)
    found = losses.gae(rewards, values, dones, gamma, gae_lambda)[0]
    assert found == pytest.approx(expected, abs=1e-9)


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
    batch.per_token["old_logprob"] = logprobs - torch.as_tensor(drift) * batch.mask
    return Outputs(logprobs.requires_grad_(), torch.ones_like(batch.mask) * batch.mask, None)


@settings(deadline=None)
@given(numbers, shares, st.integers(1, 6))
def test_td_targets_equal_loop(row: list[float], gamma: float, steps: int):
    values, n = [x / 3 for x in row], len(row)
    read = torch.tensor(values, requires_grad=True)
    found = td_targets(torch.tensor(row), read, gamma, steps)
    assert not found.requires_grad
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
    per_turn = (-advantages * shares).gather(1, batch.per_token["turn"].long())
    assert outputs.logprobs.grad is not None
    assert torch.allclose(outputs.logprobs.grad, per_turn * batch.mask)
    assert metrics["entropy"] == pytest.approx(4)  # of one nat a token, the mean over each turn


def test_ratio_of_5000_tokens_is_exact_and_finite():
    batch = turns([[5000]])
    drift = torch.linspace(-0.01, 0.0108, 5001)[None]
    outputs = outputs_of(batch, drift)
    old = batch.per_token["old_logprob"]
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


def test_geometric_mean_by_hand():
    batch = turns([[2, 1]])
    outputs = outputs_of(batch, torch.tensor([[0, 0.3, -0.1, 0, 0.05]]))
    advantages = torch.tensor([[2.0, -1.0]])
    loss, metrics = clipped_turns(outputs, batch, advantages, 0.15, "turn_geo")
    first, second = math.exp(0.1), math.exp(0.05)  # of (0.3 - 0.1) / 2 and 0.05 / 1
    assert metrics["ratio"].item() == pytest.approx(first + second)
    assert metrics["clip_fraction"] == 0  # the product, exp(0.2), would be clipped
    assert loss.item() == pytest.approx(-2 * first + second)
    loss.backward()
    assert outputs.logprobs.grad is not None
    expected = [0, -2 * first / 2, -2 * first / 2, 0, second]
    assert outputs.logprobs.grad[0].tolist() == pytest.approx(expected)


def test_clipped_token_of_a_turn_gets_no_gradient():
    batch = turns([[2, 1]])
    outputs = outputs_of(batch, torch.tensor([[0, 0.3, -0.1, 0, 0.05]]))
    loss, metrics = clipped_turns(outputs, batch, torch.tensor([[2.0, -1.0]]), 0.2, "token")
    kept, last = math.exp(-0.1), math.exp(0.05)  # exp(0.3) is clipped at 1.2
    assert loss.item() == pytest.approx(-(1.2 + kept) + last)
    assert metrics["clip_fraction"].item() == 0.5
    loss.backward()
    assert outputs.logprobs.grad is not None
    assert outputs.logprobs.grad[0].tolist() == pytest.approx([0, 0, -kept, 0, last])


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
