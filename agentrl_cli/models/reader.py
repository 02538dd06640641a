"""A model as training reads it: body, adapters and head in one module, through which alone the
learner and the algorithms pass; and what a model says of many samples, read by all ranks together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from agentrl_cli.core.batching import pass_cost
from agentrl_cli.core.ranks import Ranks
from agentrl_cli.core.types import Sample
from agentrl_cli.models.policy import (
    Batch,
    Module,
    Outputs,
    causal_lm,
    collate,
    forward,
    micro_batches,
)

Read = tuple[list[float], Tensor]  # a sample's log-probs, and values [length] or [length, 2]


@dataclass(frozen=True)
class Passes:
    """How models are passed through, with gradient and without: `compute` is the format of
    products, by autocast (None: that of the weights); `ids` bounds a pass without gradient."""

    compute: torch.dtype | None = None
    ids: int = 16384


class Reader(nn.Module):
    """One root for body and head: what shards or wraps a model must see every pass from here on.
    `read` is the way in; `forward` gives the same as a tuple, in which hooks find tensors."""

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
        """Where batches must be."""
        return causal_lm(self.body).device

    def read(
        self, batch: Batch, *, entropy_gradient: bool = False, head_only: bool = False
    ) -> Outputs:
        """One pass, as `policy.forward` describes it."""
        compute, device = self.passes.compute, self.device.type
        with torch.autocast(device, compute, enabled=compute is not None):
            return Outputs(*self(batch, entropy_gradient, head_only))

    def forward(
        self, batch: Batch, entropy_gradient: bool, head_only: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Log-probs, entropy and values of a batch."""
        found = forward(
            self.body, batch, self.head, entropy_gradient=entropy_gradient, head_only=head_only
        )
        return found.logprobs, found.entropy, found.values


@dataclass(frozen=True)
class Pass:
    """One pass of this rank: the numbers of its samples, which do not `count` where it only keeps
    step with the other ranks."""

    rows: list[int]
    counts: bool = True


def rank_passes(
    groups: list[list[int]], samples: list[Sample], tokens: int, device: str, ranks: Ranks
) -> list[Pass]:
    """This rank's micro-batches (`policy.micro_batches`) of the groups, as many as every other rank
    makes: who has fewer reads the shortest group again, for nothing."""
    cost, lengths = pass_cost(device), [_length(group, samples) for group in groups]
    shares = _deal(groups, lengths, ranks.size)
    batches_of = [micro_batches(share, samples, tokens, cost) for share in shares]
    own = batches_of[ranks.rank]
    missing = max(map(len, batches_of)) - len(own)
    idle = [min(groups, key=lambda group: _length(group, samples))] if missing else []
    return [Pass(rows) for rows in own] + [Pass(rows, counts=False) for rows in idle * missing]


def _length(group: list[int], samples: list[Sample]) -> int:
    return max(len(samples[i].ids) for i in group)


def _deal(groups: list[list[int]], lengths: list[int], size: int) -> list[list[list[int]]]:
    """The groups in `size` shares of about as many tokens, the longest dealt first."""
    if size == 1:
        return [groups]
    order = sorted(range(len(groups)), key=lambda g: -lengths[g])
    return [[groups[g] for g in order[rank::size]] for rank in range(size)]


def token_logprobs(reader: Reader, samples: list[Sample]) -> list[list[float]]:
    """Log-probs of each sample's trained tokens in the order given, 0.0 elsewhere: ready to be a
    stream."""
    return [logprobs for logprobs, _ in logprobs_and_values(reader, samples)]


def add_logprobs(reader: Reader, samples: list[Sample], stream: str) -> None:
    """Write `token_logprobs` into the samples' stream of that name."""
    for sample, logprobs in zip(samples, token_logprobs(reader, samples), strict=True):
        sample.streams[stream] = logprobs


@torch.no_grad()
def logprobs_and_values(reader: Reader, samples: list[Sample]) -> list[Read]:
    """Of each sample in the order given: its `token_logprobs`, and what the head gives for every
    token, [length] or [length, 2], on the CPU (0 without a head). Every rank reads a share."""
    if not samples:
        return []
    found: dict[int, Read] = {}
    singles, kind = [[i] for i in range(len(samples))], reader.device.type
    values = torch.zeros(1)
    with reader.ranks.together(passes=True):
        for part in rank_passes(singles, samples, reader.passes.ids, kind, reader.ranks):
            batch = collate([samples[i] for i in part.rows]).to(reader.device)
            outputs = reader.read(batch)
            values = torch.zeros_like(batch.mask) if outputs.values is None else outputs.values
            if part.counts:
                rows = zip(part.rows, outputs.logprobs.tolist(), values.cpu(), strict=True)
                for i, logprobs, read in rows:
                    length = len(samples[i].ids)
                    found[i] = (logprobs[:length], read[:length])
    if reader.ranks.size > 1:
        return _from_all_ranks(found, samples, values.shape[2:], reader.ranks)
    return [found[i] for i in range(len(samples))]


def _from_all_ranks(
    found: dict[int, Read], samples: list[Sample], outputs: torch.Size, ranks: Ranks
) -> list[Read]:
    """What all ranks have read, sample by sample; a head gives `outputs` numbers a token."""
    lengths = [len(sample.ids) for sample in samples]
    logprobs, values = torch.zeros(sum(lengths)), torch.zeros(sum(lengths), *outputs)
    rows = list(zip(logprobs.split(lengths), values.split(lengths), strict=True))
    for i, (own_logprobs, own_values) in found.items():
        rows[i][0].copy_(torch.tensor(own_logprobs))
        rows[i][1].copy_(own_values)
    ranks.sum(logprobs)
    ranks.sum(values)
    return [(row.tolist(), read) for row, read in rows]
