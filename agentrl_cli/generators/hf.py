"""Sampling from a Hugging Face causal LM in memory: prefill what was never read, then one loop of steps.

Every token of a prompt but the last is first brought into the store of kept prefixes; a batch is then
gathered from it, padded on the left. Finished rows leave the batch, so the longest one is not paid by all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from agentrl_cli.errors import UserError
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.generators.prefixes import (
    Hashes,
    Layer,
    Prefixes,
    Slots,
    align_right,
    first_false,
    pad,
)

PREFILL_TOKENS = 8192  # of one forward pass: bounds the activations
ROOM = 32  # columns that a batch's buffers leave free at first
WORTH = 0.25  # share of the missing tokens that reading a common beginning first must save


class Models(Protocol):
    """What the generator needs of a model set."""

    @property
    def device(self) -> torch.device:
        """Where the modules live."""
        ...

    def module(self, name: str) -> PreTrainedModel:
        """The module, ready to run under the weights of that name."""
        ...


@dataclass
class Rows:
    """Prompts in work, without their last token: ids and prefix hashes [rows, longest], lengths."""

    ids: Slots
    lengths: Slots
    hashes: Hashes


@dataclass
class Batch:
    """Rows being decoded. `live` maps the cache's rows to the batch's; results are of all rows."""

    prompts: list[list[int]]
    live: Tensor
    cache: Cache
    mask: Tensor
    last: Tensor
    positions: Tensor
    width: int
    uniforms: Tensor
    tokens: Tensor
    logprobs: Tensor
    lengths: Tensor

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the cache in work."""
        for layer in self.cache.layers:
            if isinstance(layer, Layer):
                layer.select(rows)
        self.live, self.mask = self.live[rows], self.mask[rows]
        self.last, self.positions = self.last[rows], self.positions[rows]
        self.uniforms = self.uniforms[rows]


class HFGenerator(Generator):
    """At most `max_batch` rows a forward pass; between calls at most `cache_tokens` tokens of keys and
    values stay for each name of weights. The caches of weights that changed must be cleared by `load`."""

    def __init__(self, models: Models, *, max_batch: int, cache_tokens: int) -> None:
        self.models, self.max_batch, self.cache_tokens = models, max_batch, cache_tokens
        self.stores: dict[str, Prefixes] = {}

    @torch.inference_mode()
    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """`sampling.n` completions for each prompt; ValueError for an empty prompt."""
        if not all(prompts):
            raise ValueError(f"prompt {prompts.index([])} is empty; give at least one token")
        module, store = self.models.module(model), self._store(model)
        rows = [(i, j) for i in range(len(prompts)) for j in range(sampling.n)]
        rows.sort(key=lambda row: len(prompts[row[0]]))
        found: dict[tuple[int, int], Completion] = {}
        for start in range(0, len(rows), self.max_batch):
            part = rows[start : start + self.max_batch]
            batch = self._open(module, store, [prompts[i] for i, _ in part], sampling)
            batch.uniforms = self._uniforms([(seeds[i], j) for i, j in part], sampling)
            self._decode(module, store, batch, sampling)
            found.update(zip(part, _completions(batch, sampling), strict=True))
            store.trim()
        return [[found[i, j] for j in range(sampling.n)] for i in range(len(prompts))]

    def load(self, model: str, version: int, path: Path | None = None) -> None:
        """The module is shared, so only what its former weights computed is dropped."""
        self.stores.pop(model, None)

    def clear(self) -> None:
        """Drop the kept prefixes of all weights."""
        self.stores.clear()

    def _store(self, model: str) -> Prefixes:
        if model not in self.stores:
            config = self.models.module(model).config.get_text_config(decoder=True)
            kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
            if kinds:
                raise UserError(
                    f"the model has layers of kind {sorted(kinds)}, which the hf generator cannot cache; "
                    "use a model with attention layers only"
                )
            self.stores[model] = Prefixes(
                self.cache_tokens, config.num_hidden_layers, self.models.device
            )
        return self.stores[model]

    def _uniforms(self, streams: list[tuple[int, int]], sampling: Sampling) -> Tensor:
        """Numbers in [0, 1) of every row's own stream: [rows, max_tokens]."""
        if sampling.temperature == 0:
            return torch.zeros(len(streams), 0, device=self.models.device)
        draws = [
            np.random.Generator(np.random.Philox(key=[seed, j])).random(
                sampling.max_tokens, dtype=np.float32
            )
            for seed, j in streams
        ]
        return torch.from_numpy(np.stack(draws)).to(self.models.device)

    def _open(
        self, module: PreTrainedModel, store: Prefixes, prompts: list[list[int]], sampling: Sampling
    ) -> Batch:
        """A batch whose cache holds all but the last token of each prompt."""
        unique = {tuple(prompt): i for i, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
        which = np.array([unique[tuple(prompt)] for prompt in prompts])
        ids, lengths = pad([list(prompt[:-1]) for prompt in unique])
        slots = self._prefill(module, store, Rows(ids, lengths, store.hash(ids, lengths)))
        past, inside = align_right(slots, lengths)
        device, most = self.models.device, sampling.max_tokens
        shape = (len(prompts), most)
        return Batch(
            prompts=prompts,
            live=torch.arange(len(prompts), device=device),
            cache=store.gather(past[which], min(most, ROOM)),
            mask=_tensor(np.pad(inside[which], ((0, 0), (0, most)), constant_values=True), device),
            last=torch.tensor([prompt[-1] for prompt in prompts], device=device),
            positions=_tensor(lengths[which], device),
            width=past.shape[1],
            uniforms=torch.zeros(0),
            tokens=torch.zeros(shape, dtype=torch.int64, device=device),
            logprobs=torch.zeros(shape, device=device),
            lengths=torch.full((len(prompts),), most, device=device),
        )

    def _prefill(self, module: PreTrainedModel, store: Prefixes, rows: Rows) -> Slots:
        """Read all tokens that are not kept yet; returns the slots [rows, longest] of all."""
        while True:
            slots = store.find(rows.hashes)
            have = np.minimum(first_false(slots >= 0), rows.lengths)
            todo = np.flatnonzero(have < rows.lengths)
            if not len(todo):
                return slots
            todo, ends = _common(rows, have, todo)
            order = np.argsort(ends - have[todo], kind="stable")
            todo, ends = todo[order], ends[order]
            while len(todo):
                count = min(self.max_batch, max(1, PREFILL_TOKENS // int((ends - have[todo]).max())))
                self._read(module, store, rows, slots, todo[-count:], have, ends[-count:])
                todo, ends = todo[:-count], ends[:-count]

    def _read(
        self,
        module: PreTrainedModel,
        store: Prefixes,
        rows: Rows,
        slots: Slots,
        which: Slots,
        have: Slots,
        ends: Slots,
    ) -> None:
        """One forward pass over the tokens have[r]..ends[r] of these rows; keeps their states."""
        start, device = have[which], self.models.device
        past, inside = align_right(slots[which], start)
        columns = start[:, None] + np.arange(int((ends - start).max()))
        new = columns < ends[:, None]
        columns = np.minimum(columns, ends[:, None] - 1)
        cache = store.gather(past, columns.shape[1])
        module(
            input_ids=_tensor(np.take_along_axis(rows.ids[which], columns, axis=1), device),
            attention_mask=_tensor(np.concatenate([inside, new], axis=1), device),
            position_ids=_tensor(columns, device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        row, column = np.nonzero(new)
        hashes = np.take_along_axis(rows.hashes[which], columns, axis=1)[new]
        store.keep(hashes, row, column + past.shape[1], cache)

    def _decode(
        self, module: PreTrainedModel, store: Prefixes, batch: Batch, sampling: Sampling
    ) -> None:
        """Sample until every row has met a stop token or the limit."""
        stop = torch.tensor(sampling.stop_ids, dtype=torch.int64, device=self.models.device)
        running = torch.ones_like(batch.live, dtype=torch.bool)
        for step in range(sampling.max_tokens):
            logits = module(
                input_ids=batch.last[:, None],
                attention_mask=batch.mask[:, : batch.width + step + 1],
                position_ids=(batch.positions + step)[:, None],
                past_key_values=batch.cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            uniform = batch.uniforms[:, step : step + 1]
            batch.last, logprobs = draw(logits.float(), sampling.temperature, uniform)
            batch.tokens[batch.live, step] = batch.last
            batch.logprobs[batch.live, step] = logprobs
            ended = running & torch.isin(batch.last, stop)
            batch.lengths[batch.live[ended]] = step + 1
            running = running & ~ended
            left = int(running.sum())
            if left == 0:
                break
            if 2 * left <= len(running):
                self._keep(store, batch, torch.nonzero(~running)[:, 0])
                batch.select(torch.nonzero(running)[:, 0])
                running = running[running]
        self._keep(store, batch, torch.arange(len(batch.live), device=self.models.device))

    def _keep(self, store: Prefixes, batch: Batch, rows: Tensor) -> None:
        """Keep the prompt's last token and all sampled ones but the last, for these rows of the cache."""
        members = batch.live[rows].tolist()
        sampled = batch.lengths[batch.live[rows]].tolist()
        tokens = batch.tokens[batch.live[rows]].tolist()
        texts = [
            batch.prompts[i] + ids[: count - 1]
            for i, ids, count in zip(members, tokens, sampled, strict=True)
        ]
        ids, lengths = pad(texts)
        counts = np.array(sampled)
        before = (lengths - counts)[:, None]
        columns = np.arange(int(counts.max()))
        inside = columns < counts[:, None]
        hashes = store.hash(ids, lengths)
        at = np.minimum(before + columns, ids.shape[1] - 1)
        row, column = np.nonzero(inside)
        fresh = np.take_along_axis(hashes, at, axis=1)[inside]
        store.keep(fresh, rows.cpu().numpy()[row], column + batch.width, batch.cache)


def draw(logits: Tensor, temperature: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Sample from logits [rows, words] by inverting the distribution at `uniform` [rows, 1]; returns ids
    [rows] and their log-probs at temperature 1 [rows]. Temperature 0 takes the likeliest."""
    logprobs = torch.log_softmax(logits, -1)
    if temperature == 0:
        ids = logits.argmax(-1, keepdim=True)
    else:
        mass = torch.softmax(logits / temperature, -1).cumsum(-1)
        below = mass[:, -1:] * uniform * (1 - 2**-20)  # stays below the total after rounding
        ids = torch.searchsorted(mass, below, right=True)
    return ids[:, 0], logprobs.gather(-1, ids)[:, 0]


def _completions(batch: Batch, sampling: Sampling) -> list[Completion]:
    tokens, logprobs = batch.tokens.tolist(), batch.logprobs.tolist()
    found = []
    for i, count in enumerate(batch.lengths.tolist()):
        ids = tokens[i][:count]
        finish = "stop" if ids and ids[-1] in sampling.stop_ids else "length"
        found.append(Completion(ids, logprobs[i][:count], finish))
    return found


def _common(rows: Rows, have: Slots, todo: Slots) -> tuple[Slots, Slots]:
    """Which rows to read next and up to where. Where rows share unread beginnings and reading these once
    saves enough, one row of each group reads what its group shares; otherwise all read to their ends."""
    hashes, have, lengths = rows.hashes[todo], have[todo], rows.lengths[todo]
    heads = hashes[np.arange(len(todo)), have]
    _, first, group = np.unique(heads, return_index=True, return_inverse=True)
    shared = np.minimum(first_false(hashes == hashes[first[group]]), lengths)
    ends = lengths[first]
    np.minimum.at(ends, group, shared)
    sizes = np.bincount(group)
    saved = int(((sizes - 1) * (ends - have[first])).sum())
    if saved < WORTH * int((lengths - have).sum()):
        return todo, lengths
    return todo[first], ends


def _tensor(values: NDArray[np.int64] | NDArray[np.bool_], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
