"""Forward passes: samples to padded batches; log-probs, entropies and values of their tokens.

Logits exist only at positions that predict a trained token, and only a chunk of them at a time.
`ModelForward` is the module that the learner trains: a body and an optional head.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from agentrl_cli.core.batching import cheapest_slices, pass_cost
from agentrl_cli.core.distributed import Ranks
from agentrl_cli.core.types import Sample
from agentrl_cli.models import packed_attention

Module = PreTrainedModel | PeftModel
Read = tuple[list[float], Tensor]  # a sample's log-probs, and values [length] or [length, heads]
LOGITS_AT_ONCE = 2**26  # logits that exist at once: 256 MiB of float32


@dataclass
class Batch:
    """Samples padded on the right: `ids` [B, L] long, `mask` and per-token fields [B, L] float32,
    `lengths` [B] long."""

    ids: Tensor
    mask: Tensor
    per_token: dict[str, Tensor]
    lengths: Tensor

    def to(self, device: torch.device) -> Batch:
        """Return the batch on `device`."""
        per_token = {name: values.to(device) for name, values in self.per_token.items()}
        return Batch(self.ids.to(device), self.mask.to(device), per_token, self.lengths.to(device))


@dataclass
class Outputs:
    """One number per token, [B, L] float32.

    `logprobs[:, t]` is log p(ids[t] | ids[:t]) if the mask is 1, else 0. `entropy` is the entropy
    of that distribution in nats. `values[:, t]` reads the prefix ids[:t + 1]; [B, L, heads] with
    several heads.
    """

    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None


def collate(samples: list[Sample], pad_id: int = 0) -> Batch:
    """Return right-padded tensors. Raises ValueError if a sample trains its first token, begins
    with a branch, or has per-token fields of another length."""
    for sample in samples:
        sizes = {len(sample.mask), *(len(values) for values in sample.per_token.values())}
        if sizes != {len(sample.ids)}:
            raise ValueError(
                f"a sample has {len(sample.ids)} ids but per-token fields of {sorted(sizes)}"
            )
        if sample.mask[0] or sample.per_token.get("branch", [0.0])[0]:
            raise ValueError("a sample begins with a branch or trains its first token")
    lengths = [len(sample.ids) for sample in samples]
    names = sorted({name for sample in samples for name in sample.per_token})
    per_token = {name: _pad([s.per_token[name] for s in samples], max(lengths)) for name in names}
    ids = [sample.ids + [pad_id] * (max(lengths) - len(sample.ids)) for sample in samples]
    mask = _pad([[float(m) for m in sample.mask] for sample in samples], max(lengths))
    return Batch(torch.tensor(ids), mask, per_token, torch.tensor(lengths))


def _pad(rows: list[list[float]], length: int) -> Tensor:
    return torch.tensor([row + [0.0] * (length - len(row)) for row in rows], dtype=torch.float32)


def micro_batches(
    groups: list[list[int]], samples: list[Sample], tokens: int, pass_cost: int
) -> list[list[int]]:
    """Return sample numbers in micro-batches of at most `tokens` padded tokens, longest first. A
    group is never split, even if it is larger. The batches minimize padding plus `pass_cost` tokens
    per batch."""
    lengths = [_length(group, samples) for group in groups]
    order = sorted(range(len(groups)), key=lambda g: -lengths[g])
    by_length, rows = [lengths[g] for g in order], [len(groups[g]) for g in order]
    slices = cheapest_slices(by_length, rows, tokens, pass_cost)
    return [[i for g in order[part] for i in groups[g]] for part in slices]


@dataclass(frozen=True)
class Pass:
    """One micro-batch of this rank. It does not count if it only keeps step with other ranks."""

    rows: list[int]
    counts: bool = True


def rank_passes(
    groups: list[list[int]], samples: list[Sample], tokens: int, device: str, ranks: Ranks
) -> list[Pass]:
    """Return this rank's micro-batches of the groups. All ranks have equally many; a rank with
    fewer repeats the shortest group."""
    shares, cost = [groups], pass_cost(device)
    if ranks.size > 1:  # deal the groups, longest first
        lengths = [_length(group, samples) for group in groups]
        order = sorted(range(len(groups)), key=lambda g: -lengths[g])
        shares = [[groups[g] for g in order[rank :: ranks.size]] for rank in range(ranks.size)]
    batches_of = [micro_batches(share, samples, tokens, cost) for share in shares]
    own = batches_of[ranks.rank]
    missing = max(map(len, batches_of)) - len(own)
    idle = [min(groups, key=lambda group: _length(group, samples))] if missing else []
    return [Pass(rows) for rows in own] + [Pass(rows, counts=False) for rows in idle * missing]


def _length(group: list[int], samples: list[Sample]) -> int:
    return max(len(samples[i].ids) for i in group)


def forward(
    module: Module,
    batch: Batch,
    head: nn.Module | None = None,
    *,
    entropy_gradient: bool = False,
    head_only: bool = False,
) -> Outputs:
    """Run the body once and return log-probs, entropy and, with a head, values.

    With `entropy_gradient` the entropy is differentiable. With `head_only` only the head gets a
    gradient. Field `branch` marks branches (models/packed_attention.py); without it no attention
    mask is needed, because causal attention keeps right padding from real tokens.
    """
    model = causal_lm(module)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not head_only):
        with _checkpointing(model):
            hidden, predictors = _hidden_states(model, batch)  # [B, L, width], [B, L]
        trained = batch.mask.bool()  # [B, L], N of them true
        trained[:, 0] = False
        states = hidden[trained.nonzero()[:, 0], predictors[trained]]  # [N, width]
        targets = batch.ids[trained]  # [N]
        size = max(1, LOGITS_AT_ONCE // model.config.get_text_config().vocab_size)
        chunks = states.split(size), targets.split(size)
        numbers = read_in_chunks(vocabulary_head(model), entropy_gradient, *chunks)  # [N] each
        zeros = torch.zeros_like(batch.mask, dtype=torch.float32)  # FSDP casts the mask
        logprobs, entropy = (zeros.masked_scatter(trained, row) for row in numbers)
    return Outputs(logprobs, entropy, None if head is None else head(hidden))


def _hidden_states(model: PreTrainedModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return hidden states [B, L, width], and the column [B, L] that predicts each token."""
    if "branch" in batch.per_token:
        labels = batch.per_token["branch"]
        hidden = packed_attention.hidden_states(model, batch.ids, labels, batch.lengths)
        return hidden, packed_attention.predecessors(labels)
    hidden = model.base_model(input_ids=batch.ids, use_cache=False).last_hidden_state
    columns = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    return hidden, (columns - 1).expand_as(batch.ids)


@contextmanager
def _checkpointing(model: PreTrainedModel) -> Iterator[None]:
    """Set layers to training mode, in which alone they checkpoint; sampling needs eval mode."""
    modules = model.modules() if torch.is_grad_enabled() else ()
    layers = [part for part in modules if isinstance(part, GradientCheckpointingLayer)]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def read_in_chunks(
    head: nn.Module, entropy_gradient: bool, states: Sequence[Tensor], targets: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies [N] of targets [N] predicted from states [N, width], both
    given in chunks. The logits of several chunks are recomputed in the backward pass."""
    if len(states) == 1:
        logprobs = head(states[0]).float().log_softmax(-1)  # [N, vocabulary]
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy = -(logprobs.exp() * logprobs).sum(-1)  # [N]
        return logprobs.gather(-1, targets[0][:, None]).squeeze(-1), entropy
    weights = [weight for weight in head.parameters() if weight.requires_grad]
    pairs = zip(states, targets, strict=True)
    parts = [Recomputed.apply(head, entropy_gradient, *pair, *weights) for pair in pairs]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


class Recomputed(torch.autograd.Function):
    """Log-probs and entropies of one chunk, without keeping its logits.

    The backward pass computes the logits again and overwrites them with their gradient: 1[y] - p
    for log p(y), and -p (log p + H) for the entropy H. `weights` are the head's trained weights,
    which autograd must see.
    """

    @staticmethod
    def forward(
        ctx: Any, head: nn.Module, entropy_gradient: bool, states: Tensor, targets: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        device = states.device.type
        dtype, enabled = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        ctx.head, ctx.entropy_gradient = head, entropy_gradient
        ctx.autocast = torch.autocast(device, dtype, enabled)
        logits = head(states).float()  # [N, vocabulary]
        chosen = logits.gather(-1, targets[:, None])  # [N, 1]
        logprobs = logits.log_softmax(-1)
        del logits
        chosen_logprobs = logprobs.gather(-1, targets[:, None])
        entropy = -logprobs.exp().mul_(logprobs).sum(-1)  # [N]
        ctx.save_for_backward(states, targets, chosen - chosen_logprobs, entropy, *weights)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return chosen_logprobs.squeeze(-1), entropy

    @staticmethod
    def backward(ctx: Any, of_logprob: Tensor, of_entropy: Tensor) -> tuple[Tensor | None, ...]:
        states, targets, normaliser, entropy, *weights = ctx.saved_tensors
        states = states.detach().requires_grad_(ctx.needs_input_grad[2])
        with torch.enable_grad(), ctx.autocast:
            logits = ctx.head(states)
        of_logprob, of_entropy = of_logprob[:, None], of_entropy[:, None]  # [N, 1]
        slope = logits.detach().float().sub_(normaliser)  # [N, vocabulary]
        if ctx.entropy_gradient:
            p = slope.exp()
            slope.add_(entropy[:, None]).mul_(-of_entropy).sub_(of_logprob).mul_(p)
        else:
            slope.exp_().mul_(-of_logprob)
        slope.scatter_add_(-1, targets[:, None], of_logprob)
        trained = [states, *weights] if states.requires_grad else weights
        found = list(torch.autograd.grad(logits, trained, slope.to(logits.dtype)))
        return None, None, found.pop(0) if states.requires_grad else None, None, *found


def causal_lm(module: Module) -> PreTrainedModel:
    """Return the causal language model, with its adapters in place."""
    model = module.get_base_model() if isinstance(module, PeftModel) else module
    assert isinstance(model, PreTrainedModel)
    return model


def max_positions(module: Module) -> int:
    """Return the maximum sequence length of the model; `sys.maxsize` if it has none."""
    config = causal_lm(module).config.get_text_config()
    return getattr(config, "max_position_embeddings", sys.maxsize)


def vocabulary_head(model: PreTrainedModel) -> nn.Module:
    """Return the projection from hidden states to logits."""
    head = model.get_output_embeddings()
    assert head is not None
    return head


@dataclass(frozen=True)
class Passes:
    """Options of forward passes: `compute` is the dtype of autocast (None: that of the weights),
    `ids` the maximum number of tokens of a pass without gradient."""

    compute: torch.dtype | None = None
    ids: int = 16384


class ModelForward(nn.Module):
    """A body and a head as one module, which sharding can wrap. Call `compute`."""

    def __init__(
        self,
        body: Module,
        head: nn.Module | None = None,
        ranks: Ranks | None = None,
        passes: Passes | None = None,
    ) -> None:
        super().__init__()
        self.body, self.head, self.ranks = body, head, ranks or Ranks()
        self.passes = passes or Passes()

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return causal_lm(self.body).device

    def compute(
        self, batch: Batch, *, entropy_gradient: bool = False, head_only: bool = False
    ) -> Outputs:
        """Return the outputs of a batch, as `forward` does, under autocast."""
        compute, device = self.passes.compute, self.device.type
        with torch.autocast(device, compute, enabled=compute is not None):
            return Outputs(*self(batch, entropy_gradient, head_only))

    def forward(
        self, batch: Batch, entropy_gradient: bool, head_only: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return a tuple, in which the hooks of sharding find tensors."""
        found = forward(
            self.body, batch, self.head, entropy_gradient=entropy_gradient, head_only=head_only
        )
        return found.logprobs, found.entropy, found.values


def token_logprobs(model_forward: ModelForward, samples: list[Sample]) -> list[list[float]]:
    """Return the log-probs of each sample's trained tokens, 0 elsewhere."""
    return [logprobs for logprobs, _ in logprobs_and_values(model_forward, samples)]


def add_logprobs(model_forward: ModelForward, samples: list[Sample], name: str) -> None:
    """Write `token_logprobs` into the per-token field `name` of the samples."""
    for sample, logprobs in zip(samples, token_logprobs(model_forward, samples), strict=True):
        sample.per_token[name] = logprobs


@torch.no_grad()
def logprobs_and_values(model_forward: ModelForward, samples: list[Sample]) -> list[Read]:
    """Return each sample's `token_logprobs`, and the head's values of every token, [length] or
    [length, heads], on the CPU (0 without a head). Every rank reads a share."""
    if not samples:
        return []
    found: dict[int, Read] = {}
    singles, kind = [[i] for i in range(len(samples))], model_forward.device.type
    ranks = model_forward.ranks
    values = torch.zeros(1)
    with ranks.together(passes=True):
        for part in rank_passes(singles, samples, model_forward.passes.ids, kind, ranks):
            batch = collate([samples[i] for i in part.rows]).to(model_forward.device)
            outputs = model_forward.compute(batch)
            values = torch.zeros_like(batch.mask) if outputs.values is None else outputs.values
            if part.counts:
                rows = zip(part.rows, outputs.logprobs.tolist(), values.cpu(), strict=True)
                for i, logprobs, read in rows:
                    length = len(samples[i].ids)
                    found[i] = (logprobs[:length], read[:length])
    if ranks.size == 1:
        return [found[i] for i in range(len(samples))]
    lengths = [len(sample.ids) for sample in samples]
    count, per_token = sum(lengths), values.shape[2:]
    all_logprobs, all_values = torch.zeros(count), torch.zeros(count, *per_token)
    shared = list(zip(all_logprobs.split(lengths), all_values.split(lengths), strict=True))
    for i, (own_logprobs, own_values) in found.items():
        shared[i][0].copy_(torch.tensor(own_logprobs))
        shared[i][1].copy_(own_values)
    ranks.sum(all_logprobs)
    ranks.sum(all_values)
    return [(row.tolist(), read) for row, read in shared]
