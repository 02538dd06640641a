"""Padded batches cost the least that any cut of the sorted rows costs."""

import random
from itertools import combinations

import pytest

from agentrl_cli.core.batching import cheapest_slices


def total(slices, lengths, rows, cost):
    return sum(lengths[part.start] * sum(rows[part]) + cost for part in slices)


def every_cut(count):
    for size in range(count):
        for inner in combinations(range(1, count), size):
            yield [slice(a, b) for a, b in zip((0, *inner), (*inner, count), strict=True)]


@pytest.mark.parametrize("seed", range(20))
def test_slices_have_minimal_cost(seed):
    draw = random.Random(seed)
    lengths = sorted((draw.randrange(1, 30) for _ in range(8)), reverse=True)
    rows, most, cost = [draw.randrange(1, 4) for _ in range(8)], 60, draw.randrange(40)
    fitting = [
        cut
        for cut in every_cut(8)
        if all(p.stop - p.start == 1 or lengths[p.start] * sum(rows[p]) <= most for p in cut)
    ]
    found = cheapest_slices(lengths, rows, most, cost)
    assert found in fitting
    assert total(found, lengths, rows, cost) == min(total(c, lengths, rows, cost) for c in fitting)


def test_no_items_make_no_slices():
    assert cheapest_slices([], [], 10, 1) == []
