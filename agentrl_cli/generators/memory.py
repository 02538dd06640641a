"""What keys and values take, how much they may take, and what fits into that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from agentrl_cli.generators.prefixes import NO_LIMIT, Hashes, Integers

FREE_SHARE = 0.5  # of a CUDA device's free memory, where no limit is given


@dataclass(frozen=True)
class BatchSize:
    """How many tokens a batch keeps at most, and how many its padded copy of the cache has."""

    kept: int
    copied: int


def batch_sizes(prompts: list[list[int]], max_tokens: int, together: int) -> Iterator[BatchSize]:
    """The size of a batch of the first 1, 2, … prompts, which are sorted from the shortest;
    `together` equal ones share a row."""
    times: Counter[tuple[int, ...]] = Counter()
    kept, rows, most = 0, 0, 1
    for prompt in prompts:
        key = tuple(prompt)
        kept += max_tokens + (0 if key in times else len(prompt) - 1)
        rows += times[key] % together == 0
        times[key] += 1
        most = max(most, min(times[key], together))
        yield BatchSize(kept, rows * (len(prompt) - 1 + max_tokens * most))


def bytes_at_most(mib: float | None, device: torch.device) -> int:
    """What keys and values may take: as given, else a share of what a CUDA device has free."""
    if mib is not None:
        return int(mib * 2**20)
    if device.type != "cuda":
        return NO_LIMIT
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(FREE_SHARE * (torch.cuda.mem_get_info(device)[0] + unused))


def described_token_bytes(module: PreTrainedModel) -> int:
    """What keys and values of one token take by the model's configuration."""
    config = module.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * size * module.dtype.itemsize


def count_fitting(hashes: Hashes, lengths: Integers, most: int) -> int:
    """How many of the first rows of prefix hashes [rows, longest], each of its length [rows], have
    at most `most` different ones together."""
    inside = np.arange(hashes.shape[1]) < lengths[:, None]
    first = np.unique(hashes[inside], return_index=True)[1]
    new = np.bincount(np.nonzero(inside)[0][first], minlength=len(lengths))  # [rows]
    return int((np.cumsum(new) <= most).sum())
