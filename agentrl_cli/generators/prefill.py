"""Prefill: read the tokens of prompts that are not kept yet, common beginnings once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from agentrl_cli.generators.prefixes import (
    AllKept,
    Hashes,
    Integers,
    PrefixStore,
    align_right,
    first_false,
)

FORWARD_TOKENS = 8192  # of one forward pass: bounds the activations
LEAST_SAVED_SHARE = 0.25  # of the missing tokens, where common beginnings are read first


@dataclass
class Rows:
    """Token sequences: ids and prefix hashes [rows, longest], lengths [rows]."""

    ids: Integers
    lengths: Integers
    hashes: Hashes


@dataclass
class Spans:
    """What one pass reads: of row `rows[i]` the tokens from `starts[i]` to before `ends[i]`."""

    rows: Integers
    starts: Integers
    ends: Integers

    def select(self, at: Integers | slice) -> Spans:
        """These spans only."""
        return Spans(self.rows[at], self.starts[at], self.ends[at])


def prefill(module: PreTrainedModel, store: PrefixStore, rows: Rows, max_batch: int) -> Integers:
    """Read all tokens that are not kept; returns the slots [rows, longest], -1 behind a row's
    end."""
    while True:
        slots = store.find(rows.hashes)  # [rows, longest]
        have = np.minimum(first_false(slots >= 0), rows.lengths)
        missing = np.flatnonzero(have < rows.lengths)
        if not len(missing):
            return slots
        spans = _spans_to_read(rows, Spans(missing, have[missing], rows.lengths[missing]))
        spans = spans.select(np.argsort(spans.starts - spans.ends, kind="stable"))
        while len(spans.rows):
            fit = FORWARD_TOKENS // int(spans.ends[0] - spans.starts[0])
            count = min(max_batch, max(1, fit))
            _forward(module, store, rows, slots, spans.select(slice(count)))
            spans = spans.select(slice(count, None))


def _spans_to_read(rows: Rows, spans: Spans) -> Spans:
    """The spans to read next. Where reading what rows share unread once saves enough, that is one
    row of each group up to where the group parts; otherwise all spans as they are."""
    hashes = rows.hashes[spans.rows]
    next_hashes = hashes[np.arange(len(hashes)), spans.starts]  # [spans]: of the first unread token
    _, first, group = np.unique(next_hashes, return_index=True, return_inverse=True)
    shared = np.minimum(first_false(hashes == hashes[first[group]]), spans.ends)
    ends = spans.ends[first]
    np.minimum.at(ends, group, shared)
    saved = int(((np.bincount(group) - 1) * (ends - spans.starts[first])).sum())
    if saved < LEAST_SAVED_SHARE * int((spans.ends - spans.starts).sum()):
        return spans
    return Spans(spans.rows[first], spans.starts[first], ends)


def _forward(
    module: PreTrainedModel, store: PrefixStore, rows: Rows, slots: Integers, spans: Spans
) -> None:
    """One forward pass over the spans, padded behind, up to the last layer's keys and values; what
    it computes is kept."""
    past, inside = align_right(slots[spans.rows], spans.starts)
    columns = spans.starts[:, None] + np.arange(int((spans.ends - spans.starts).max()))
    new = columns < spans.ends[:, None]
    columns = np.minimum(columns, spans.ends[:, None] - 1)
    cache = store.gather(past, columns.shape[1], ends_pass=True)
    with suppress(AllKept):
        module(
            input_ids=tensor(np.take_along_axis(rows.ids[spans.rows], columns, 1), store.device),
            attention_mask=tensor(np.concatenate([inside, new], axis=1), store.device),
            position_ids=tensor(columns, store.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
    row, column = np.nonzero(new)
    hashes = np.take_along_axis(rows.hashes[spans.rows], columns, axis=1)[new]
    store.keep(hashes, row, column + past.shape[1], cache)


def tensor(values: NDArray[np.int64] | NDArray[np.bool_], device: torch.device) -> Tensor:
    """The array as a tensor on the device."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
