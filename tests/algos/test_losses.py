"""Losses, advantages and returns against hand computations."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl_cli.algos import losses
from agentrl_cli.models.forward import Batch, Outputs


def make(logprobs, mask, values=None, **streams):
    """A batch and the outputs of one pass, from nested lists."""
    mask = torch.tensor(mask, dtype=torch.float32)
    tensors = {name: torch.tensor(stream, dtype=torch.float32) for name, stream in streams.items()}
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


def values_read(clip_eps: float):
    """Four values of which the last is not trained; the first counts twice."""
    outputs, batch = make(
        [[0.0] * 4], [[0] * 4], values=[[0.5, 0.9, -0.2, 7.0]],
        value_at=[[2, 1, 1, 0]], old_value=[[0.0, 0.8, 0.0, 0.0]], **{"return": [[1, 1, 1, 1]]},
    )  # fmt: skip
    loss, metrics = losses.value_error(outputs, batch, clip_eps)
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


turns = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(-5, 5), min_size=n, max_size=n),
        st.lists(st.floats(-5, 5), min_size=n + 1, max_size=n + 1),
        st.lists(st.booleans(), min_size=n, max_size=n),
    )
)


@given(turns, st.floats(0, 1), st.floats(0, 1))
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
