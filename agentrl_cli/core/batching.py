"""How rows of different lengths are put together into padded batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PASS_COST = {"cpu": 128, "cuda": 4096}  # ids read in the time that a pass takes beside reading


def pass_cost(device_type: str) -> int:
    """What one more pass of a small model costs on a device of this type, in ids."""
    return PASS_COST.get(device_type, PASS_COST["cuda"])


def cheapest_slices(
    lengths: Sequence[int], rows: Sequence[int], most: int, cost: int
) -> list[slice]:
    """Slices of items that are sorted from the longest, item i being `rows[i]` rows of at most
    `lengths[i]` ids. A slice costs its padded ids and `cost` more, and has at most `most` padded
    ids unless it is one item; the sum of all is the least there is."""
    longest, ends = np.array(lengths), np.cumsum([0, *rows])
    least, begins = np.zeros(len(ends)), np.zeros(len(ends), np.int64)
    for end in range(1, len(ends)):
        padded = (ends[end] - ends[:end]) * longest[:end]  # [end]: of a slice from each item on
        allowed = padded <= max(most, padded[-1])
        sums = np.where(allowed, least[:end] + padded, np.inf)
        begins[end] = sums.argmin()
        least[end] = sums[begins[end]] + cost
    slices, end = [], len(lengths)
    while end:
        slices.append(slice(int(begins[end]), end))
        end = slices[-1].start
    return slices[::-1]
