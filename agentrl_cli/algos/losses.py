"""Pure functions: losses over a batch of tokens, and advantages and returns over a list of turns.

A loss returns its sum over trained tokens (or turns, or pairs) and sums of metrics; the learner
divides.
"""

from __future__ import annotations

import statistics

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid, pad

from agentrl_cli.models.policy import Batch, Outputs

Loss = tuple[Tensor, dict[str, Tensor]]
LOG_RATIO = 20.0  # nats


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
    gap = (outputs.logprobs - batch.streams["old_logprob"]) * batch.mask
    high = clip if clip_high is None else clip_high
    loss, metrics = _surrogate(gap, batch.streams["advantage"], batch.mask, (clip, high))
    return loss, metrics | {"entropy": outputs.entropy.detach().sum()}


def clipped_turns(
    outputs: Outputs, batch: Batch, advantages: Tensor, clip: float, ratio: str
) -> Loss:
    """PPO's clipped surrogate with a turn as the unit, negated and summed over turns.

    `advantages` [B, N]; streams `turn` and `old_logprob`. `ratio` is the probability ratio of a
    whole action (`turn`: exp of the sum of its tokens' log-ratios), that to the power of one over
    its length (`turn_geo`; Zheng et al. 2025, GSPO, eq. 7), or each token's own, averaged over the
    action (`token`). Log-ratios are held within +-20, past which float32 would overflow.
    """
    gap = (outputs.logprobs - batch.streams["old_logprob"]) * batch.mask
    lengths = sum_by_turn(batch.mask, batch)
    turn = batch.streams["turn"].long()
    share = batch.mask / lengths.clamp(min=1).gather(1, turn)
    entropy = (outputs.entropy * share).sum()
    if ratio == "token":
        weight, advantages = share, advantages.gather(1, turn)
    else:
        weight = (lengths > 0).float()
        gap = sum_by_turn(gap * share if ratio == "turn_geo" else gap, batch)
    held = gap.clamp(-LOG_RATIO, LOG_RATIO)
    loss, metrics = _surrogate(held, advantages, weight, (clip, clip))
    return loss, metrics | {"entropy": entropy}


def _surrogate(gap: Tensor, advantage: Tensor, weight: Tensor, clip: tuple[float, float]) -> Loss:
    """The negated weighted sum of min(ratio A, clip(ratio) A), ratio = exp(gap), and its metrics;
    the shapes are equal."""
    ratio = gap.exp()
    bounded = ratio.clamp(1 - clip[0], 1 + clip[1])
    gain = torch.minimum(ratio * advantage, bounded * advantage)
    metrics = {
        "clip_fraction": (bounded * advantage < ratio * advantage) * weight,
        "approx_kl": (ratio - 1 - gap) * weight,
        "ratio": ratio * weight,
    }
    return -(gain * weight).sum(), {name: each.detach().sum() for name, each in metrics.items()}


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
    """KL(policy || reference) on the trained tokens by the k3 estimator (Schulman 2020; GRPO,
    eq. 4), unbiased where the policy sampled them and else an anchor of the same shape.

    Stream: `reference_logprob`. Never negative; its gradient at equality is zero.
    """
    gap = (batch.streams["reference_logprob"] - outputs.logprobs) * batch.mask
    loss = (gap.exp() - 1 - gap).sum()
    return loss, {"kl": loss.detach()}


def with_kl(found: Loss, outputs: Outputs, batch: Batch, weight: float) -> Loss:
    """`found` plus `weight` times `kl_to_reference`, which is not computed where `weight` is 0."""
    if not weight:
        return found
    penalty, metrics = kl_to_reference(outputs, batch)
    return found[0] + weight * penalty, found[1] | metrics


def with_entropy(found: Loss, outputs: Outputs, weight: float) -> Loss:
    """`found` less `weight` times the entropy of the trained tokens' distributions, in nats; the
    pass must have been made with its gradient (`Phase.entropy_gradient`)."""
    return (found[0] - weight * outputs.entropy.sum(), found[1]) if weight else found


def dpo(outputs: Outputs, batch: Batch, beta: float, imitation_coef: float = 0.0) -> Loss:
    """Direct preference optimisation (Rafailov et al. 2023, eq. 7), summed over pairs.

    Rows alternate preferred, dispreferred (`keep_together=2`; half a unit of count each). Stream:
    `reference_logprob`. `imitation_coef` weighs the preferred row's negative log-likelihood per
    token (Pang et al. 2024, arXiv 2404.19733, eq. 1), without which both rows may become unlikely.
    Raises ValueError for an odd number of rows.
    """
    if len(batch.ids) % 2:
        raise ValueError(
            f"dpo got {len(batch.ids)} rows, which do not pair up; set keep_together=2"
        )
    gain = ((outputs.logprobs - batch.streams["reference_logprob"]) * batch.mask).sum(-1)
    margin = beta * (gain[0::2] - gain[1::2])
    each = -(outputs.logprobs * batch.mask).sum(-1) / batch.mask.sum(-1).clamp(min=1)
    loss = -logsigmoid(margin).sum() + imitation_coef * each[0::2].sum()
    metrics = {
        "margin": margin.sum(),
        "accuracy": (margin > 0).float().sum(),
        "preferred_nll": each[0::2].sum(),
    }
    return loss, {name: value.detach() for name, value in metrics.items()}


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


def expert_rewards(logits: list[float], form: str, clip: float) -> list[float]:
    """Rewards that rise with expert-likeness, from the logits of D(s, a), the chance that the agent
    and not the expert acted (Ho and Ermon 2016, with other forms of the same sign).

    `form` is `logit`, log(1 - D) - log D; `unlike_agent`, -log D; or `like_expert`, log(1 - D). All
    are held within +-`clip`.
    """
    logit = torch.tensor(logits)
    forms = {"logit": -logit, "unlike_agent": -logsigmoid(logit), "like_expert": logsigmoid(-logit)}
    return forms[form].clamp(-clip, clip).tolist()


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
    if that was done. Raises ValueError where lengths do not match.
    """
    if not len(rewards) == len(dones) == len(values) - 1:
        raise ValueError(
            f"{len(rewards)} rewards need as many dones and one value more, "
            f"got {len(dones)} and {len(values)}"
        )
    advantages, later = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        alive = 0.0 if dones[t] else 1.0
        delta = rewards[t] + discount * alive * values[t + 1] - values[t]
        later = delta + discount * gae_lambda * alive * later
        advantages[t] = later
    return advantages, [a + v for a, v in zip(advantages, values[:-1], strict=True)]


def sum_by_turn(numbers: Tensor, batch: Batch) -> Tensor:
    """Sums [B, N] of `numbers` [B, L] over the tokens of each turn that stream `turn` names."""
    turn = batch.streams["turn"].long()
    sums = numbers.new_zeros(len(turn), int(turn.max()) + 1)
    return sums.scatter_add(1, turn, numbers)


def shift_left(numbers: Tensor, by: int) -> Tensor:
    """(x << by)_k = x_{k + by} along the last axis, zero past the end."""
    return pad(numbers[..., by:], (0, min(by, numbers.shape[-1])))


def td_targets(rewards: Tensor, values: Tensor, discount: float, steps: int) -> Tensor:
    """Targets T^1 … T^steps, [steps, ..., N], without gradient: the next m rewards, discounted, and
    the value of the state they lead to. `rewards` and `values` are [..., N], the outcome in the
    last state's place, zero behind it. Sutton and Barto 2018, eq. 7.1."""
    values, targets, earned = values.detach(), [], torch.zeros_like(rewards)
    for m in range(1, steps + 1):
        earned = earned + discount ** (m - 1) * shift_left(rewards, m - 1)
        targets.append(earned + discount**m * shift_left(values, m))
    return torch.stack(targets)


def turn_advantages(
    rewards: Tensor, values: Tensor, ends: Tensor, discount: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """GAE's advantages and TD errors, [..., N], without gradient (Schulman et al. 2016, eq. 16).
    Shapes as in `td_targets`; where bool `ends` is true, the outcome is known and stands in for the
    value, and nothing is acted."""
    known = torch.where(ends, rewards, values.detach())
    earned = torch.where(ends, 0.0, rewards)
    errors = torch.where(ends, 0.0, earned + discount * shift_left(known, 1) - known)
    advantages, later = torch.zeros_like(errors), torch.zeros_like(errors[..., 0])
    for k in reversed(range(errors.shape[-1])):
        later = errors[..., k] + discount * gae_lambda * later
        advantages[..., k] = later
    return advantages, errors
