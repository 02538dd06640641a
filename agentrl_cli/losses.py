"""Pure functions: losses over a batch of tokens, and advantages and returns over a list of turns.

A loss returns its sum over trained tokens (or turns, or pairs) and sums of metrics; the learner
divides.
"""

from __future__ import annotations

import statistics

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from agentrl_cli.models.policy import Batch, Outputs

Loss = tuple[Tensor, dict[str, Tensor]]


def nll(outputs: Outputs, batch: Batch) -> Loss:
    """Negative log-likelihood of the trained tokens, times stream `weight` where there is one."""
    each = -outputs.logprobs * batch.mask
    loss = (each * batch.streams["weight"]).sum() if "weight" in batch.streams else each.sum()
    return loss, {"nll": each.sum().detach(), "entropy": outputs.entropy.sum()}


def clipped_ratio(
    outputs: Outputs, batch: Batch, clip: float, clip_high: float | None = None
) -> Loss:
    """PPO's clipped surrogate per token (Schulman et al. 2017, eq. 7), negated.

    Streams: `advantage` and `old_logprob` (the behaviour's, as recomputed before the first step).
    The ratio is held in [1 - clip, 1 + clip_high]; `clip_high` is `clip` unless given (Yu et al.
    2025, DAPO).
    """
    advantage = batch.streams["advantage"]
    gap = (outputs.logprobs - batch.streams["old_logprob"]) * batch.mask
    ratio = gap.exp()
    bounded = ratio.clamp(1 - clip, 1 + (clip if clip_high is None else clip_high))
    gain = torch.minimum(ratio * advantage, bounded * advantage)
    metrics = {
        "clip_fraction": (bounded * advantage < ratio * advantage) * batch.mask,
        "approx_kl": (ratio - 1 - gap) * batch.mask,
        "ratio": ratio * batch.mask,
        "entropy": outputs.entropy,
    }
    return -(gain * batch.mask).sum(), {name: each.detach().sum() for name, each in metrics.items()}


def value_error(outputs: Outputs, batch: Batch, clip: float) -> Loss:
    """Squared error of the head's values against stream `return`, weighed by stream `value_at`.

    With `clip` above 0 the larger of it and the error of a value held within `clip` of stream
    `old_value` counts, which keeps a step from moving values further (as in the code of Schulman
    et al. 2017). Raises ValueError where the model has no head.
    """
    if outputs.values is None:
        raise ValueError("value_error needs a model with a head; set ModelSpec.head")
    at, target, old = (batch.streams[name] for name in ("value_at", "return", "old_value"))
    plain = (outputs.values - target) ** 2
    if not clip:
        loss = (plain * at).sum()
        return loss, {"value_loss": loss.detach()}
    held = (old + (outputs.values - old).clamp(-clip, clip) - target) ** 2
    loss = (torch.maximum(plain, held) * at).sum()
    clipped = ((held > plain) * at).sum()
    return loss, {"value_loss": loss.detach(), "value_clip_fraction": clipped.detach()}


def kl_to_reference(outputs: Outputs, batch: Batch) -> Loss:
    """KL(policy || reference) on the policy's own tokens by the k3 estimator (Schulman 2020; GRPO,
    eq. 4).

    Stream: `reference_logprob`. Never negative; its gradient at equality is zero.
    """
    gap = (batch.streams["reference_logprob"] - outputs.logprobs) * batch.mask
    loss = (gap.exp() - 1 - gap).sum()
    return loss, {"kl": loss.detach()}


def dpo(outputs: Outputs, batch: Batch, beta: float) -> Loss:
    """Direct preference optimisation (Rafailov et al. 2023, eq. 7), summed over pairs.

    Rows alternate preferred, dispreferred (`keep_together=2`; half a unit of count each). Stream:
    `reference_logprob`. Raises ValueError for an odd number of rows.
    """
    if len(batch.ids) % 2:
        raise ValueError(
            f"dpo got {len(batch.ids)} rows, which do not pair up; set keep_together=2"
        )
    gain = ((outputs.logprobs - batch.streams["reference_logprob"]) * batch.mask).sum(-1)
    margin = beta * (gain[0::2] - gain[1::2])
    metrics = {"margin": margin.detach().sum(), "accuracy": (margin.detach() > 0).float().sum()}
    return -logsigmoid(margin).sum(), metrics


def bce(outputs: Outputs, batch: Batch) -> Loss:
    """Binary cross-entropy of the head's values as logits, where stream `value_at` is 1, against
    stream `label`.

    Raises ValueError where the model has no head.
    """
    if outputs.values is None:
        raise ValueError("bce needs a model with a head; set ModelSpec.head")
    at, label = batch.streams["value_at"], batch.streams["label"]
    each = binary_cross_entropy_with_logits(outputs.values, label, reduction="none") * at
    right = ((outputs.values > 0) == (label > 0.5)) * at
    return each.sum(), {"accuracy": right.detach().sum()}


def group_advantages(rewards: list[float], groups: list[str], normalise: bool) -> list[float]:
    """Reward minus the mean of its group, over the group's population standard deviation if
    `normalise`.

    Shao et al. 2024 (GRPO), section 4.1. Groups of equal rewards get zeros.
    """
    members: dict[str, list[float]] = {}
    for reward, group in zip(rewards, groups, strict=True):
        members.setdefault(group, []).append(reward)
    means = {group: statistics.mean(row) for group, row in members.items()}
    spread = {
        group: (statistics.pstdev(row) or 1.0) if normalise else 1.0
        for group, row in members.items()
    }
    return [(r - means[g]) / spread[g] for r, g in zip(rewards, groups, strict=True)]


def gae(
    rewards: list[float], values: list[float], dones: list[bool], discount: float, gae_lambda: float
) -> tuple[list[float], list[float]]:
    """Advantages and returns (advantage + value), one per turn (Schulman et al. 2016, eq. 16).

    `values` has one entry more than `rewards`: the value of the state after the last turn, unused
    if that was done.
    """
    _check_lengths(rewards, values, dones)
    advantages, later = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        alive = 0.0 if dones[t] else 1.0
        delta = rewards[t] + discount * alive * values[t + 1] - values[t]
        later = delta + discount * gae_lambda * alive * later
        advantages[t] = later
    return advantages, [a + v for a, v in zip(advantages, values[:-1], strict=True)]


def n_step_returns(
    rewards: list[float], values: list[float], dones: list[bool], discount: float, steps: int
) -> list[float]:
    """The next `steps` rewards, discounted, plus the discounted value of the state they lead to.

    Sutton and Barto 2018, eq. 7.1. Shapes as in `gae`; a sum ends at a done turn, or at the last
    state's value.
    """
    _check_lengths(rewards, values, dones)
    returns = []
    for t in range(len(rewards)):
        end = min(t + steps, len(rewards))
        stop = next((k + 1 for k in range(t, end) if dones[k]), end)
        total = sum(discount ** (k - t) * rewards[k] for k in range(t, stop))
        tail = 0.0 if dones[stop - 1] else discount ** (stop - t) * values[stop]
        returns.append(total + tail)
    return returns


def _check_lengths(rewards: list[float], values: list[float], dones: list[bool]) -> None:
    if not len(rewards) == len(dones) == len(values) - 1:
        raise ValueError(
            f"{len(rewards)} rewards need as many dones and one value more, "
            f"got {len(dones)} and {len(values)}"
        )
