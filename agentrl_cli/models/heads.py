"""Small trainable heads that read hidden states; which model has one, its ModelSpec says."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ValueHead(nn.Module):
    """A linear read-out in float32 that starts at zero, so that every first value is 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., width] to values [...]."""
        return hidden.float() @ self.weight + self.bias


class ActionValueHead(nn.Module):
    """Two value heads side by side: what an action is worth that ends here, and what a state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.v = ValueHead(width), ValueHead(width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., width] to pairs (Q, V) [..., 2]."""
        return torch.stack([self.q(hidden), self.v(hidden)], -1)
