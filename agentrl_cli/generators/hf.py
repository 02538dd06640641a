"""Sampling from a Hugging Face causal LM in this process.

A call first reads every prompt token but the last into the prefix cache. Common beginnings are read
once. Batches are then gathered from the cache, padded on the left, and decoded one step at a time.
Finished rows leave the batch, so the longest row does not cost all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from agentrl_cli.core.batching import cheapest_slices, pass_cost
from agentrl_cli.core.errors import UserError
from agentrl_cli.generators.base import Completion, Generator, HFGeneratorConfig, Sampling
from agentrl_cli.generators.prefix_cache import (
    NO_LIMIT,
    BatchLayer,
    Hashes,
    Integers,
    PrefixCache,
    StopForward,
    align_right,
    pad,
)

FREE_COLUMNS = 32  # free columns of a batch's buffers at first
SAMPLES_PER_ROW = 8  # samples of one prompt that share a row of the cache
PREFILL_TOKENS = 8192  # of one forward pass: bounds the activations
MIN_SAVED = 256  # tokens that one more round of prefill has to save
BLOCK = 128  # words of a large vocabulary
BELOW_ONE = 1 - 2**-20  # keeps a share of a sum below the sum despite rounding
FREE_SHARE = 0.5  # of a CUDA device's free memory, if no limit is given
ROTARY_FAMILIES = {"llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe"}
CACHEABLE_LAYERS = {"full_attention", "sliding_attention"}


class Models(Protocol):
    """The part of a model set that the generator uses."""

    @property
    def device(self) -> torch.device: ...
    def module(self, name: str) -> PreTrainedModel: ...


@dataclass
class Spans:
    """The tokens that one forward pass reads: `starts[i]` to `ends[i]` (excluded) of `rows[i]`."""

    rows: Integers
    starts: Integers
    ends: Integers

    def select(self, at: Integers | slice) -> Spans:
        return Spans(self.rows[at], self.starts[at], self.ends[at])


@dataclass
class Batch:
    """B samples in a grid of G cache rows, padded on the left, and N samples per cache row.

    The samples of one row share its prompt; each sees the prompt and its own tokens. M is the
    largest number of sampled tokens. Row B of a tensor takes values that are not needed.
    """

    prompts: list[list[int]]  # B
    cells: Tensor  # [G, N]: the row of the batch, B if the cell is empty
    cache: Cache
    mask: Tensor  # [G, N, columns of the cache]: what a sample sees
    last_ids: Tensor  # [G, N]
    positions: Tensor  # [G]: of the prompt's last token
    uniforms: Tensor  # [B + 1, M]
    columns: Tensor  # [B + 1, M]: the cache column of the token that a step read
    tokens: Tensor  # [B + 1, M]
    logprobs: Tensor  # [B + 1, M]
    lengths: Tensor  # [B + 1]: sampled tokens

    def select(self, chosen: Tensor) -> None:
        """Keep the chosen cells [G, N], moved to the left, and the cache rows that have any."""
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
class MergedLayer:
    """A layer with an adapter, its base weight, and the sum of both."""

    layer: LoraLinear
    base: nn.Parameter
    weight: Tensor


@dataclass
class HFGenerator(HFGeneratorConfig, Generator):
    """Samples from the modules of a model set; batches have fewer rows if they would not fit."""

    models: Models
    half_bytes: int = field(default=0, init=False, repr=False)  # half of the limit; 0: not set yet
    caches: dict[str, PrefixCache] = field(default_factory=dict, init=False, repr=False)
    merged: dict[str, list[MergedLayer]] = field(default_factory=dict, init=False, repr=False)

    @torch.inference_mode()
    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """Return `sampling.n` completions for each prompt. UserError if a logit is not finite."""
        if not all(prompts):
            raise ValueError(f"prompt {prompts.index([])} is empty; give at least one token")
        cache, completions = self._cache(model), dict[tuple[int, int], Completion]()
        with self._merged(model) as module:
            for part in self._parts(prompts, sampling, model):
                streams = [(seeds[i], j) for i, j in part]
                inputs = [prompts[i] for i, _ in part]
                batch = _prefilled_batch(module, cache, inputs, streams, sampling)
                _sample_all(module, cache, batch, sampling)
                if bool(batch.logprobs[:-1].isnan().any()):
                    line = f"model '{model}' gives logits that are not finite; start from an"
                    line += " earlier checkpoint (init=RUN/checkpoints/STEP/models/policy) with a"
                    line += " lower learning rate, or give model.dtype=float32"
                    raise UserError(line, code="logits-not-finite")
                completions.update(zip(part, _completions(batch, sampling), strict=True))
                if self.activity is not None:
                    self.activity.answered = len(completions) / (len(prompts) * sampling.n)
        return [[completions[i, j] for j in range(sampling.n)] for i in range(len(prompts))]

    @torch.inference_mode()
    def hidden(self, prompts: list[list[int]], model: str = "policy") -> Tensor:
        """Return the last hidden state [prompts, width] at each prompt's last token."""
        cache, order = self._cache(model), list[int]()
        greedy = Sampling(max_tokens=1, temperature=0.0, stop_ids=())
        states: list[Tensor] = []  # [part, width] each
        with self._merged(model) as module:
            for part in self._parts(prompts, greedy, model):
                order += [i for i, _ in part]
                inputs = [prompts[i] for i, _ in part]
                batch = _prefilled_batch(module, cache, inputs, part, greedy)
                outputs = _forward(module, batch, 0, output_hidden_states=True)
                states.append(outputs.hidden_states[-1][:, -1])
        back = torch.tensor(order, device=cache.device).argsort()
        return torch.cat(states)[back]

    def fitting(self, prompts: list[list[int]], model: str = "policy") -> int:
        """Return how many prompts fit into the cache together, or all if it has no limit."""
        most = 3 * min(self.cache_tokens or NO_LIMIT, self._half_tokens(model)) // 4  # see trim
        if sum(map(len, prompts)) <= most:
            return len(prompts)
        ids, lengths = pad(prompts)
        inside = np.arange(ids.shape[1]) < lengths[:, None]
        hashes = self._cache(model).hash(ids, lengths)[inside]
        first = np.unique(hashes, return_index=True)[1]
        new = np.bincount(np.nonzero(inside)[0][first], minlength=len(lengths))  # [rows]
        return max(1, int((np.cumsum(new) <= most).sum()))

    def check_context(self, most: int, model: str = "policy") -> None:
        """Raise UserError if the keys and values of a sequence of `most` tokens do not fit."""
        if most > self._half_tokens(model):
            needed = 2 * most * self._token_bytes(model) / 2**20
            line = f"the keys and values of {most} tokens need {needed:.0f} MiB, and"
            line += f" hardware.generator.cache_mib is {self.half_bytes / 2**19:.0f}; raise it, or"
            raise UserError(f"{line} lower rollout.max_seq_len", code="cache-too-small")

    def mark_changed(self, model: str) -> None:
        self.caches.pop(model, None)
        self.merged.pop(model, None)

    def clear(self) -> None:
        self.caches.clear()
        self.merged.clear()

    @contextmanager
    def _merged(self, model: str) -> Iterator[PreTrainedModel]:
        """Yield the module. On a CPU its adapter is merged into the weights inside, because
        adapters slow decoding down. The tensors of the base are put back and never written. The
        merged weights are kept until the model changes or another one generates."""
        module = self.models.module(model)
        if self.models.device.type != "cpu":
            yield module
            return
        if model not in self.merged:
            self.merged = {model: merged_layers(module, model)}
        layers = self.merged[model]
        originals = [entry.base.data for entry in layers]
        try:
            for entry in layers:
                entry.base.data = entry.weight
                entry.layer.merged_adapters = [model]
            yield module
        finally:
            for entry, weight in zip(layers, originals, strict=True):
                entry.base.data = weight
                entry.layer.merged_adapters = []

    def _cache(self, model: str) -> PrefixCache:
        if model not in self.caches:
            config = self.models.module(model).config.get_text_config(decoder=True)
            kinds = set(getattr(config, "layer_types", None) or ()) - CACHEABLE_LAYERS
            if kinds:
                line = f"the hf generator cannot cache layers of kind {', '.join(sorted(kinds))}"
                line += "; use a model with attention layers only"
                raise UserError(line, code="layer-not-cacheable")
            layers = config.num_hidden_layers
            self.caches[model] = PrefixCache(self.cache_tokens, layers, self.models.device)
        return self.caches[model]

    def _half_tokens(self, model: str) -> int:
        """Return how many tokens fit into half of the memory for keys and values."""
        if not self.half_bytes:
            device, limit = self.models.device, NO_LIMIT
            if self.cache_mib is not None:
                limit = int(self.cache_mib * 2**20)
            elif device.type == "cuda":
                unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
                limit = int(FREE_SHARE * (torch.cuda.mem_get_info(device)[0] + unused))
            self.half_bytes = limit // 2
        return self.half_bytes // self._token_bytes(model)

    def _token_bytes(self, model: str) -> int:
        """Return the bytes of one token's keys and values: measured, or from the configuration."""
        cache = self.caches.get(model)
        if cache is not None and cache.pool:
            return cache.nbytes // len(cache.hashes)
        return token_bytes(self.models.module(model))

    def _parts(
        self, prompts: list[list[int]], sampling: Sampling, model: str
    ) -> Iterator[list[tuple[int, int]]]:
        """Yield batches of (prompt, sample), shortest first, as large as fit; trim in between."""
        rows = [(i, j) for i in range(len(prompts)) for j in range(sampling.n)]
        rows.sort(key=lambda row: len(prompts[row[0]]))
        samples = _samples_per_row(self.models.module(model), sampling)
        while rows:
            few = [prompts[i] for i, _ in rows[: self.max_batch]]
            self.check_context(len(few[0]) + sampling.max_tokens - 1, model)
            sizes = list(batch_sizes(few, sampling.max_tokens, samples))  # ascending
            most = self._half_tokens(model)
            count = sum(max(size) <= most for size in sizes)
            self._make_room(model, sizes[count - 1][0])
            yield rows[:count]
            rows = rows[count:]
            self.caches[model].trim()

    def _make_room(self, model: str, tokens: int) -> None:
        """Make room for `tokens` of this model; drop least recently used caches if needed."""
        self.caches[model] = cache = self.caches.pop(model)
        others = [name for name in self.caches if name != model]
        free = self.half_bytes - sum(self.caches[name].nbytes for name in others)
        while others and free < tokens * self._token_bytes(model):
            free += self.caches.pop(others.pop(0)).nbytes
        cache.max_slots = free // self._token_bytes(model)
        cache.max_copied = self._half_tokens(model)


@torch.inference_mode(False)
@torch.no_grad()
def merged_layers(module: nn.Module, adapter: str) -> list[MergedLayer]:
    """Return the layers with this adapter, merged. Layers with shared weights are left out.

    In bfloat16 weights are rounded at random, which keeps small adapters.
    """
    every = module.named_parameters(remove_duplicate=False)
    uses = Counter(id(weight) for _, weight in every)
    random, noises = torch.Generator().manual_seed(0), dict[torch.Size, Tensor]()
    found = []
    for layer in module.modules():
        if not (isinstance(layer, LoraLinear) and adapter in layer.lora_A):
            continue
        weight = layer.get_base_layer().get_parameter("weight")
        if uses[id(weight)] > 1:
            continue
        merged = weight.float() + layer.get_delta_weight(adapter)
        if weight.dtype == torch.bfloat16:
            if weight.shape not in noises:
                noises[weight.shape] = rounding_noise(weight.shape, random)
            merged = round_at_random(merged, noises[weight.shape])
        found.append(MergedLayer(layer, weight, merged.to(weight.dtype)))
    return found


def rounding_noise(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Return the random numbers with which `round_at_random` rounds weights of this shape."""
    return torch.randint(2**16, shape, dtype=torch.int32, generator=generator)


def round_at_random(weight: Tensor, noise: Tensor) -> Tensor:
    """Return float32 weights, each rounded up or down to a bfloat16 at random with the probability
    that keeps its mean. Rounding to the nearest number would drop most of a small adapter.
    `weight` is overwritten."""
    bits = weight.view(torch.int32).add_(noise)  # bfloat16 is the upper half of the bits
    return bits.bitwise_and_(-(2**16)).view(torch.float32)


# how much memory a batch needs


def batch_sizes(
    prompts: list[list[int]], max_tokens: int, samples_per_row: int
) -> Iterator[tuple[int, int]]:
    """Yield the tokens to store and to copy for batches of the first 1, 2, ... sorted prompts."""
    times: Counter[tuple[int, ...]] = Counter()
    stored, rows, most = 0, 0, 1
    for prompt in prompts:
        key = tuple(prompt)
        stored += max_tokens + (0 if key in times else len(prompt) - 1)
        rows += times[key] % samples_per_row == 0
        times[key] += 1
        most = max(most, min(times[key], samples_per_row))
        yield stored, rows * (len(prompt) - 1 + max_tokens * most)


def check_layers(module: PreTrainedModel) -> None:
    """Raise UserError if the layers differ in their sizes, or if some share keys and values."""
    config = module.config.get_text_config(decoder=True)
    names = ("head_dim", "num_key_value_heads", "intermediate_size")
    try:
        is_uniform = not any(isinstance(getattr(config, name, None), list) for name in names)
    except RuntimeError:  # raised by Transformers for a size of its own in each layer
        is_uniform = False
    if not is_uniform or getattr(config, "num_kv_shared_layers", 0):
        line = f"layers of {config.model_type} differ in their sizes or share keys and values"
        line += "; use a model whose layers are all alike"
        raise UserError(line, code="layer-not-cacheable")


def token_bytes(module: PreTrainedModel) -> int:
    """Return the bytes of one token's keys and values according to the model's configuration.
    Raises UserError if its layers are not alike."""
    check_layers(module)
    config = module.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * size * module.dtype.itemsize


def _samples_per_row(module: PreTrainedModel, sampling: Sampling) -> int:
    """Return how many samples of a prompt share a row of the cache.

    Sharing needs attention that takes a mask per sample in every layer, and rotary positions.
    """
    config = module.config.get_text_config(decoder=True)
    layers = getattr(config, "layer_types", None) or ["full_attention"]
    window = getattr(config, "sliding_window", None)
    full = set(layers) == {"full_attention"} and not window
    dense = str(config._attn_implementation).startswith(("sdpa", "eager", "agentrl_branch"))
    shares = full and dense and config.model_type in ROTARY_FAMILIES
    return SAMPLES_PER_ROW if sampling.n > 1 and shares else 1


# prefill


def prefill(
    module: PreTrainedModel, cache: PrefixCache, ids: Integers, lengths: Integers
) -> Integers:
    """Read all tokens that are not cached; return the slots [rows, longest], -1 for padding."""
    hashes = cache.hash(ids, lengths)
    slots = cache.find(hashes)  # [rows, longest]
    end = np.zeros((len(slots), 1), np.bool_)
    cached = np.argmin(np.concatenate([slots >= 0, end], axis=1), axis=1).astype(np.int64)
    if not hashes.shape[1]:  # prompts of one token, which decoding reads
        return slots
    cost = pass_cost(cache.device.type)
    for spans in plan_rounds(hashes, lengths, np.minimum(cached, lengths)):
        sizes, ones = (spans.ends - spans.starts).tolist(), [1] * len(spans.rows)
        for part in cheapest_slices(sizes, ones, PREFILL_TOKENS, cost):
            for few in _halved(spans.select(part), cache.max_copied):
                _read_spans(module, cache, ids, hashes, slots, few)
        slots = cache.find(hashes)
    return slots


def plan_rounds(hashes: Hashes, lengths: Integers, cached: Integers) -> list[Spans]:
    """Plan which tokens to read, in rounds that build on earlier rounds; longest spans first.

    Of each row the first `cached` tokens are in the cache. A token that rows share is read once, in
    the longest of them, if that saves enough tokens. Otherwise there is one round.
    """
    missing = np.flatnonzero(cached < lengths)
    by_length = missing[np.argsort(-lengths[missing], kind="stable")]
    every = Spans(by_length, cached[by_length], lengths[by_length])
    owners = _owners(hashes[by_length], every)
    owned = owners == np.arange(len(owners))[:, None]
    starts = np.where(owned.any(1), owned.argmax(1), every.ends)
    rounds = np.zeros(len(starts), np.int64)
    for i in np.flatnonzero(starts > every.starts):
        rounds[i] = 1 + rounds[owners[i, starts[i] - 1]]
    if (starts - every.starts).sum() < MIN_SAVED * int(rounds.max(initial=0)):
        starts, rounds = every.starts, np.zeros_like(rounds)
    order = np.argsort(starts - every.ends, kind="stable")
    spans, rounds = Spans(by_length, starts, every.ends).select(order), rounds[order]
    unread = spans.starts < spans.ends
    numbers = np.unique(rounds[unread])
    return [spans.select(np.flatnonzero(unread & (rounds == number))) for number in numbers]


def _owners(hashes: Hashes, spans: Spans) -> Integers:
    """Return the first span that has each unread token [spans, longest]; -1 for other tokens."""
    columns = np.arange(hashes.shape[1])
    unread = (columns >= spans.starts[:, None]) & (columns < spans.ends[:, None])
    _, first, which = np.unique(hashes[unread], return_index=True, return_inverse=True)
    owners = np.full(hashes.shape, -1)
    owners[unread] = np.nonzero(unread)[0][first[which]]
    return owners


def _halved(spans: Spans, most: int) -> list[Spans]:
    """Cut the spans in two until the padded rows of each part have at most `most` tokens."""
    count = len(spans.rows)
    if count * int(spans.starts.max() + (spans.ends - spans.starts).max()) <= most or count == 1:
        return [spans]
    halves = (slice(count // 2), slice(count // 2, None))
    return [few for half in halves for few in _halved(spans.select(half), most)]


def _read_spans(
    module: PreTrainedModel,
    cache: PrefixCache,
    ids: Integers,
    hashes: Hashes,
    slots: Integers,
    spans: Spans,
) -> None:
    """Run a forward pass over the spans, padded on the right, and store its keys and values."""
    past, inside = align_right(slots[spans.rows], spans.starts)
    columns = spans.starts[:, None] + np.arange(int((spans.ends - spans.starts).max()))
    new = columns < spans.ends[:, None]
    columns = np.minimum(columns, spans.ends[:, None] - 1)
    batch_cache = cache.gather(past, columns.shape[1], ends_pass=True)
    with suppress(StopForward):
        module(
            input_ids=_tensor(np.take_along_axis(ids[spans.rows], columns, 1), cache.device),
            attention_mask=_tensor(np.concatenate([inside, new], axis=1), cache.device),
            position_ids=_tensor(columns, cache.device),
            past_key_values=batch_cache,
            use_cache=True,
            logits_to_keep=1,
        )
    row, column = np.nonzero(new)
    new_hashes = np.take_along_axis(hashes[spans.rows], columns, axis=1)[new]
    cache.store(new_hashes, row, column + past.shape[1], batch_cache)


# decoding


def _prefilled_batch(
    module: PreTrainedModel,
    cache: PrefixCache,
    prompts: list[list[int]],
    streams: list[tuple[int, int]],
    sampling: Sampling,
) -> Batch:
    """Return a batch with all but the last token of each prompt in its cache."""
    unique = {key: i for i, key in enumerate(dict.fromkeys(map(tuple, prompts)))}
    which = [unique[tuple(prompt)] for prompt in prompts]  # [B]: into the unique ones
    ids, lengths = pad([list(prompt[:-1]) for prompt in unique])
    past, inside = align_right(prefill(module, cache, ids, lengths), lengths)
    device, most = cache.device, sampling.max_tokens
    cells = _grid(which, _samples_per_row(module, sampling))  # [G, N]
    heads = np.array(which)[cells[:, 0]]  # [G]: into the unique ones
    last_ids = torch.tensor([prompt[-1] for prompt in unique], device=device)[heads]
    shape, samples = (len(prompts) + 1, most), cells.shape[1]
    batch_cache = cache.gather(
        past[heads], min(most, FREE_COLUMNS) * samples, max_columns=past.shape[1] + most * samples
    )
    return Batch(
        prompts=prompts,
        cells=_tensor(cells, device),
        cache=batch_cache,
        mask=_tensor(inside[heads], device)[:, None].repeat(1, samples, 1),
        last_ids=last_ids[:, None].repeat(1, samples),
        positions=_tensor(lengths[heads], device),
        uniforms=_uniforms([*streams, (0, 0)], sampling).to(device),
        columns=torch.zeros(*shape, dtype=torch.int64, device=device),
        tokens=torch.zeros(*shape, dtype=torch.int64, device=device),
        logprobs=torch.zeros(*shape, device=device),
        lengths=torch.full((shape[0],), most, device=device),
    )


def _grid(which: list[int], most: int) -> Integers:
    """Group rows of equal number in `which` into a grid [G, N <= most]; len(which) if empty."""
    rows_of: dict[int, list[int]] = {}
    for row, number in enumerate(which):
        rows_of.setdefault(number, []).append(row)
    parts = [rows[i : i + most] for rows in rows_of.values() for i in range(0, len(rows), most)]
    rows, lengths = pad(sorted(parts))
    return np.where(np.arange(rows.shape[1]) < lengths[:, None], rows, len(which))


def draw(logits: Tensor, temperature: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Sample from logits [rows, words] by inverting the CDF at `uniform` [rows, 1].

    Returns token ids [rows] and their log-probs at temperature 1 [rows]. Temperature 0 is greedy.
    """
    logprobs = torch.log_softmax(logits, -1)
    if temperature == 0:
        ids = logits.argmax(-1, keepdim=True)
    else:
        scaled = logits if temperature == 1 else logits / temperature
        ids = invert_cdf(torch.softmax(scaled, -1), uniform)
    return ids[:, 0], logprobs.gather(-1, ids)[:, 0]


def invert_cdf(probs: Tensor, uniform: Tensor) -> Tensor:
    """Return the first word of each row whose CDF is above `uniform` [rows, 1], as ids [rows, 1].

    `probs` is [rows, words]. In a large vocabulary the block of the word is found first, from the
    sums of the blocks, which is faster than the CDF of all words.
    """
    words = probs.shape[-1]
    if words <= BLOCK**2:
        return _search(probs.cumsum(-1), uniform)
    blocks = nn.functional.pad(probs, (0, -words % BLOCK)).unflatten(-1, (-1, BLOCK))
    mass = blocks.sum(-1).cumsum(-1)  # [rows, blocks]
    block = _search(mass, uniform)
    chosen = blocks.gather(1, block[..., None].expand(-1, -1, BLOCK))[:, 0]  # [rows, BLOCK]
    inside = chosen.cumsum(-1)
    before = nn.functional.pad(mass, (1, 0)).gather(1, block)
    left = (mass[:, -1:] * uniform * BELOW_ONE - before) / inside[:, -1:]
    return block * BLOCK + _search(inside, left.clamp(0, 1))


def _search(mass: Tensor, uniform: Tensor) -> Tensor:
    """Return the first index of each row with `mass` above the share `uniform` of its end."""
    ids = torch.searchsorted(mass, mass[:, -1:] * uniform * BELOW_ONE, right=True)
    return ids.clamp(max=mass.shape[-1] - 1)  # NaN would exceed it


def _uniforms(streams: list[tuple[int, int]], sampling: Sampling) -> Tensor:
    """Return numbers in [0, 1) from each row's random stream (seed, j): [rows, max_tokens]."""
    if sampling.temperature == 0:
        return torch.zeros(len(streams), 0)
    draws = [
        np.random.Generator(np.random.Philox(key=[seed, j])).random(sampling.max_tokens, np.float32)
        for seed, j in streams
    ]
    return torch.from_numpy(np.stack(draws))


def _sample_all(
    module: PreTrainedModel, cache: PrefixCache, batch: Batch, sampling: Sampling
) -> None:
    """Sample until every row has a stop token or reaches the limit; store all that was read."""
    stop = torch.tensor(sampling.stop_ids, dtype=torch.int64, device=cache.device)
    none = len(batch.prompts)
    running = torch.arange(none + 1, device=cache.device) < none  # [B + 1]
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
            _store_prefixes(cache, batch, ~left & (batch.cells < none))
            batch.select(left)
    _store_prefixes(cache, batch, batch.cells < none)


def _forward(module: PreTrainedModel, batch: Batch, step: int, **options: bool) -> Any:
    """Run one forward pass over every sample's last token."""
    count, samples, start = *batch.cells.shape, batch.mask.shape[-1]
    at = torch.arange(samples, device=batch.mask.device)
    batch.columns[batch.cells, step] = start + at
    itself = (at == at[:, None]).expand(count, -1, -1)  # [G, N, N]
    batch.mask = mask = torch.cat([batch.mask, itself], -1)
    if samples > 1:  # [G, 1, N, columns], added to attention scores
        zeros = torch.zeros_like(mask, dtype=module.dtype)
        attention_mask = zeros.masked_fill(~mask, -torch.inf)[:, None]
    else:
        attention_mask = mask[:, 0]
    return module(
        input_ids=batch.last_ids,
        attention_mask=attention_mask,
        position_ids=(batch.positions + step)[:, None].expand(-1, samples),
        past_key_values=batch.cache,
        use_cache=True,
        logits_to_keep=samples,
        **options,
    )


def _store_prefixes(cache: PrefixCache, batch: Batch, chosen: Tensor) -> None:
    """Store the states of the chosen cells [G, N]: last prompt token, sampled tokens but one."""
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
    hashes = np.take_along_axis(cache.hash(ids, lengths), at, axis=1)[inside]
    columns = batch.columns[members].cpu().numpy()[:, : len(steps)][inside]
    cache.store(hashes, cache_rows[np.nonzero(inside)[0]], columns, batch.cache)


def _completions(batch: Batch, sampling: Sampling) -> list[Completion]:
    columns = (batch.tokens.tolist(), batch.logprobs.tolist(), batch.lengths.tolist())
    completions = []
    for ids, logprobs, count in list(zip(*columns, strict=True))[:-1]:
        finish = "stop" if ids[count - 1] in sampling.stop_ids else "length"
        completions.append(Completion(ids[:count], logprobs[:count], finish))
    return completions


def _tensor(values: NDArray[np.int64] | NDArray[np.bool_], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
