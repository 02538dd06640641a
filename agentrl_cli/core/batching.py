"""Grouping of rows of different lengths into padded batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PASS_COST = {"cpu": 128, "cuda": 4096}  # overhead of a forward pass, in tokens


def pass_cost(device_type: str) -> int:
    """Return the overhead of a forward pass of a small model on this type of device, in tokens."""
    return PASS_COST.get(device_type, PASS_COST["cuda"])


def cheapest_slices(
    lengths: Sequence[int], rows: Sequence[int], max_tokens: int, cost: int
) -> list[slice]:
    """Split items, sorted from the longest, into slices of minimal total cost.

    Item i is `rows[i]` rows of at most `lengths[i]` tokens. A slice costs its padded tokens plus
    `cost`. It has at most `max_tokens` padded tokens unless it is a single item.
    """
    longest, ends = np.array(lengths), np.cumsum([0, *rows])
    best, begins = np.zeros(len(ends)), np.zeros(len(ends), np.int64)
    for end in range(1, len(ends)):
        padded = (ends[end] - ends[:end]) * longest[:end]  # [end]: of the slice from each item
        allowed = padded <= max(max_tokens, padded[-1])
        sums = np.where(allowed, best[:end] + padded, np.inf)
        begins[end] = sums.argmin()
        best[end] = sums[begins[end]] + cost
    slices, end = [], len(lengths)
    while end:
        slices.append(slice(int(begins[end]), end))
        end = slices[-1].start
    return slices[::-1]
