"""Packed attention: gradients are those of single passes, at the cost of one call."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from agentrl_cli.models import packed_attention
from agentrl_cli.models.forward import collate, forward
from tests.builders.packed_rows import (
    LAYOUTS,
    PROMPT,
    alone,
    cached_values,
    head_of,
    model_of,
    read,
    row,
)

THREE = row((6, 3), (2, 4), (0, 2))
HEAD = head_of()


def gradients(model: PreTrainedModel, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_alike(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, grad in one.items():
        assert torch.allclose(grad, other[name], atol=2e-4, rtol=1e-4), name


@pytest.fixture(autouse=True, params=[2, 128], ids="blocks of {}".format)
def rows_of_a_block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packed_attention, "BLOCK_ROWS", request.param)


@pytest.mark.parametrize("layout", [*LAYOUTS, "checkpointed"])
def test_gradients_equal_separate_passes(layout: str):
    model = model_of("qwen2", "interleaved" if layout == "interleaved" else "visible_first")
    if layout == "checkpointed":
        model.activation_checkpointing_enable({"use_reentrant": False})
    rows = [THREE, row((2, 2), (3, 1))]
    packed = gradients(
        model, torch.cat([torch.cat(pair) for pair in read(model, HEAD, rows)]).sum()
    )
    model.activation_checkpointing_disable()
    single = torch.cat([torch.cat(alone(model, HEAD, one)) for one in rows]).sum()
    assert_alike(packed, gradients(model, single))


def test_detached_prefix_gets_no_gradient():
    full, cut = (
        read(model_of("qwen2", grad=g), HEAD, [THREE])[0][1] for g in packed_attention.SPLIT
    )
    assert torch.equal(full, cut)
    model = model_of("qwen2", grad="detach_prefix")
    found = gradients(model, read(model, HEAD, [THREE])[0][1].sum())
    assert_alike(
        found, gradients(model, cached_values(model, HEAD, THREE, train_prefix=False).sum())
    )
    whole = gradients(model, cached_values(model, HEAD, THREE, train_prefix=True).sum())
    with pytest.raises(AssertionError):
        assert_alike(found, whole)


def test_packed_pass_is_one_call(monkeypatch: pytest.MonkeyPatch):
    model, sizes = model_of("qwen2"), []
    hook = model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(tuple(kwargs["input_ids"].shape)),
        with_kwargs=True,
    )
    forward(model, collate([THREE.sample()]), HEAD)
    forward(model, collate([THREE.sample(), row((3, 17), prompt=PROMPT * 5).sample()]), HEAD)
    hook.remove()
    visible, prompts = len(THREE.state(3)), 4 * len(PROMPT)
    assert sizes == [(1, visible + prompts), (2, 20 + 30)]  # the longest of each part
