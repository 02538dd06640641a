"""Log-probs and entropies from hidden states through the projection to the vocabulary, whose logits
exist a chunk at a time. Which states predict which tokens, `policy` knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def read_in_chunks(
    head: nn.Module, entropy_gradient: bool, states: Sequence[Tensor], targets: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [N] of the targets [N] predicted from states [N, width], both in
    chunks; the logits of more than one chunk are computed again for the backward pass."""
    pairs = list(zip(states, targets, strict=True))
    if len(pairs) == 1:
        return _read(head, entropy_gradient, *pairs[0])
    weights = [weight for weight in head.parameters() if weight.requires_grad]
    parts = [Recomputed.apply(head, entropy_gradient, *pair, *weights) for pair in pairs]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _read(
    head: nn.Module, entropy_gradient: bool, states: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    logprobs = head(states).float().log_softmax(-1)  # [N, vocabulary]
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(logprobs.exp() * logprobs).sum(-1)  # [N]
    return logprobs.gather(-1, targets[:, None]).squeeze(-1), entropy


class Recomputed(torch.autograd.Function):
    """`_read` that keeps no logits. Its backward pass computes them once more and turns them, where
    they are, into their own gradient: that of log p(y) is 1[y] - p, that of the entropy H is
    -p (log p + H). `weights` are the head's that are trained, which autograd must see."""

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
