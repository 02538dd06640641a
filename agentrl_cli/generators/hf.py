"""Sampling from a Hugging Face causal LM in memory: prefill, then one loop of steps for all rows.
Every token of a prompt but the last is first brought into the store of kept prefixes; a batch is
then gathered from it, padded on the left. Finished rows leave the batch: the longest is not paid by
all."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from agentrl_cli.core.errors import UserError, require_at_least
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.generators.prefill import Rows, prefill, tensor
from agentrl_cli.generators.prefixes import BatchLayer, PrefixStore, align_right, pad

FREE_COLUMNS = 32  # columns that a batch's buffers leave free at first
CACHEABLE_LAYERS = {"full_attention", "sliding_attention"}


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
class Batch:
    """Rows being sampled: B in all, of which the L `live` ones are still in the cache, padded on
    the left. `width` counts the cache's columns before the prompts' last tokens; M is the most
    tokens that are sampled."""

    prompts: list[list[int]]  # B
    live: Tensor  # [L]: the row of the batch
    cache: Cache
    mask: Tensor  # [L, width + 1 + M]: false on padding
    last_ids: Tensor  # [L]
    positions: Tensor  # [L]: of the prompt's last token
    width: int
    uniforms: Tensor  # [L, M]
    tokens: Tensor  # [B, M]
    logprobs: Tensor  # [B, M]
    lengths: Tensor  # [B]: sampled tokens

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the cache in work."""
        for layer in self.cache.layers:
            if isinstance(layer, BatchLayer):
                layer.select(rows)
        self.live, self.mask, self.last_ids = self.live[rows], self.mask[rows], self.last_ids[rows]
        self.positions, self.uniforms = self.positions[rows], self.uniforms[rows]


@dataclass
class HFGenerator(Generator):
    """At most `max_batch` rows a forward pass; between calls at most `cache_tokens` tokens of keys
    and values stay for each name of weights, until `load` says that the weights changed."""

    models: Models
    _: KW_ONLY
    max_batch: int
    cache_tokens: int
    stores: dict[str, PrefixStore] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        require_at_least(1, max_batch=self.max_batch)
        require_at_least(0, cache_tokens=self.cache_tokens)

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
        completions: dict[tuple[int, int], Completion] = {}
        for start in range(0, len(rows), self.max_batch):
            part = rows[start : start + self.max_batch]
            streams = [(seeds[i], j) for i, j in part]
            inputs = [prompts[i] for i, _ in part]
            batch = self._prefilled_batch(module, store, inputs, streams, sampling)
            _sample_all(module, store, batch, sampling)
            completions.update(zip(part, _completions(batch, sampling), strict=True))
            store.trim()
        return [[completions[i, j] for j in range(sampling.n)] for i in range(len(prompts))]

    @torch.inference_mode()
    def hidden(self, prompts: list[list[int]], model: str = "policy") -> Tensor:
        """The last hidden state [prompts, width] at each prompt's last token; what the prompts
        share with anything kept is not read again."""
        module, store = self.models.module(model), self._store(model)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        greedy = Sampling(max_tokens=1, temperature=0.0, stop_ids=())
        states: list[Tensor] = []  # [part, width] each
        for start in range(0, len(order), self.max_batch):
            part = [prompts[i] for i in order[start : start + self.max_batch]]
            batch = self._prefilled_batch(module, store, part, [(0, 0)] * len(part), greedy)
            outputs = _forward(module, batch, 0, output_hidden_states=True)
            states.append(outputs.hidden_states[-1][:, -1])
            store.trim()
        back = torch.tensor(order, device=store.device).argsort()
        return torch.cat(states)[back]

    def load(self, model: str, version: int, path: Path | None = None) -> None:
        """The module is shared, so only what its former weights computed is dropped."""
        self.stores.pop(model, None)

    def clear(self) -> None:
        """Drop the kept prefixes of all weights."""
        self.stores.clear()

    def cache_bytes(self) -> int:
        """`cache_tokens` times what one token takes, which is known once something is kept."""
        pools = [pair for store in self.stores.values() for pair in store.pool]
        token_bytes = sum(part[:1].nbytes for pair in pools for part in pair)
        return self.cache_tokens * token_bytes // max(1, len(self.stores))

    def _store(self, model: str) -> PrefixStore:
        if model not in self.stores:
            config = self.models.module(model).config.get_text_config(decoder=True)
            kinds = set(getattr(config, "layer_types", None) or ()) - CACHEABLE_LAYERS
            if kinds:
                line = f"the model has layers of kind {', '.join(sorted(kinds))}"
                remedy = "use a model with attention layers only"
                raise UserError(f"{line}, which the hf generator cannot cache; {remedy}")
            layers = config.num_hidden_layers
            self.stores[model] = PrefixStore(self.cache_tokens, layers, self.models.device)
        return self.stores[model]

    def _prefilled_batch(
        self,
        module: PreTrainedModel,
        store: PrefixStore,
        prompts: list[list[int]],
        streams: list[tuple[int, int]],
        sampling: Sampling,
    ) -> Batch:
        """A batch whose cache holds all but the last token of each prompt, equal prompts read
        once."""
        unique = {key: i for i, key in enumerate(dict.fromkeys(map(tuple, prompts)))}
        which = np.array([unique[tuple(prompt)] for prompt in prompts])  # [B]: into the unique ones
        ids, lengths = pad([list(prompt[:-1]) for prompt in unique])
        rows = Rows(ids, lengths, store.hash(ids, lengths))
        past, inside = align_right(prefill(module, store, rows), lengths)
        device, most = store.device, sampling.max_tokens
        mask = np.pad(inside[which], ((0, 0), (0, most)), constant_values=True)
        return Batch(
            prompts=prompts,
            live=torch.arange(len(prompts), device=device),
            cache=store.gather(past[which], min(most, FREE_COLUMNS)),
            mask=tensor(mask, device),
            last_ids=torch.tensor([prompt[-1] for prompt in prompts], device=device),
            positions=tensor(lengths[which], device),
            width=past.shape[1],
            uniforms=_uniforms(streams, sampling).to(device),
            tokens=torch.zeros(len(prompts), most, dtype=torch.int64, device=device),
            logprobs=torch.zeros(len(prompts), most, device=device),
            lengths=torch.full((len(prompts),), most, device=device),
        )


def draw(logits: Tensor, temperature: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Sample from logits [rows, words] by inverting the distribution at `uniform` [rows, 1];
    returns ids [rows] and their log-probs at temperature 1 [rows]. Temperature 0 takes the
    likeliest."""
    logprobs = torch.log_softmax(logits, -1)
    if temperature == 0:
        ids = logits.argmax(-1, keepdim=True)
    else:
        mass = torch.softmax(logits / temperature, -1).cumsum(-1)
        below = mass[:, -1:] * uniform * (1 - 2**-20)  # under the total, whatever rounding does
        ids = torch.searchsorted(mass, below, right=True)
    return ids[:, 0], logprobs.gather(-1, ids)[:, 0]


def _uniforms(streams: list[tuple[int, int]], sampling: Sampling) -> Tensor:
    """Numbers in [0, 1) of each row's own stream (seed, j): [rows, max_tokens]; none for greedy."""
    if sampling.temperature == 0:
        return torch.zeros(len(streams), 0)
    draws = [
        np.random.Generator(np.random.Philox(key=[seed, j])).random(sampling.max_tokens, np.float32)
        for seed, j in streams
    ]
    return torch.from_numpy(np.stack(draws))


def _sample_all(
    module: PreTrainedModel, store: PrefixStore, batch: Batch, sampling: Sampling
) -> None:
    """Sample until every row has met a stop token or the limit; all that was read is kept."""
    stop = torch.tensor(sampling.stop_ids, dtype=torch.int64, device=store.device)
    running = torch.ones_like(batch.live, dtype=torch.bool)
    for step in range(sampling.max_tokens):
        logits = _forward(module, batch, step).logits[:, -1]
        uniform = batch.uniforms[:, step : step + 1]
        batch.last_ids, logprobs = draw(logits.float(), sampling.temperature, uniform)
        batch.tokens[batch.live, step] = batch.last_ids
        batch.logprobs[batch.live, step] = logprobs
        ended = running & torch.isin(batch.last_ids, stop)
        batch.lengths[batch.live[ended]] = step + 1
        running = running & ~ended
        left = int(running.sum())
        if left == 0:
            break
        if 2 * left <= len(running):
            _keep_prefixes(store, batch, torch.nonzero(~running)[:, 0])
            batch.select(torch.nonzero(running)[:, 0])
            running = running[running]
    _keep_prefixes(store, batch, torch.arange(len(batch.live), device=store.device))


def _forward(module: PreTrainedModel, batch: Batch, step: int, **options: bool) -> Any:
    """One pass over every row's last token, the cache before it."""
    return module(
        input_ids=batch.last_ids[:, None],
        attention_mask=batch.mask[:, : batch.width + step + 1],
        position_ids=(batch.positions + step)[:, None],
        past_key_values=batch.cache,
        use_cache=True,
        logits_to_keep=1,
        **options,
    )


def _keep_prefixes(store: PrefixStore, batch: Batch, rows: Tensor) -> None:
    """Keep, for these rows of the cache, the states of the prompt's last token and of all sampled
    tokens but the last, which was never read."""
    members = batch.live[rows]
    counts = batch.lengths[members].cpu().numpy()
    tokens = batch.tokens[members].tolist()
    read = [
        batch.prompts[i] + ids[: count - 1]
        for i, ids, count in zip(members.tolist(), tokens, counts.tolist(), strict=True)
    ]
    ids, lengths = pad(read)
    columns = np.arange(int(counts.max()))
    inside = columns < counts[:, None]  # [rows, columns]
    at = np.minimum((lengths - counts)[:, None] + columns, ids.shape[1] - 1)
    hashes = np.take_along_axis(store.hash(ids, lengths), at, axis=1)[inside]
    row, column = np.nonzero(inside)
    store.keep(hashes, rows.cpu().numpy()[row], column + batch.width, batch.cache)


def _completions(batch: Batch, sampling: Sampling) -> list[Completion]:
    columns = (batch.tokens.tolist(), batch.logprobs.tolist(), batch.lengths.tolist())
    completions = []
    for ids, logprobs, count in zip(*columns, strict=True):
        finish = "stop" if ids[count - 1] in sampling.stop_ids else "length"
        completions.append(Completion(ids[:count], logprobs[:count], finish))
    return completions
