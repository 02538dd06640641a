"""Keys and values of token prefixes, kept between calls and found again by content.

Every kept token is addressed by a hash of the whole prefix that ends with it, so a prompt that
shares a beginning with anything seen before finds it, wherever the two part; nothing is stored
twice.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

Hashes = NDArray[np.uint64]
Slots = NDArray[np.int64]


def pad(rows: list[list[int]]) -> tuple[Slots, Slots]:
    """Ids [rows, longest] with 0 behind a row's end, and the lengths [rows]."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    inside = np.arange(int(lengths.max(initial=0))) < lengths[:, None]
    ids = np.zeros(inside.shape, np.int64)
    ids[inside] = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
    return ids, lengths


def first_false(claims: NDArray[np.bool_]) -> Slots:
    """How many leading values of each row [rows, columns] are true."""
    end = np.zeros((len(claims), 1), np.bool_)
    return np.argmin(np.concatenate([claims, end], axis=1), axis=1).astype(np.int64)


def align_right(values: Slots, lengths: Slots) -> tuple[Slots, NDArray[np.bool_]]:
    """The first lengths[r] values of each row moved to the right edge, and which cells hold one."""
    width = int(lengths.max(initial=0))
    columns = np.arange(width) - (width - lengths)[:, None]
    inside = columns >= 0
    moved = np.take_along_axis(values[:, :width], np.maximum(columns, 0), axis=1)
    return np.where(inside, moved, 0), inside


class Layer(DynamicLayer):
    """One layer's keys and values of a batch in buffers [rows, columns, heads, size] that leave
    room for the tokens to come, so that a step writes one column and copies nothing."""

    def __init__(self, keys: Tensor | None, values: Tensor | None, length: int) -> None:
        super().__init__()
        self.length = length
        if keys is not None and values is not None:
            self.room = (keys, values)
            self.is_initialized = True
            self.dtype, self.device = keys.dtype, keys.device

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append states [rows, heads, tokens, size]; returns all so far, in that order of axes."""
        new = (key_states.transpose(1, 2), value_states.transpose(1, 2))
        start, self.length = self.length, self.length + key_states.shape[2]
        if not self.is_initialized:
            self.room = new
            self.is_initialized = True
        else:
            self._grow()
            self.room[0][:, start : self.length] = new[0]
            self.room[1][:, start : self.length] = new[1]
        keys, values = (part[:, : self.length].transpose(1, 2) for part in self.room)
        return keys, values

    def get_seq_length(self) -> int:
        """The number of columns in use."""
        return self.length

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch only."""
        self.room = (self.room[0].index_select(0, rows), self.room[1].index_select(0, rows))

    def _grow(self) -> None:
        have = self.room[0].shape[1]
        if self.length > have:
            more = max(self.length - have, have // 2)
            self.room = tuple(
                torch.cat([part, part.new_empty(part.shape[0], more, *part.shape[2:])], 1)
                for part in self.room
            )


class Prefixes:
    """The kept prefixes of one set of weights: at most `limit` tokens between two batches (the
    longest unused go first), more only while one batch needs them."""

    def __init__(self, limit: int, layers: int, device: torch.device) -> None:
        self.limit, self.layers, self.device = limit, layers, device
        self.random = np.random.default_rng(0)
        self.words = self.places = self.hashes = np.zeros(0, np.uint64)
        self.index: dict[int, int] = {}
        self.free: list[int] = []
        self.used = np.zeros(0, np.int64)
        self.clock = 0
        self.pool: list[tuple[Tensor, Tensor]] = []

    def hash(self, ids: Slots, lengths: Slots) -> Hashes:
        """The hash of every prefix of ids [rows, longest]; 0 behind a row's end."""
        longest = ids.shape[1]
        self.words = self._more(self.words, int(ids.max(initial=0)) + 1)
        self.places = self._more(self.places, longest) | np.uint64(1)
        hashes = np.cumsum(self.words[ids] * self.places[:longest], axis=1, dtype=np.uint64)
        return np.where(np.arange(longest) < lengths[:, None], hashes, np.uint64(0))

    def find(self, hashes: Hashes) -> Slots:
        """The slot of every prefix, -1 where it is not kept; a found slot counts as used now."""
        get = self.index.get
        flat = [get(value, -1) for value in hashes.ravel().tolist()]
        slots = np.array(flat, np.int64).reshape(hashes.shape)
        self.used[slots[slots >= 0]] = self.clock
        return slots

    def keep(self, hashes: Hashes, rows: Slots, columns: Slots, cache: Cache) -> None:
        """Keep the states at (row, column) of a batch's cache under these prefix hashes."""
        fresh = [i for i, value in enumerate(hashes.tolist()) if value not in self.index]
        first = {int(hashes[i]): i for i in reversed(fresh)}
        if not first:
            return
        picked = np.fromiter(first.values(), np.int64, len(first))
        layers = [layer for layer in cache.layers if isinstance(layer, Layer)]
        slots = self._take(len(picked), layers)
        self.hashes[slots], self.used[slots] = hashes[picked], self.clock
        self.index.update(zip(first, slots.tolist(), strict=True))
        at, row, column = (
            torch.from_numpy(part).to(self.device)
            for part in (slots, rows[picked], columns[picked])
        )
        for store, layer in zip(self.pool, layers, strict=True):
            for kept, room in zip(store, layer.room, strict=True):
                kept[at] = room[row, column]

    def gather(self, slots: Slots, room: int) -> Cache:
        """A batch's cache from slots [rows, columns] (any slot where there is padding), with `room`
        columns for the tokens to come."""
        rows, columns = slots.shape
        if columns == 0:
            return Cache(layers=[Layer(None, None, 0) for _ in range(self.layers)])
        padded = np.zeros((rows, columns + room), np.int64)
        padded[:, :columns] = slots
        at = torch.from_numpy(padded.ravel()).to(self.device)
        return Cache(
            layers=[
                Layer(_pick(keys, at, rows), _pick(values, at, rows), columns)
                for keys, values in self.pool
            ]
        )

    def trim(self) -> None:
        """Drop the longest unused tokens until `limit` is kept (and some more, so that this is
        rare); the next batch begins."""
        self.clock += 1
        if len(self.index) > self.limit:
            self._drop(len(self.index) - self.limit + self.limit // 4)

    def _drop(self, count: int) -> None:
        kept = np.fromiter(self.index.values(), np.int64, len(self.index))
        oldest = kept[np.argsort(self.used[kept], kind="stable")[:count]]
        for value in self.hashes[oldest].tolist():
            del self.index[value]
        self.free.extend(oldest.tolist())

    def _take(self, count: int, layers: list[Layer]) -> Slots:
        """`count` free slots; the pool doubles when there are too few."""
        size = len(self.hashes)
        if count > len(self.free):
            more = max(count - len(self.free), size, 1024)
            self.free.extend(range(size + more - 1, size - 1, -1))
            self.hashes = np.concatenate([self.hashes, np.zeros(more, np.uint64)])
            self.used = np.concatenate([self.used, np.zeros(more, np.int64)])
            old = self.pool or [_empty(layer) for layer in layers]
            self.pool = [(_longer(keys, more), _longer(values, more)) for keys, values in old]
        taken, self.free = self.free[-count:], self.free[:-count]
        return np.array(taken, np.int64)

    def _more(self, table: Hashes, size: int) -> Hashes:
        if size <= len(table):
            return table
        extra = self.random.integers(1, 2**64, max(size, 4096) - len(table), dtype=np.uint64)
        return np.concatenate([table, extra])


def _empty(layer: Layer) -> tuple[Tensor, Tensor]:
    keys, values = layer.room
    return keys.new_empty(0, *keys.shape[2:]), values.new_empty(0, *values.shape[2:])


def _pick(part: Tensor, at: Tensor, rows: int) -> Tensor:
    return part.index_select(0, at).view(rows, -1, *part.shape[1:])


def _longer(part: Tensor, more: int) -> Tensor:
    return torch.cat([part, part.new_zeros(more, *part.shape[1:])])
