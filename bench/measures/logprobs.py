"""Log-probs and entropies over the vocabulary of a real model, forward and backward: in chunks, as
in every update, and from the logits of all positions at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentrl_cli.core.types import Sample
from agentrl_cli.models.forward import Batch, collate, forward


class LogprobCase:
    """An episode in which every token but the first is trained, and a model of two layers."""

    def __init__(self, vocabulary: int, tokens: int, width: int) -> None:
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=vocabulary, hidden_size=width, intermediate_size=38 * width // 7,
            num_hidden_layers=2, num_attention_heads=width // 64, num_key_value_heads=2,
            max_position_embeddings=tokens, tie_word_embeddings=True,
        )  # fmt: skip
        self.module = Qwen2ForCausalLM(config)
        ids = random.Random(0).choices(range(vocabulary), k=tokens)
        self.batch: Batch = collate([Sample(ids, [0] + [1] * (tokens - 1))])

    def chunked(self) -> Tensor:
        """Return log-probs [tokens - 1] by `agentrl_cli.models.forward.forward`. The
        gradients of their sum are computed and dropped."""
        return self._backward(forward(self.module, self.batch).logprobs[0, 1:])

    def plain(self) -> Tensor:
        """Return the same from full logits [tokens, vocabulary]. Both compute the entropy,
        too."""
        logits = self.module(input_ids=self.batch.ids, use_cache=False).logits[0, :-1]
        logprobs = logits.float().log_softmax(-1)
        with torch.no_grad():
            logprobs.exp().mul_(logprobs).sum(-1)
        return self._backward(logprobs.gather(-1, self.batch.ids[0, 1:, None])[:, 0])

    def _backward(self, logprobs: Tensor) -> Tensor:
        logprobs.sum().backward()
        self.module.zero_grad()
        return logprobs.detach()


def peak(work: Callable[[], object]) -> int:
    """Return the peak of bytes that torch held during the work minus those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        work()
    assert watched.profiler is not None and watched.profiler.kineto_results is not None
    events = [e for e in watched.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    changes = [event.nbytes() for event in events]  # pyright: ignore[reportAttributeAccessIssue]
    return max(accumulate(changes))
