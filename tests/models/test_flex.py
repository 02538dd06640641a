"""Packed rows under FlexAttention: on the CPU its plain form without gradient, against single
passes and the dense reference; what it trains, on CUDA."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import flex_attention

from agentrl_cli.core.errors import UserError
from agentrl_cli.models import packed_attention
from agentrl_cli.models.forward import collate, forward
from agentrl_cli.models.packed_attention import block_mask, enable_packing, packing_gap, visibility
from tests.builders.packed_rows import FAMILIES, PROMPT, fresh, head_of, largest_gap, model_of, row

EXACT = 1e-5
HEAD = head_of()
ROWS = [row((6, 3), (2, 4), (0, 2)), row((40, 30), (5, 70), prompt=PROMPT * 20), row((1, 1))]


@pytest.fixture(autouse=True)
def plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off CUDA nothing is traced: that would take longer than all the rest."""
    traced = torch.cuda.is_available()
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", not traced)


@pytest.mark.parametrize(
    "family", [name for name in FAMILIES if name not in packed_attention.DENSE_MASK_FAMILIES]
)
def test_flex_equals_separate_passes(family: str):
    model = model_of(family, "flex")
    assert largest_gap(model, HEAD, ROWS) < EXACT
    assert packing_gap(model, PROMPT) < EXACT


def test_flex_rule_equals_dense_mask():
    labels = torch.tensor([[0, 0, 1, 1, 0, 2, 2, 3, 0, 0], [0, 1, 0, 0, 2, 0, 0, 0, 0, 0]])
    columns = torch.tensor([[0, 1, 4, 8, 9, 2, 3, 5, 6, 7], [0, 2, 3, 5, 6, 10, 1, 4, 10, 10]])
    rule = block_mask(columns, labels).mask_mod
    at = torch.arange(10)
    dense = visibility(columns, columns, labels)
    for b in range(2):
        found = rule(torch.tensor(b), torch.tensor(0), at[:, None], at[None, :])
        assert torch.equal(found, dense[b, 0])
        assert found.any(-1).all()  # no row is empty: it would be no number


def test_wrong_flex_rule_is_noticed(monkeypatch: pytest.MonkeyPatch):
    model = model_of("qwen2", "flex")
    right = packed_attention._take_columns

    def blind(rows: torch.Tensor, columns: torch.Tensor, missing: int) -> torch.Tensor:
        found = right(rows, columns, missing)
        return found.clamp(max=1) if missing == -1 else found  # all branches are one

    monkeypatch.setattr(packed_attention, "_take_columns", blind)
    assert largest_gap(model, HEAD, ROWS[:1]) > 0.05


def test_flex_needs_cuda():
    for grad in ("full", "detach_prefix"):
        with pytest.raises(UserError) as caught:
            enable_packing(fresh("qwen2"), PROMPT, "flex", grad)
        assert caught.value.code == "bad-layout"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_flex_gradients_equal_dense_on_cuda():
    model, head = FAMILIES["qwen2"]().eval().cuda(), head_of().cuda()
    batch = collate([one.sample() for one in ROWS]).to(torch.device("cuda"))
    grads = []
    for layout in ("interleaved", "flex"):
        enable_packing(model, PROMPT, layout, "full")  # pyright: ignore[reportArgumentType]
        model.zero_grad()
        outputs = forward(model, batch, head)
        assert outputs.values is not None
        (outputs.logprobs.sum() + (outputs.values * batch.per_token["branch"]).sum()).backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, other in zip(*grads, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max()))
