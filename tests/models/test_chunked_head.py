"""Log-probs and entropies in chunks: the same numbers and gradients as from all logits at once."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn

from agentrl_cli.models.forward import read_in_chunks

ROWS, WIDTH, WORDS = 7, 8, 50
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def linear(dtype: torch.dtype, *, bias: bool = False, trained: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, WORDS, bias=bias).to(dtype).requires_grad_(trained)


class Adapted(nn.Module):
    """A frozen projection and what an adapter adds."""

    def __init__(self) -> None:
        super().__init__()
        self.base = linear(torch.float32, trained=False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WORDS, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return self.base(states) + self.up(self.down(states))


def read(
    head: nn.Module, rows: int, *, entropy: bool, around: AbstractContextManager[object]
) -> list[Tensor]:
    """Log-probs, entropies, and the gradients of a weighted sum of them in states and weights,
    read so many rows at a time."""
    torch.manual_seed(1)
    dtype = next(head.parameters()).dtype
    states = (3 * torch.randn(ROWS, WIDTH)).to(dtype).requires_grad_()
    targets, scale = torch.randint(WORDS, [ROWS]), torch.randn(2, ROWS)
    with around:
        parts = states.split(rows), targets.split(rows)
        logprobs, entropies = read_in_chunks(head, entropy, *parts)
    assert entropies.requires_grad == entropy
    loss = (scale[0] * logprobs).sum() + (scale[1] * entropies).sum()
    weights = [weight for weight in head.parameters() if weight.requires_grad]
    found = torch.autograd.grad(loss, [states, *weights])
    return [logprobs.detach(), entropies.detach(), *found]


HEADS = {
    "float32": lambda: linear(torch.float32),
    "bias": lambda: linear(torch.float32, bias=True),
    "bfloat16": lambda: linear(torch.bfloat16),
    "frozen": lambda: linear(torch.float32, trained=False),
    "adapted": Adapted,
}


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("rows", [1, 3])
def test_chunks_equal_autograd(name: str, entropy: bool, rows: int):
    head = HEADS[name]()
    found, expected = (
        read(head, size, entropy=entropy, around=nullcontext()) for size in (rows, ROWS)
    )
    assert len(found) == len(expected) == 3 + sum(p.requires_grad for p in head.parameters())
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.abs().max() > 1e-2
        near = TOLERANCE[other.dtype]
        assert torch.allclose(one, other, rtol=near, atol=near * float(other.abs().max()))


@pytest.mark.parametrize("entropy", [False, True])
def test_recomputation_keeps_autocast(entropy: bool):
    head = linear(torch.float32)
    found, expected = (
        read(head, size, entropy=entropy, around=torch.autocast("cpu", torch.bfloat16))
        for size in (3, ROWS)
    )
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=2e-2, atol=2e-2 * float(other.abs().max()))
    exact = read(head, ROWS, entropy=entropy, around=nullcontext())
    assert not torch.equal(found[2], exact[2])
