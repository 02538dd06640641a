"""Padded batches of rows with different lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PASS_COST = {"cpu": 128, "cuda": 4096}  # tokens per forward pass overhead


def pass_cost(device_type: str) -> int:
    """Return the overhead of a small model's forward pass on this device type, in tokens."""
    return PASS_COST.get(device_type, PASS_COST["cuda"])


def cheapest_slices(
    lengths: Sequence[int], rows: Sequence[int], most: int, cost: int
) -> list[slice]:
    """Return slices of items, sorted from the longest, with the least total cost.

    Item i is `rows[i]` rows of at most `lengths[i]` tokens. A slice costs its padded tokens plus
    `cost`. It has at most `most` padded tokens unless it is a single item.
    """
    longest, ends = np.array(lengths), np.cumsum([0, *rows])
    least, begins = np.zeros(len(ends)), np.zeros(len(ends), np.int64)
    for end in range(1, len(ends)):
        padded = (ends[end] - ends[:end]) * longest[:end]  # [end]: of the slice from each item
        allowed = padded <= max(most, padded[-1])
        sums = np.where(allowed, least[:end] + padded, np.inf)
        begins[end] = sums.argmin()
        least[end] = sums[begins[end]] + cost
    slices, end = [], len(lengths)
    while end:
        slices.append(slice(int(begins[end]), end))
        end = slices[-1].start
    return slices[::-1]
