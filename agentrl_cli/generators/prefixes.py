"""Keys and values of token prefixes, kept between calls and found again by content. Every kept
token is addressed by a hash of the whole prefix that ends with it, so a prompt that shares a
beginning with anything seen before finds it, wherever the two part; nothing is stored twice."""

from __future__ import annotations

from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

NO_LIMIT = 2**62  # tokens
LEAST_SLOTS = 1024  # of a pool
Hashes = NDArray[np.uint64]
Integers = NDArray[np.int64]


def pad(rows: list[list[int]]) -> tuple[Integers, Integers]:
    """Ids [rows, longest] with 0 behind a row's end, and the lengths [rows]."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    inside = np.arange(int(lengths.max(initial=0))) < lengths[:, None]
    ids = np.zeros(inside.shape, np.int64)
    ids[inside] = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
    return ids, lengths


def first_false(claims: NDArray[np.bool_]) -> Integers:
    """How many leading values of each row [rows, columns] are true."""
    end = np.zeros((len(claims), 1), np.bool_)
    return np.argmin(np.concatenate([claims, end], axis=1), axis=1).astype(np.int64)


def align_right(values: Integers, lengths: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """The first lengths[r] values of each row moved to the right edge, and which cells hold one."""
    width = int(lengths.max(initial=0))
    columns = np.arange(width) - (width - lengths)[:, None]
    inside = columns >= 0
    moved = np.take_along_axis(values[:, :width], np.maximum(columns, 0), axis=1)
    return np.where(inside, moved, 0), inside


class AllKept(Exception):
    """The last layer's keys and values are in the cache: the rest of a forward pass only makes
    hidden states."""


class BatchLayer(DynamicLayer):
    """One layer's keys and values of a batch in buffers [heads, rows, columns, size] that leave
    room for the tokens to come, so that a step writes one column and copies nothing; they grow to
    `most` columns at most. A head's columns lie side by side: attention on a CPU reads them several
    times as fast. With `ends_pass` an update raises AllKept."""

    def __init__(
        self, keys: Tensor | None, values: Tensor | None, length: int, most: int = NO_LIMIT
    ) -> None:
        super().__init__()
        self.length, self.most, self.ends_pass = length, most, False
        if keys is not None and values is not None:
            self.buffers = (keys, values)
            self.is_initialized = True
            self.dtype, self.device = keys.dtype, keys.device

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append states [rows, heads, tokens, size]; returns all so far, in that order of axes."""
        new = (key_states.transpose(0, 1), value_states.transpose(0, 1))
        start, self.length = self.length, self.length + key_states.shape[2]
        if not self.is_initialized:
            self.buffers, self.is_initialized = new, True
        else:
            self._grow()
            for buffer, states in zip(self.buffers, new, strict=True):
                buffer[:, :, start : self.length] = states
        if self.ends_pass:
            raise AllKept
        keys, values = (part[:, :, : self.length].transpose(0, 1) for part in self.buffers)
        return keys, values

    def get_seq_length(self) -> int:
        """The number of columns in use."""
        return self.length

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch only."""
        keys, values = self.buffers
        self.buffers = (keys.index_select(1, rows), values.index_select(1, rows))

    def _grow(self) -> None:
        """Lengthen the buffers to `length` columns, and by half at least where `most` allows it."""
        have = self.buffers[0].shape[2]
        if self.length > have:
            more = max(self.length - have, min(have // 2, self.most - have))
            self.buffers = tuple(
                torch.cat([part, part.new_empty(*part.shape[:2], more, part.shape[3])], 2)
                for part in self.buffers
            )


class PrefixStore:
    """The kept prefixes of one set of weights: at most `limit` tokens between two batches (the
    longest unused go first), more only while one batch needs them. There is room for `most` tokens
    at most, unless one batch needs more, and a pass copies `most_copied` at most."""

    def __init__(self, limit: int, layers: int, device: torch.device) -> None:
        self.limit, self.layers, self.device = limit, layers, device
        self.most = self.most_copied = NO_LIMIT
        self.random = np.random.default_rng(0)
        self.id_factors = self.position_factors = np.zeros(0, np.uint64)  # by id, by position
        self.slot_of: dict[int, int] = {}  # by hash
        self.hashes = np.zeros(0, np.uint64)  # by slot
        self.last_used = np.zeros(0, np.int64)  # by slot: the batch
        self.free: list[int] = []  # slots
        self.clock = 0  # batches so far
        self.pool: list[tuple[Tensor, Tensor]] = []  # of each layer [heads, slots, size]

    @property
    def nbytes(self) -> int:
        """What the pool takes."""
        return sum(part.nbytes for pair in self.pool for part in pair)

    def hash(self, ids: Integers, lengths: Integers) -> Hashes:
        """The hash [rows, longest] of every prefix of ids [rows, longest], which is a sum over its
        tokens of random factors of id and position; 0 behind a row's end."""
        longest = ids.shape[1]
        self.id_factors = self._extended(self.id_factors, int(ids.max(initial=0)) + 1)
        self.position_factors = self._extended(self.position_factors, longest) | np.uint64(1)
        factors = self.id_factors[ids] * self.position_factors[:longest]  # [rows, longest]
        hashes = np.cumsum(factors, axis=1, dtype=np.uint64)
        return np.where(np.arange(longest) < lengths[:, None], hashes, np.uint64(0))

    def find(self, hashes: Hashes) -> Integers:
        """The slot of every prefix, -1 where it is not kept; a found slot counts as used now."""
        get = self.slot_of.get
        flat = [get(value, -1) for value in hashes.ravel().tolist()]
        slots = np.array(flat, np.int64).reshape(hashes.shape)
        self.last_used[slots[slots >= 0]] = self.clock
        return slots

    def keep(self, hashes: Hashes, rows: Integers, columns: Integers, cache: Cache) -> None:
        """Keep the states at (row, column) of a batch's cache under these prefix hashes."""
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
        for store, layer in zip(self.pool, layers, strict=True):
            for kept, buffer in zip(store, layer.buffers, strict=True):
                kept[:, at] = buffer[:, row, column]

    def gather(
        self, slots: Integers, free_columns: int, *, most: int = NO_LIMIT, ends_pass: bool = False
    ) -> Cache:
        """A batch's cache from slots [rows, columns] (any slot where there is padding), with
        `free_columns` for the tokens to come, which grows to `most` columns at most; with
        `ends_pass` its last layer raises AllKept."""
        layers = self._gather_layers(slots, free_columns)
        for layer in layers:
            layer.most = most
        layers[-1].ends_pass = ends_pass
        return Cache(layers=layers)  # pyright: ignore[reportArgumentType]

    def _gather_layers(self, slots: Integers, free_columns: int) -> list[BatchLayer]:
        rows, columns = slots.shape
        if columns == 0:
            return [BatchLayer(None, None, 0) for _ in range(self.layers)]
        padded = np.zeros((rows, columns + free_columns), np.int64)
        padded[:, :columns] = slots
        at = torch.from_numpy(padded.ravel()).to(self.device)
        pairs = [[_gathered(part, at, rows) for part in pair] for pair in self.pool]
        return [BatchLayer(keys, values, columns) for keys, values in pairs]

    def trim(self) -> None:
        """Drop the longest unused tokens until `limit` is kept (and some more, so that this is
        rare), and give back what the pool has grown far beyond that; the next batch begins."""
        self.clock += 1
        limit = min(self.limit, self.most)
        if len(self.slot_of) > limit:
            self._drop(len(self.slot_of) - limit + limit // 4)
        if len(self.hashes) > 2 * max(limit, LEAST_SLOTS):
            self._shrink(max(limit, LEAST_SLOTS))

    def _drop(self, count: int) -> None:
        """Free the slots of the `count` tokens that were unused for longest."""
        kept = np.fromiter(self.slot_of.values(), np.int64, len(self.slot_of))
        oldest = kept[np.argsort(self.last_used[kept], kind="stable")[:count]]
        for value in self.hashes[oldest].tolist():
            del self.slot_of[value]
        self.free.extend(oldest.tolist())

    def _take(self, count: int, layers: list[BatchLayer]) -> Integers:
        """`count` free slots. When there are too few the pool doubles where `most` allows it, and
        drops tokens that this batch does not use."""
        size = len(self.hashes)
        short = count - len(self.free) - max(0, self.most - size)
        if short > 0:
            kept = np.fromiter(self.slot_of.values(), np.int64, len(self.slot_of))
            unused = int((self.last_used[kept] < self.clock).sum())
            self._drop(min(short + self.most // 8, unused))
        if count > len(self.free):
            missing = count - len(self.free)
            more = max(missing, min(max(size, LEAST_SLOTS), self.most - size))
            self.pool = self.pool or [_empty(layer) for layer in layers]
            self._grow(more)
        taken, self.free = self.free[-count:], self.free[:-count]
        return np.array(taken, np.int64)

    def _grow(self, more: int) -> None:
        """Add so many slots, to one layer after the other: no two are in memory twice."""
        size = len(self.hashes)
        self.free.extend(range(size + more - 1, size - 1, -1))
        self.hashes = np.concatenate([self.hashes, np.zeros(more, np.uint64)])
        self.last_used = np.concatenate([self.last_used, np.zeros(more, np.int64)])
        for i, (keys, values) in enumerate(self.pool):
            self.pool[i] = (_longer(keys, more), _longer(values, more))

    def _shrink(self, size: int) -> None:
        """Keep `size` slots only, which are enough for all that is kept."""
        kept = np.fromiter(self.slot_of.values(), np.int64, len(self.slot_of))
        slots = np.zeros(size, np.int64)
        slots[: len(kept)] = kept
        self.slot_of = dict(zip(self.slot_of, range(len(kept)), strict=True))
        self.hashes, self.last_used = self.hashes[slots], self.last_used[slots]
        self.free = list(range(size - 1, len(kept) - 1, -1))
        at = torch.from_numpy(slots).to(self.device)
        for i, (keys, values) in enumerate(self.pool):
            self.pool[i] = (keys.index_select(1, at), values.index_select(1, at))

    def _extended(self, table: Hashes, size: int) -> Hashes:
        """The table with at least `size` factors."""
        if size <= len(table):
            return table
        extra = self.random.integers(1, 2**64, max(size, 4096) - len(table), dtype=np.uint64)
        return np.concatenate([table, extra])


def _empty(layer: BatchLayer) -> tuple[Tensor, Tensor]:
    keys, values = layer.buffers
    return keys[:, 0, :0], values[:, 0, :0]


def _gathered(part: Tensor, at: Tensor, rows: int) -> Tensor:
    """[heads, slots, size] and slots [rows * columns] to [heads, rows, columns, size]."""
    return part.index_select(1, at).view(len(part), rows, -1, part.shape[2])


def _longer(part: Tensor, more: int) -> Tensor:
    return torch.cat([part, part.new_zeros(len(part), more, part.shape[2])], 1)
