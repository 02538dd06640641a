"""How samples are divided among ranks; what one process reads, test_policy.py tests."""

from __future__ import annotations

import pytest

from agentrl_cli.core.ranks import Ranks
from agentrl_cli.core.types import Sample
from agentrl_cli.models.forward import Pass, rank_passes

LENGTHS = [5, 9, 2, 7, 7, 3, 8]
SAMPLES = [Sample([1] * length, [0] + [1] * (length - 1)) for length in LENGTHS]


def passes(size: int, groups: list[list[int]], tokens: int) -> list[list[Pass]]:
    """Those of each of so many ranks."""
    found = []
    for rank in range(size):
        ranks = Ranks()
        ranks.rank, ranks.size = rank, size
        found.append(rank_passes(groups, SAMPLES, tokens, "cpu", ranks))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 10])
@pytest.mark.parametrize("groups", [[[i] for i in range(7)], [[0, 1], [2, 3], [4, 5, 6]]])
@pytest.mark.parametrize("tokens", [8, 20, 999])
def test_ranks_share_samples_in_equal_passes(size: int, groups: list[list[int]], tokens: int):
    by_rank = passes(size, groups, tokens)
    assert len({len(row) for row in by_rank}) == 1
    counted = [i for row in by_rank for part in row if part.counts for i in part.rows]
    assert sorted(counted) == list(range(7))
    batches = [set(part.rows) for row in by_rank for part in row if part.counts]
    assert all(any(set(group) <= batch for batch in batches) for group in groups)


def test_idle_rank_repeats_the_shortest():
    rows = passes(2, [[0], [2]], 999)
    assert rows == [[Pass([0])], [Pass([2])]]
    assert passes(3, [[0], [2]], 999)[2] == [Pass([2], counts=False)]
