"""Sampling from a Hugging Face causal LM in memory: prefill, then one loop of steps for all rows.
Every token of a prompt but the last is first brought into the store of kept prefixes; a batch is
then gathered from it, padded on the left. Finished rows leave the batch: the longest is not paid by
all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from agentrl_cli.core.errors import UserError, require_above, require_at_least
from agentrl_cli.generators import memory
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.generators.prefill import Rows, prefill, tensor
from agentrl_cli.generators.prefixes import (
    NO_LIMIT,
    BatchLayer,
    Integers,
    PrefixStore,
    align_right,
    pad,
)

FREE_COLUMNS = 32  # columns that a batch's buffers leave free at first
SAMPLES_TOGETHER = 8  # samples of one prompt that share a row of the cache
NOT_A_NUMBER = (
    "model '{model}' gives logits that are no numbers: its weights are spoiled, or its dtype is too"
    " narrow for them; start from an earlier checkpoint (init=RUN/checkpoints/STEP/models/policy)"
    " with a lower learning rate, or give model.dtype=float32"
)
ROTARY_FAMILIES = {"llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe"}
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
    """B rows being sampled. They stand in a grid of G rows of the cache, padded on the left, and N
    samples that share the prompt of their row: each sees the prompt and its own tokens. M is the
    most tokens that are sampled; row B of a tensor takes what nobody needs."""

    prompts: list[list[int]]  # B
    cells: Tensor  # [G, N]: the row of the batch, B where there is none
    cache: Cache
    mask: Tensor  # [G, N, columns of the cache]: what a sample sees
    last_ids: Tensor  # [G, N]
    positions: Tensor  # [G]: of the prompt's last token
    uniforms: Tensor  # [B + 1, M]
    columns: Tensor  # [B + 1, M]: of the cache, where the token that a step read lies
    tokens: Tensor  # [B + 1, M]
    logprobs: Tensor  # [B + 1, M]
    lengths: Tensor  # [B + 1]: sampled tokens

    def select(self, chosen: Tensor) -> None:
        """Keep the chosen cells [G, N], as far left as they go, and the cache's rows that have
        any."""
        rows, most = torch.nonzero(chosen.any(1))[:, 0], int(chosen.sum(1).max())
        for layer in self.cache.layers:
            if isinstance(layer, BatchLayer):
                layer.select(rows)
        order = (~chosen[rows]).int().argsort(stable=True, dim=1)[:, :most]
        kept = chosen[rows].gather(1, order)
        self.cells = self.cells[rows].gather(1, order).where(kept, len(self.prompts))
        self.last_ids, self.positions = self.last_ids[rows].gather(1, order), self.positions[rows]
        self.mask = self.mask[rows[:, None], order]


@dataclass
class HFGenerator(Generator):
    """At most `max_batch` rows a forward pass; between calls at most `cache_tokens` tokens of keys
    and values stay for each name of weights, until `load` says that the weights changed. All keys
    and values take at most `cache_mib` MiB: half of it is for what is kept, half for a batch's
    padded copy, and a batch has fewer rows where they would not fit. None: half of what a CUDA
    device has free at the first use, elsewhere no limit."""

    models: Models
    _: KW_ONLY
    max_batch: int
    cache_tokens: int
    cache_mib: float | None = None
    half_bytes: int = field(default=0, init=False, repr=False)  # 0: not known yet
    stores: dict[str, PrefixStore] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        require_at_least(1, max_batch=self.max_batch)
        require_at_least(0, cache_tokens=self.cache_tokens)
        require_above(0, cache_mib=1 if self.cache_mib is None else self.cache_mib)

    @torch.inference_mode()
    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """`sampling.n` completions for each prompt; ValueError for an empty prompt, UserError where
        the model gives logits that are no numbers."""
        if not all(prompts):
            raise ValueError(f"prompt {prompts.index([])} is empty; give at least one token")
        module, store = self.models.module(model), self._store(model)
        completions: dict[tuple[int, int], Completion] = {}
        for part in self._parts(prompts, sampling, model):
            streams = [(seeds[i], j) for i, j in part]
            inputs = [prompts[i] for i, _ in part]
            batch = self._prefilled_batch(module, store, inputs, streams, sampling)
            _sample_all(module, store, batch, sampling)
            if bool(batch.logprobs[:-1].isnan().any()):
                raise UserError(NOT_A_NUMBER.format(model=model))
            completions.update(zip(part, _completions(batch, sampling), strict=True))
        return [[completions[i, j] for j in range(sampling.n)] for i in range(len(prompts))]

    @torch.inference_mode()
    def hidden(self, prompts: list[list[int]], model: str = "policy") -> Tensor:
        """The last hidden state [prompts, width] at each prompt's last token; what the prompts
        share with anything kept is not read again."""
        module, store = self.models.module(model), self._store(model)
        order: list[int] = []
        greedy = Sampling(max_tokens=1, temperature=0.0, stop_ids=())
        states: list[Tensor] = []  # [part, width] each
        for part in self._parts(prompts, greedy, model):
            order += [i for i, _ in part]
            inputs = [prompts[i] for i, _ in part]
            batch = self._prefilled_batch(module, store, inputs, part, greedy)
            outputs = _forward(module, batch, 0, output_hidden_states=True)
            states.append(outputs.hidden_states[-1][:, -1])
        back = torch.tensor(order, device=store.device).argsort()
        return torch.cat(states)[back]

    def fitting(self, prompts: list[list[int]], model: str = "policy") -> int:
        """As many as have what is kept of them kept on, so that none is read again at every turn;
        all where nothing is kept anyway."""
        most = 3 * min(self.cache_tokens or NO_LIMIT, self._half_tokens(model)) // 4  # see trim
        if sum(map(len, prompts)) <= most:
            return len(prompts)
        ids, lengths = pad(prompts)
        return max(1, memory.count_fitting(self._store(model).hash(ids, lengths), lengths, most))

    def check_context(self, most: int, model: str = "policy") -> None:
        """Raise UserError where keys and values of one sequence of `most` tokens do not fit."""
        if most > self._half_tokens(model):
            needed = 2 * most * self._token_bytes(model) / 2**20
            line = f"the keys and values of {most} tokens take {needed:.0f} MiB, kept and copied"
            given = f"hardware.generator.cache_mib gives {self.half_bytes / 2**19:.0f}"
            raise UserError(f"{line}, and {given}; give more, or a smaller rollout.max_context")

    def load(self, model: str, version: int, path: Path | None = None) -> None:
        """The module is shared, so only what its former weights computed is dropped."""
        self.stores.pop(model, None)

    def clear(self) -> None:
        """Drop the kept prefixes of all weights."""
        self.stores.clear()

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

    def _half_tokens(self, model: str) -> int:
        """So many tokens' keys and values fit in half of what all may take."""
        if not self.half_bytes:
            self.half_bytes = memory.bytes_at_most(self.cache_mib, self.models.device) // 2
        return self.half_bytes // self._token_bytes(model)

    def _token_bytes(self, model: str) -> int:
        """Of one token's keys and values: as kept, or as the configuration says before any is."""
        store = self.stores.get(model)
        if store is not None and store.pool:
            return store.nbytes // len(store.hashes)
        return memory.described_token_bytes(self.models.module(model))

    def _parts(
        self, prompts: list[list[int]], sampling: Sampling, model: str
    ) -> Iterator[list[tuple[int, int]]]:
        """Rows (prompt, sample), shortest first: at most `max_batch` at a time, and as many as fit.
        Between two parts, what is kept is trimmed."""
        rows = [(i, j) for i in range(len(prompts)) for j in range(sampling.n)]
        rows.sort(key=lambda row: len(prompts[row[0]]))
        together = _samples_together(self.models.module(model), sampling)
        while rows:
            few = [prompts[i] for i, _ in rows[: self.max_batch]]
            self.check_context(len(few[0]) + sampling.max_tokens - 1, model)
            sizes = list(memory.batch_sizes(few, sampling.max_tokens, together))  # ascending
            most = self._half_tokens(model)
            count = sum(max(size.kept, size.copied) <= most for size in sizes)
            self._make_room(model, sizes[count - 1].kept)
            yield rows[:count]
            rows = rows[count:]
            self.stores[model].trim()

    def _make_room(self, model: str, tokens: int) -> None:
        """Let this model keep so many tokens, and all that others leave: where there is too little,
        theirs are dropped, those of the longest unused first."""
        self.stores[model] = store = self.stores.pop(model)
        others = [name for name in self.stores if name != model]
        free = self.half_bytes - sum(self.stores[name].nbytes for name in others)
        while others and free < tokens * self._token_bytes(model):
            free += self.stores.pop(others.pop(0)).nbytes
        store.most, store.most_copied = free // self._token_bytes(model), self._half_tokens(model)

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
        which = [unique[tuple(prompt)] for prompt in prompts]  # [B]: into the unique ones
        ids, lengths = pad([list(prompt[:-1]) for prompt in unique])
        rows = Rows(ids, lengths, store.hash(ids, lengths))
        past, inside = align_right(prefill(module, store, rows), lengths)
        device, most = store.device, sampling.max_tokens
        cells = _grid(which, _samples_together(module, sampling))  # [G, N]
        heads = np.array(which)[cells[:, 0]]  # [G]: into the unique ones
        last_ids = torch.tensor([prompt[-1] for prompt in unique], device=device)[heads]
        shape = (len(prompts) + 1, most)
        return Batch(
            prompts=prompts,
            cells=tensor(cells, device),
            cache=store.gather(
                past[heads],
                min(most, FREE_COLUMNS) * cells.shape[1],
                most=past.shape[1] + most * cells.shape[1],
            ),
            mask=tensor(inside[heads], device)[:, None].repeat(1, cells.shape[1], 1),
            last_ids=last_ids[:, None].repeat(1, cells.shape[1]),
            positions=tensor(lengths[heads], device),
            uniforms=_uniforms([*streams, (0, 0)], sampling).to(device),
            columns=torch.zeros(*shape, dtype=torch.int64, device=device),
            tokens=torch.zeros(*shape, dtype=torch.int64, device=device),
            logprobs=torch.zeros(*shape, device=device),
            lengths=torch.full((shape[0],), most, device=device),
        )


def _samples_together(module: PreTrainedModel, sampling: Sampling) -> int:
    """How many samples of a prompt share a row of the cache."""
    return SAMPLES_TOGETHER if sampling.n > 1 and reads_samples_together(module) else 1


def reads_samples_together(module: PreTrainedModel) -> bool:
    """Whether several samples may follow one row of the cache: the model's attention takes a mask
    of its own for each, in every layer, and positions come from their numbers alone."""
    config = module.config.get_text_config(decoder=True)
    layers = getattr(config, "layer_types", None) or ["full_attention"]
    window = getattr(config, "sliding_window", None)
    full = set(layers) == {"full_attention"} and not window
    dense = str(config._attn_implementation).startswith(("sdpa", "eager", "agentrl_shadow"))
    return full and dense and config.model_type in ROTARY_FAMILIES


def _grid(which: list[int], most: int) -> Integers:
    """Rows [G, N] with the same number in `which` side by side, `most` at a time, len(which) where
    there are fewer; in the order of their first ones."""
    rows_of: dict[int, list[int]] = {}
    for row, number in enumerate(which):
        rows_of.setdefault(number, []).append(row)
    parts = [rows[i : i + most] for rows in rows_of.values() for i in range(0, len(rows), most)]
    rows, lengths = pad(sorted(parts))
    return np.where(np.arange(rows.shape[1]) < lengths[:, None], rows, len(which))


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
        ids = ids.clamp(max=logits.shape[-1] - 1)  # beyond it where logits are no numbers
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
    none = len(batch.prompts)
    running = torch.arange(none + 1, device=store.device) < none  # [B + 1]
    for step in range(sampling.max_tokens):
        logits = _forward(module, batch, step).logits.flatten(0, 1)  # [G * N, words]
        rows = batch.cells.flatten()
        uniform = batch.uniforms[rows, step : step + 1]
        ids, logprobs = draw(logits.float(), sampling.temperature, uniform)
        batch.last_ids = ids.view_as(batch.cells)
        batch.tokens[rows, step], batch.logprobs[rows, step] = ids, logprobs
        ended = rows[torch.isin(ids, stop) & running[rows]]
        batch.lengths[ended], running[ended] = step + 1, False
        left = running[batch.cells]  # [G, N]
        samples = int(left.sum(1).max())
        if samples == 0:
            break
        if 2 * int(left.any(1).sum()) * samples <= left.numel():
            _keep_prefixes(store, batch, ~left & (batch.cells < none))
            batch.select(left)
    _keep_prefixes(store, batch, batch.cells < none)


def _forward(module: PreTrainedModel, batch: Batch, step: int, **options: bool) -> Any:
    """One pass over every sample's last token, the cache before it."""
    count, samples, start = *batch.cells.shape, batch.mask.shape[-1]
    at = torch.arange(samples, device=batch.mask.device)
    batch.columns[batch.cells, step] = start + at
    itself = (at == at[:, None]).expand(count, -1, -1)  # [G, N, N]
    batch.mask = torch.cat([batch.mask, itself], -1)
    return module(
        input_ids=batch.last_ids,
        attention_mask=batch.mask[:, 0] if samples == 1 else _additive(batch.mask, module.dtype),
        position_ids=(batch.positions + step)[:, None].expand(-1, samples),
        past_key_values=batch.cache,
        use_cache=True,
        logits_to_keep=samples,
        **options,
    )


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """[G, 1, N, columns]: what is added to attention scores for a bool mask [G, N, columns]."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -torch.inf)[:, None]


def _keep_prefixes(store: PrefixStore, batch: Batch, chosen: Tensor) -> None:
    """Keep, for the chosen cells [G, N], the states of the prompt's last token and of all sampled
    tokens but the last, which was never read."""
    cache_rows = torch.nonzero(chosen)[:, 0].cpu().numpy()
    members = batch.cells[chosen]
    counts = batch.lengths[members].cpu().numpy()
    tokens = batch.tokens[members].tolist()
    read = [
        batch.prompts[i] + ids[: count - 1]
        for i, ids, count in zip(members.tolist(), tokens, counts.tolist(), strict=True)
    ]
    ids, lengths = pad(read)
    steps = np.arange(int(counts.max(initial=0)))
    inside = steps < counts[:, None]  # [rows, steps]
    at = np.minimum((lengths - counts)[:, None] + steps, ids.shape[1] - 1)
    hashes = np.take_along_axis(store.hash(ids, lengths), at, axis=1)[inside]
    columns = batch.columns[members].cpu().numpy()[:, : len(steps)][inside]
    store.keep(hashes, cache_rows[np.nonzero(inside)[0]], columns, batch.cache)


def _completions(batch: Batch, sampling: Sampling) -> list[Completion]:
    columns = (batch.tokens.tolist(), batch.logprobs.tolist(), batch.lengths.tolist())
    completions = []
    for ids, logprobs, count in list(zip(*columns, strict=True))[:-1]:
        finish = "stop" if ids[count - 1] in sampling.stop_ids else "length"
        completions.append(Completion(ids[:count], logprobs[:count], finish))
    return completions
