"""The tokens that predict each token of a packed sample with branches."""

from __future__ import annotations

import pytest
import torch

from agentrl_cli.core.types import Sample
from agentrl_cli.models.forward import collate
from agentrl_cli.models.packed_attention import predecessors


def test_predecessor_is_in_its_shadow_or_visible():
    labels = torch.tensor([[0, 0, 1, 1, 2, 2, 0, 0, 3, 0], [0, 1, 0, 2, 2, 2, 3, 0, 0, 0]])
    assert predecessors(labels).tolist() == [
        [-1, 0, 1, 2, 1, 4, 1, 6, 7, 7],
        [-1, 0, 0, 2, 3, 4, 2, 2, 7, 8],
    ]


def test_sample_cannot_begin_with_a_branch():
    branch = {"branch": [0.0, 1.0, 1.0]}
    assert collate([Sample([1, 2, 3], [0, 0, 1], branch)]).mask.tolist() == [[0, 0, 1]]
    with pytest.raises(ValueError, match="begins with a branch"):
        collate([Sample([1, 2, 3], [0, 0, 1], {"branch": [1.0, 1.0, 0.0]})])
