"""Small trainable heads that read a transformer's hidden states; which model has one, its ModelSpec
says."""

from __future__ import annotations

from torch import Tensor, nn


class ValueHead(nn.Module):
    """A linear read-out in float32 that starts at zero, so that every first value is 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.read = nn.Linear(width, 1)
        nn.init.zeros_(self.read.weight)
        nn.init.zeros_(self.read.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., width] to values [...]."""
        return self.read(hidden.float()).squeeze(-1)
