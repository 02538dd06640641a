"""A cache of keys and values of token prefixes, kept between calls and addressed by content.

Every token is stored under a hash of the whole prefix that ends with it. A prompt that shares a
beginning with an earlier sequence finds it, wherever the two diverge, and nothing is stored twice.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

NO_LIMIT = 2**62  # tokens
MIN_SLOTS = 1024  # of a pool
Hashes = NDArray[np.uint64]
Integers = NDArray[np.int64]


def pad(rows: list[list[int]]) -> tuple[Integers, Integers]:
    """Return token ids [rows, longest], padded with 0 on the right, and the lengths [rows]."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    inside = np.arange(int(lengths.max(initial=0))) < lengths[:, None]
    ids = np.zeros(inside.shape, np.int64)
    ids[inside] = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
    return ids, lengths


def align_right(values: Integers, lengths: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """Move the first lengths[r] values of each row to the right edge; also return their mask."""
    width = int(lengths.max(initial=0))
    columns = np.arange(width) - (width - lengths)[:, None]
    inside = columns >= 0
    moved = np.take_along_axis(values[:, :width], np.maximum(columns, 0), axis=1)
    return np.where(inside, moved, 0), inside


class StopForward(Exception):
    """The last layer's keys and values are in the cache, so the forward pass need not go on."""


class BatchLayer(DynamicLayer):
    """One layer's keys and values of a batch, in buffers [heads, rows, columns, size].

    The buffers leave room for the tokens to come, so a decoding step writes one column and copies
    nothing. They grow to `max_columns` columns at most. The columns of a head are contiguous, which
    makes attention on a CPU several times as fast. With `ends_pass`, `update` raises StopForward.
    """

    def __init__(self, keys: Tensor | None, values: Tensor | None, length: int) -> None:
        super().__init__()
        self.length, self.max_columns, self.ends_pass = length, NO_LIMIT, False
        if keys is not None and values is not None:
            self.buffers = (keys, values)
            self.is_initialized = True
            self.dtype, self.device = keys.dtype, keys.device

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append states [rows, heads, tokens, size]; return all so far with the same axes."""
        new = (key_states.transpose(0, 1), value_states.transpose(0, 1))
        start, self.length = self.length, self.length + key_states.shape[2]
        if not self.is_initialized:
            self.buffers, self.is_initialized = new, True
        else:
            self._grow()
            for buffer, states in zip(self.buffers, new, strict=True):
                buffer[:, :, start : self.length] = states
        if self.ends_pass:
            raise StopForward
        keys, values = (part[:, :, : self.length].transpose(0, 1) for part in self.buffers)
        return keys, values

    def get_seq_length(self) -> int:
        return self.length

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch only."""
        keys, values = self.buffers
        self.buffers = (keys.index_select(1, rows), values.index_select(1, rows))

    def _grow(self) -> None:
        """Grow the buffers to `length` columns, and by a half if `max_columns` allows it."""
        have = self.buffers[0].shape[2]
        if self.length > have:
            more = max(self.length - have, min(have // 2, self.max_columns - have))
            self.buffers = tuple(
                torch.cat([part, part.new_empty(*part.shape[:2], more, part.shape[3])], 2)
                for part in self.buffers
            )


class PrefixCache:
    """The stored prefixes of one set of weights.

    Between two batches at most `limit` tokens are stored, and the least recently used go first.
    The pool has at most `max_slots` slots unless one batch needs more, and a forward pass copies at
    most `max_copied` tokens.
    """

    def __init__(self, limit: int, layers: int, device: torch.device) -> None:
        self.limit, self.layers, self.device = limit, layers, device
        self.max_slots = self.max_copied = NO_LIMIT
        self.random = np.random.default_rng(0)
        self.id_factors = self.position_factors = np.zeros(0, np.uint64)
        self.slot_of: dict[int, int] = {}  # by hash
        self.hashes = np.zeros(0, np.uint64)  # by slot
        self.last_used = np.zeros(0, np.int64)  # by slot: number of the batch
        self.free: list[int] = []  # slots
        self.clock = 0  # batches so far
        self.pool: list[tuple[Tensor, Tensor]] = []  # of each layer [heads, slots, size]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for pair in self.pool for part in pair)

    def hash(self, ids: Integers, lengths: Integers) -> Hashes:
        """Return the hash of every prefix of ids [rows, longest]; padding has hash 0."""
        longest = ids.shape[1]
        self.id_factors = self._extended(self.id_factors, int(ids.max(initial=0)) + 1)
        self.position_factors = self._extended(self.position_factors, longest) | np.uint64(1)
        factors = self.id_factors[ids] * self.position_factors[:longest]  # [rows, longest]
        hashes = np.cumsum(factors, axis=1, dtype=np.uint64)
        return np.where(np.arange(longest) < lengths[:, None], hashes, np.uint64(0))

    def find(self, hashes: Hashes) -> Integers:
        """Return the slot of every prefix, -1 if it is not stored, and mark the found as used."""
        get = self.slot_of.get
        flat = [get(value, -1) for value in hashes.ravel().tolist()]
        slots = np.array(flat, np.int64).reshape(hashes.shape)
        self.last_used[slots[slots >= 0]] = self.clock
        return slots

    def store(self, hashes: Hashes, rows: Integers, columns: Integers, cache: Cache) -> None:
        """Store the states at (row, column) of a batch's cache under these prefix hashes."""
        fresh = [i for i, value in enumerate(hashes.tolist()) if value not in self.slot_of]
        first_at = {int(hashes[i]): i for i in reversed(fresh)}
        if not first_at:
            return
        picked = np.fromiter(first_at.values(), np.int64, len(first_at))
        layers = [layer for layer in cache.layers if isinstance(layer, BatchLayer)]
        slots = self._take(len(picked), layers)
        self.hashes[slots], self.last_used[slots] = hashes[picked], self.clock
        self.slot_of.update(zip(first_at, slots.tolist(), strict=True))
        places = (slots, rows[picked], columns[picked])
        at, row, column = (torch.from_numpy(place).to(self.device) for place in places)
        for pair, layer in zip(self.pool, layers, strict=True):
            for part, buffer in zip(pair, layer.buffers, strict=True):
                part[:, at] = buffer[:, row, column]

    def gather(
        self,
        slots: Integers,
        free_columns: int,
        *,
        max_columns: int = NO_LIMIT,
        ends_pass: bool = False,
    ) -> Cache:
        """Return a batch's cache from slots [rows, columns] (any slot for padding).

        It has `free_columns` for the tokens to come and grows to at most `max_columns` columns.
        With `ends_pass` its last layer raises StopForward.
        """
        rows, columns = slots.shape
        if columns == 0:
            layers = [BatchLayer(None, None, 0) for _ in range(self.layers)]
        else:
            padded = np.zeros((rows, columns + free_columns), np.int64)
            padded[:, :columns] = slots
            at = torch.from_numpy(padded.ravel()).to(self.device)
            shape = (rows, columns + free_columns)
            pairs = [
                [part.index_select(1, at).view(len(part), *shape, part.shape[2]) for part in pair]
                for pair in self.pool
            ]
            layers = [BatchLayer(keys, values, columns) for keys, values in pairs]
        for layer in layers:
            layer.max_columns = max_columns
        layers[-1].ends_pass = ends_pass
        return Cache(layers=layers)  # pyright: ignore[reportArgumentType]

    def trim(self) -> None:
        """End a batch: drop the least recently used tokens above `limit`, and shrink the pool."""
        self.clock += 1
        limit = min(self.limit, self.max_slots)
        if len(self.slot_of) > limit:
            self._drop(len(self.slot_of) - limit + limit // 4)
        if len(self.hashes) > 2 * max(limit, MIN_SLOTS):
            self._shrink(max(limit, MIN_SLOTS))

    def _stored(self) -> Integers:
        return np.fromiter(self.slot_of.values(), np.int64, len(self.slot_of))

    def _drop(self, count: int) -> None:
        """Free the slots of the `count` least recently used tokens."""
        stored = self._stored()
        oldest = stored[np.argsort(self.last_used[stored], kind="stable")[:count]]
        for value in self.hashes[oldest].tolist():
            del self.slot_of[value]
        self.free.extend(oldest.tolist())

    def _take(self, count: int, layers: list[BatchLayer]) -> Integers:
        """Take free slots; grow the pool up to `max_slots`, and drop unused tokens beyond it."""
        size = len(self.hashes)
        short = count - len(self.free) - max(0, self.max_slots - size)
        if short > 0:
            unused = int((self.last_used[self._stored()] < self.clock).sum())
            self._drop(min(short + self.max_slots // 8, unused))
        if count > len(self.free):
            missing = count - len(self.free)
            more = max(missing, min(max(size, MIN_SLOTS), self.max_slots - size))
            if not self.pool:
                buffers = [layer.buffers for layer in layers]
                self.pool = [(keys[:, 0, :0], values[:, 0, :0]) for keys, values in buffers]
            self._grow(more)
        taken, self.free = self.free[-count:], self.free[:-count]
        return np.array(taken, np.int64)

    def _grow(self, more: int) -> None:
        """Add slots, one layer after the other, so that only one layer is in memory twice."""
        size = len(self.hashes)
        self.free.extend(range(size + more - 1, size - 1, -1))
        self.hashes = np.concatenate([self.hashes, np.zeros(more, np.uint64)])
        self.last_used = np.concatenate([self.last_used, np.zeros(more, np.int64)])
        for i, pair in enumerate(self.pool):
            keys, values = (nn.functional.pad(part, (0, 0, 0, more)) for part in pair)
            self.pool[i] = (keys, values)

    def _shrink(self, size: int) -> None:
        """Keep `size` slots, which must hold everything that is stored."""
        stored = self._stored()
        slots = np.zeros(size, np.int64)
        slots[: len(stored)] = stored
        self.slot_of = dict(zip(self.slot_of, range(len(stored)), strict=True))
        self.hashes, self.last_used = self.hashes[slots], self.last_used[slots]
        self.free = list(range(size - 1, len(stored) - 1, -1))
        at = torch.from_numpy(slots).to(self.device)
        for i, (keys, values) in enumerate(self.pool):
            self.pool[i] = (keys.index_select(1, at), values.index_select(1, at))

    def _extended(self, table: Hashes, size: int) -> Hashes:
        """Return the table with at least `size` random factors."""
        if size <= len(table):
            return table
        extra = self.random.integers(1, 2**64, max(size, 4096) - len(table), dtype=np.uint64)
        return np.concatenate([table, extra])
