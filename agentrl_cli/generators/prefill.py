"""Prefill: read the tokens of prompts that are not kept yet, common beginnings once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from agentrl_cli.core.batching import cheapest_slices, pass_cost
from agentrl_cli.generators.prefixes import (
    AllKept,
    Hashes,
    Integers,
    PrefixStore,
    align_right,
    first_false,
)

FORWARD_TOKENS = 8192  # of one forward pass: bounds the activations
LEAST_SAVED = 256  # tokens that a further round has to save


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


def prefill(module: PreTrainedModel, store: PrefixStore, rows: Rows) -> Integers:
    """Read all tokens that are not kept; returns the slots [rows, longest], -1 behind a row's
    end."""
    slots = store.find(rows.hashes)  # [rows, longest]
    have = np.minimum(first_false(slots >= 0), rows.lengths)
    for spans in plan_rounds(rows, have):
        lengths, ones = (spans.ends - spans.starts).tolist(), [1] * len(spans.rows)
        for part in cheapest_slices(lengths, ones, FORWARD_TOKENS, pass_cost(store.device.type)):
            for few in _halved(spans.select(part), store.most_copied):
                _forward(module, store, rows, slots, few)
        slots = store.find(rows.hashes)
    return slots


def _halved(spans: Spans, most: int) -> list[Spans]:
    """The spans, cut in two until the padded rows of each part have at most `most` tokens."""
    count = len(spans.rows)
    if count * int(spans.starts.max() + (spans.ends - spans.starts).max()) <= most or count == 1:
        return [spans]
    halves = (slice(count // 2), slice(count // 2, None))
    return [few for half in halves for few in _halved(spans.select(half), most)]


def plan_rounds(rows: Rows, have: Integers) -> list[Spans]:
    """What is to be read, of each row behind its `have` kept tokens, in rounds that read behind
    what earlier ones have read; longest spans first. A token that rows share is read once, in the
    longest of them, where that saves enough; otherwise all is one round."""
    missing = np.flatnonzero(have < rows.lengths)
    by_length = missing[np.argsort(-rows.lengths[missing], kind="stable")]
    every = Spans(by_length, have[by_length], rows.lengths[by_length])
    owners = _owners(rows.hashes[by_length], every)
    owned = owners == np.arange(len(owners))[:, None]
    starts = np.where(owned.any(1), owned.argmax(1), every.ends)
    rounds = np.zeros(len(starts), np.int64)
    for i in np.flatnonzero(starts > every.starts):
        rounds[i] = 1 + rounds[owners[i, starts[i] - 1]]
    if (starts - every.starts).sum() < LEAST_SAVED * int(rounds.max(initial=0)):
        starts, rounds = every.starts, np.zeros_like(rounds)
    order = np.argsort(starts - every.ends, kind="stable")
    spans, rounds = Spans(by_length, starts, every.ends).select(order), rounds[order]
    unread = spans.starts < spans.ends
    numbers = np.unique(rounds[unread])
    return [spans.select(np.flatnonzero(unread & (rounds == number))) for number in numbers]


def _owners(hashes: Hashes, spans: Spans) -> Integers:
    """For each token [spans, longest] that is to be read the first span that has it; -1 for any
    other."""
    columns = np.arange(hashes.shape[1])
    unread = (columns >= spans.starts[:, None]) & (columns < spans.ends[:, None])
    _, first, which = np.unique(hashes[unread], return_index=True, return_inverse=True)
    owners = np.full(hashes.shape, -1)
    owners[unread] = np.nonzero(unread)[0][first[which]]
    return owners


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
