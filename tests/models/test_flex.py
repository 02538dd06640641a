"""Packed rows under FlexAttention: on the CPU its plain form without gradient, against single
passes and the dense reference; what it trains, on CUDA."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import flex_attention

from agentrl_cli.core.errors import UserError
from agentrl_cli.models import packable, packed_attention
from agentrl_cli.models.packable import enable_packing, packing_gap
from agentrl_cli.models.packed_attention import block_mask, visibility
from agentrl_cli.models.policy import collate, forward
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
    "family", [name for name in FAMILIES if name not in packable.DENSE_MASK_FAMILIES]
)
def test_flex_attention_equals_a_pass_for_each_turn_and_each_state(family: str):
    model = model_of(family, "flex")
    assert largest_gap(model, HEAD, ROWS) < EXACT
    assert packing_gap(model, PROMPT) < EXACT


def test_the_rule_is_the_mask_of_the_dense_reference_padding_apart():
    labels = torch.tensor([[0, 0, 1, 1, 0, 2, 2, 3, 0, 0], [0, 1, 0, 0, 2, 0, 0, 0, 0, 0]])
    columns = torch.tensor([[0, 1, 4, 8, 9, 2, 3, 5, 6, 7], [0, 2, 3, 5, 6, 10, 1, 4, 10, 10]])
    rule = block_mask(columns, labels).mask_mod
    at = torch.arange(10)
    dense = visibility(columns, columns, labels)
    for b in range(2):
        found = rule(torch.tensor(b), torch.tensor(0), at[:, None], at[None, :])
        assert torch.equal(found, dense[b, 0])
        assert found.any(-1).all()  # no row is empty: it would be no number


def test_a_rule_that_lets_shadows_see_shadows_is_noticed(monkeypatch: pytest.MonkeyPatch):
    model = model_of("qwen2", "flex")
    right = packed_attention._take_columns

    def blind(rows: torch.Tensor, columns: torch.Tensor, missing: int) -> torch.Tensor:
        found = right(rows, columns, missing)
        return found.clamp(max=1) if missing == -1 else found  # all shadows are one

    monkeypatch.setattr(packed_attention, "_take_columns", blind)
    assert largest_gap(model, HEAD, ROWS[:1]) > 0.05


def test_plain_passes_stay_torchs_own_attention_bit_for_bit():
    ids = torch.tensor([[0, 0, 5, 6, 7], [3, 4, 5, 6, 7]])
    inside = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    found = []
    for layout in ("interleaved", "flex"):
        with torch.no_grad():
            model = model_of("qwen2", layout)
            found.append(model(input_ids=ids, attention_mask=inside).logits)
    assert torch.equal(*found)


def test_flex_is_refused_where_it_cannot_train():
    with pytest.raises(
        UserError, match=r"layout=flex needs CUDA .* not qwen2 on cpu;.*visible_first$"
    ):
        enable_packing(fresh("qwen2"), PROMPT, "flex", "full")
    with pytest.raises(UserError, match=r"set algo\.layout=visible_first"):
        enable_packing(fresh("qwen2"), PROMPT, "flex", "detach_prefix")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_flex_trains_as_the_dense_reference():
    model, head = FAMILIES["qwen2"]().eval().cuda(), head_of().cuda()
    batch = collate([one.sample() for one in ROWS]).to(torch.device("cuda"))
    grads = []
    for layout in ("interleaved", "flex"):
        enable_packing(model, PROMPT, layout, "full")  # pyright: ignore[reportArgumentType]
        model.zero_grad()
        outputs = forward(model, batch, head)
        assert outputs.values is not None
        (outputs.logprobs.sum() + (outputs.values * batch.streams["shadow"]).sum()).backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, other in zip(*grads, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max()))
