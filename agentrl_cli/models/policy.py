"""One pass over a batch: log-probs of the trained tokens, their entropy, and values where there is
a head. Logits exist only at positions that predict a trained token, and only a chunk of them at a
time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from agentrl_cli.core.batching import cheapest_slices
from agentrl_cli.core.types import Sample
from agentrl_cli.models import packed_attention
from agentrl_cli.models.chunked_head import read_in_chunks

Module = PreTrainedModel | PeftModel
LOGITS_AT_ONCE = 2**26  # logits that exist at once: 256 MiB of float32


@dataclass
class Batch:
    """Samples padded on the right: `ids` [B, L] long, `mask` and every stream [B, L] float32,
    `lengths` [B] long."""

    ids: Tensor
    mask: Tensor
    streams: dict[str, Tensor]
    lengths: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on `device`."""
        streams = {name: stream.to(device) for name, stream in self.streams.items()}
        return Batch(self.ids.to(device), self.mask.to(device), streams, self.lengths.to(device))


@dataclass
class Outputs:
    """One number per token, [B, L] float32. `logprobs[:, t]` is log p(ids[t] | ids[:t]) where the
    mask is 1 and 0 elsewhere (always 0 at t = 0); `entropy` is that distribution's, in nats,
    without gradient unless asked for; `values[:, t]` reads the prefix ids[:t + 1]."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None


def collate(samples: list[Sample], pad_id: int = 0) -> Batch:
    """Right-padded tensors. Raises ValueError where a sample trains its first token or begins with
    a shadow, or its lengths differ."""
    for sample in samples:
        _check_sample(sample)
    lengths = [len(sample.ids) for sample in samples]
    names = sorted({name for sample in samples for name in sample.streams})
    streams = {name: _pad([s.streams[name] for s in samples], max(lengths)) for name in names}
    ids = [sample.ids + [pad_id] * (max(lengths) - len(sample.ids)) for sample in samples]
    mask = _pad([[float(m) for m in sample.mask] for sample in samples], max(lengths))
    return Batch(torch.tensor(ids), mask, streams, torch.tensor(lengths))


def forward(
    module: Module,
    batch: Batch,
    head: nn.Module | None = None,
    *,
    entropy_gradient: bool = False,
    head_only: bool = False,
) -> Outputs:
    """Run the body once and read log-probs, entropy and, with a head, values from its hidden
    states. With `entropy_gradient` a loss may differentiate the entropy; with `head_only` it
    reaches the head's weights and no others. A stream `shadow` marks critic prompts
    (models/packed_attention.py). Without one no attention mask is needed: under causal attention
    the padding on the right reaches no real token."""
    with torch.set_grad_enabled(torch.is_grad_enabled() and not head_only):
        logprobs, entropy, hidden = _read_body(causal_lm(module), batch, entropy_gradient)
    return Outputs(logprobs, entropy, None if head is None else head(hidden))


def _read_body(
    model: PreTrainedModel, batch: Batch, entropy_gradient: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs and entropy [B, L] of the trained tokens, and hidden states [B, L, width]."""
    with _checkpointing(model):
        hidden, predictors = _hidden_states(model, batch)  # [B, L, width], [B, L]
    trained = batch.mask.bool()  # [B, L], N of them true
    trained[:, 0] = False
    states = hidden[trained.nonzero()[:, 0], predictors[trained]]  # [N, width]
    targets = batch.ids[trained]  # [N]
    size = max(1, LOGITS_AT_ONCE // model.config.get_text_config().vocab_size)
    chunks = states.split(size), targets.split(size)
    logprobs, entropy = read_in_chunks(vocabulary_head(model), entropy_gradient, *chunks)  # [N]
    zeros = torch.zeros_like(batch.mask)
    logprobs, entropy = (zeros.masked_scatter(trained, row) for row in (logprobs, entropy))
    return logprobs, entropy, hidden


def micro_batches(
    groups: list[list[int]], samples: list[Sample], tokens: int, pass_cost: int
) -> list[list[int]]:
    """Sample numbers in micro-batches of at most `tokens` padded ids, longest first, so that
    padding and micro-batches at `pass_cost` ids each cost least; a group is never split. A group
    larger than `tokens` makes a micro-batch of its own."""
    lengths = [max(len(samples[i].ids) for i in group) for group in groups]
    order = sorted(range(len(groups)), key=lambda g: -lengths[g])
    by_length, rows = [lengths[g] for g in order], [len(groups[g]) for g in order]
    slices = cheapest_slices(by_length, rows, tokens, pass_cost)
    return [[i for g in order[part] for i in groups[g]] for part in slices]


def causal_lm(module: Module) -> PreTrainedModel:
    """The causal language model itself, with its adapters in place."""
    model = module.get_base_model() if isinstance(module, PeftModel) else module
    assert isinstance(model, PreTrainedModel)
    return model


def max_positions(module: Module) -> int:
    """How many tokens the model's positions allow; `sys.maxsize` where it names no limit."""
    config = causal_lm(module).config.get_text_config()
    return getattr(config, "max_position_embeddings", sys.maxsize)


def vocabulary_head(model: PreTrainedModel) -> nn.Module:
    """The projection from hidden states to logits."""
    head = model.get_output_embeddings()
    assert head is not None
    return head


def _hidden_states(model: PreTrainedModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Hidden states [B, L, width], and of each token the column [B, L] whose state predicts it."""
    if "shadow" in batch.streams:
        labels = batch.streams["shadow"]
        hidden = packed_attention.hidden_states(model, batch.ids, labels, batch.lengths)
        return hidden, packed_attention.predecessors(labels)
    hidden = model.base_model(input_ids=batch.ids, use_cache=False).last_hidden_state
    columns = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    return hidden, (columns - 1).expand_as(batch.ids)


@contextmanager
def _checkpointing(model: PreTrainedModel) -> Iterator[None]:
    """Layers checkpoint only while they believe to be training; sampling with a cache needs them
    not to."""
    modules = model.modules() if torch.is_grad_enabled() else ()
    layers = [part for part in modules if isinstance(part, GradientCheckpointingLayer)]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def _check_sample(sample: Sample) -> None:
    """Raise ValueError as `collate` says."""
    sizes = {len(sample.mask), *(len(stream) for stream in sample.streams.values())}
    if sizes != {len(sample.ids)}:
        other = f"a mask or stream of another length (lengths {sorted(sizes)})"
        raise ValueError(f"a sample has {len(sample.ids)} ids but {other}")
    if sample.mask[0]:
        line = "a sample trains its first token, which nothing predicts"
        raise ValueError(f"{line}; put its context before it")
    if sample.streams.get("shadow", [0.0])[0]:
        raise ValueError("a sample begins with a shadow; put what it follows before it")


def _pad(rows: list[list[float]], length: int) -> Tensor:
    return torch.tensor([row + [0.0] * (length - len(row)) for row in rows], dtype=torch.float32)
