"""Losses over a batch of tokens, and advantages and returns over turns, each with its source.

A loss returns its sum over trained tokens (or turns, or pairs) and sums of metrics; the learner
divides both. A batch's mask and fields and the model's outputs are [batch, tokens].
"""

from __future__ import annotations

import statistics
from collections import defaultdict

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid, pad

from agentrl_cli.models.forward import Batch, Outputs

Loss = tuple[Tensor, dict[str, Tensor]]  # a scalar to differentiate, detached scalars by metric
MAX_LOG_RATIO = 20.0  # nats


def nll(outputs: Outputs, batch: Batch) -> Loss:
    """Return the negative log-likelihood of the trained tokens, times field `weight` if any."""
    token_nll = -outputs.logprobs * batch.mask  # [batch, tokens]
    weighted = token_nll * batch.per_token["weight"] if "weight" in batch.per_token else token_nll
    return weighted.sum(), {"nll": token_nll.sum().detach(), "entropy": outputs.entropy.sum()}


def dpo(outputs: Outputs, batch: Batch, beta: float, nll_coef: float = 0.0) -> Loss:
    """Return the loss of direct preference optimization (Rafailov et al. 2023, eq. 7), per pair.

    Rows alternate chosen, rejected (`keep_together=2`); each counts half a unit. Field:
    `reference_logprob`. `nll_coef` weighs the chosen row's negative log-likelihood per token
    (Pang et al. 2024, arXiv 2404.19733, eq. 1), which keeps both rows from becoming unlikely.
    """
    log_ratio = (outputs.logprobs - batch.per_token["reference_logprob"]) * batch.mask
    row_log_ratio = log_ratio.sum(-1)  # [batch]
    margin = beta * (row_log_ratio[0::2] - row_log_ratio[1::2])  # [batch / 2]
    row_nll = -(outputs.logprobs * batch.mask).sum(-1) / batch.mask.sum(-1).clamp(min=1)
    chosen_nll = row_nll[0::2].sum()
    loss = -logsigmoid(margin).sum() + nll_coef * chosen_nll
    correct = (margin > 0).float().sum()
    metrics = {"margin": margin.sum(), "accuracy": correct, "preferred_nll": chosen_nll}
    return loss, {name: value.detach() for name, value in metrics.items()}


def clipped_ratio(
    outputs: Outputs, batch: Batch, clip_eps: float, clip_eps_high: float | None = None
) -> Loss:
    """Return PPO's clipped surrogate per token (Schulman et al. 2017, eq. 7), negated.

    Fields: `advantage`, `old_logprob` (the policy's before the update, at temperature 1) and, if
    tokens have different weights, `share`.
    """
    log_ratio = (outputs.logprobs - batch.per_token["old_logprob"]) * batch.mask
    advantages, share = batch.per_token["advantage"], token_share(batch)
    loss, metrics = _clipped_surrogate(log_ratio, advantages, share, clip_eps, clip_eps_high)
    return loss, metrics | {"entropy": (outputs.entropy.detach() * share).sum()}


def token_share(batch: Batch) -> Tensor:
    """Return the weight of each token in the loss, [batch, tokens]: field `share`, or the mask."""
    return batch.per_token.get("share", batch.mask)


def clipped_turns(
    outputs: Outputs, batch: Batch, advantages: Tensor, clip_eps: float, ratio: str
) -> Loss:
    """Return PPO's clipped surrogate per turn, negated and summed over turns.

    `advantages` is [batch, turns]. Fields: `turn` and `old_logprob`. `ratio` is `turn` (exp of the
    sum of the log-ratios of an action's tokens), `turn_geo` (exp of their mean: Zheng et al. 2025,
    GSPO, eq. 7) or `token` (each token's own ratio, averaged over the action). Log-ratios are
    clamped to +-20, beyond which float32 would overflow.
    """
    log_ratio = (outputs.logprobs - batch.per_token["old_logprob"]) * batch.mask
    lengths = sum_by_turn(batch.mask, batch)  # [batch, turns], in tokens
    turn = batch.per_token["turn"].long()  # [batch, tokens]
    token_share = batch.mask / lengths.clamp(min=1).gather(1, turn)  # 1 / length of its action
    entropy = (outputs.entropy * token_share).sum()
    if ratio == "token":  # everything stays [batch, tokens]
        weight, advantages = token_share, advantages.gather(1, turn)
    else:  # everything becomes [batch, turns]
        weight = (lengths > 0).float()
        weighed = log_ratio * token_share if ratio == "turn_geo" else log_ratio
        log_ratio = sum_by_turn(weighed, batch)
    clamped = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    loss, metrics = _clipped_surrogate(clamped, advantages, weight, clip_eps)
    return loss, metrics | {"entropy": entropy}


def _clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, weight: Tensor, clip_eps: float,
    clip_eps_high: float | None = None,
) -> Loss:  # fmt: skip
    """Return -sum(weight * min(r A, clamp(r, 1 - clip_eps, 1 + clip_eps_high) A)) with r =
    exp(log_ratio). `clip_eps_high` defaults to `clip_eps`."""
    ratio = log_ratio.exp()
    high = clip_eps if clip_eps_high is None else clip_eps_high
    free, clamped = ratio * advantages, ratio.clamp(1 - clip_eps, 1 + high) * advantages
    surrogate = torch.minimum(free, clamped)
    metrics = {
        "clip_fraction": (clamped < free) * weight,
        "approx_kl": (ratio - 1 - log_ratio) * weight,
        "ratio": ratio * weight,
    }
    loss = -(surrogate * weight).sum()
    return loss, {name: numbers.detach().sum() for name, numbers in metrics.items()}


def kl_to_reference(outputs: Outputs, batch: Batch, corrected: bool = False) -> Loss:
    """Return KL(policy || reference) on the trained tokens by the k3 estimator (Schulman 2020; Shao
    et al. 2024, GRPO, eq. 4), which is unbiased for tokens that the policy sampled.

    If `corrected`, each token is multiplied by its ratio to the sampling policy, which makes the
    gradient unbiased, too (DeepSeek-AI 2025, arXiv 2512.02556). Fields: `reference_logprob`, and
    `share` and `old_logprob` as in `clipped_ratio`.
    """
    log_ratio = (batch.per_token["reference_logprob"] - outputs.logprobs) * batch.mask
    kl = log_ratio.exp() - 1 - log_ratio
    if corrected:
        kl = kl * ((outputs.logprobs - batch.per_token["old_logprob"]) * batch.mask).exp()
    loss = (kl * token_share(batch)).sum()
    return loss, {"kl": loss.detach()}


def with_kl(
    loss: Loss, outputs: Outputs, batch: Batch, kl_coef: float, corrected: bool = False
) -> Loss:
    """Return `loss` plus `kl_coef` times `kl_to_reference`."""
    if not kl_coef:
        return loss
    penalty, metrics = kl_to_reference(outputs, batch, corrected)
    return loss[0] + kl_coef * penalty, loss[1] | metrics


def with_entropy(loss: Loss, outputs: Outputs, entropy_coef: float) -> Loss:
    """Return `loss` minus `entropy_coef` times the entropy (Schulman et al. 2017, eq. 9). The phase
    needs `entropy_gradient`."""
    return (loss[0] - entropy_coef * outputs.entropy.sum(), loss[1]) if entropy_coef else loss


def value_error(outputs: Outputs, batch: Batch, clip_eps: float, error_of: str = "larger") -> Loss:
    """Return the squared error of the values against field `return`, times field `value_at`.

    If `clip_eps` is above 0, values are also clamped to within `clip_eps` of field `old_value`,
    and the larger of the two errors counts (as in the code of Schulman et al. 2017). With
    `error_of="clipped"` the error of the clamped value counts (as in Stable-Baselines3).
    """
    assert outputs.values is not None, "value_error needs ModelSpec.head"
    weight, returns, old = (batch.per_token[name] for name in ("value_at", "return", "old_value"))
    error = (outputs.values - returns) ** 2  # [batch, tokens]
    if not clip_eps:
        loss = (error * weight).sum()
        return loss, {"value_loss": loss.detach()}
    clamped_values = old + (outputs.values - old).clamp(-clip_eps, clip_eps)
    clamped_error = (clamped_values - returns) ** 2
    counted = clamped_error if error_of == "clipped" else torch.maximum(error, clamped_error)
    loss = (counted * weight).sum()
    is_clipped = outputs.values != clamped_values
    if error_of != "clipped":
        is_clipped = clamped_error > error
    clipped = (is_clipped * weight).detach().sum()
    return loss, {"value_loss": loss.detach(), "value_clip_fraction": clipped}


def bce(outputs: Outputs, batch: Batch) -> Loss:
    """Return the binary cross-entropy of the values as logits against field `label`, times field
    `value_at` (Goodfellow et al. 2014, eq. 1, for a discriminator)."""
    assert outputs.values is not None, "bce needs ModelSpec.head"
    weight, label = batch.per_token["value_at"], batch.per_token["label"]
    error = binary_cross_entropy_with_logits(outputs.values, label, reduction="none") * weight
    correct = ((outputs.values > 0) == (label > 0.5)) * weight
    return error.sum(), {"accuracy": correct.detach().sum()}


def standardise(numbers: list[float], std: str = "population") -> list[float]:
    """Return the numbers with mean 0 and standard deviation 1, or 0 if it was 0. `std` is
    `population` or `sample`."""
    mean = statistics.fmean(numbers) if numbers else 0.0
    deviation = _deviation(numbers, std)
    return [(number - mean) / (deviation or 1.0) for number in numbers]


def _deviation(numbers: list[float], std: str) -> float:
    if len(numbers) < 2:
        return 0.0
    return statistics.stdev(numbers) if std == "sample" else statistics.pstdev(numbers)


def group_advantages(
    rewards: list[float], groups: list[str], normalise: bool, std: str = "population"
) -> list[float]:
    """Return each reward minus the mean of its group, divided by the group's standard deviation if
    `normalise` (Shao et al. 2024, section 4.1). Groups of equal rewards get zeros. `std` is
    `population`, or `sample`, to which 1e-4 is added as in TRL."""
    members: dict[str, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        members[group].append(reward)
    mean = {g: statistics.mean(row) for g, row in members.items()}
    added = 1e-4 if std == "sample" else 0.0
    std_of = {g: _deviation(row, std) + added if normalise else 1.0 for g, row in members.items()}
    std_of = {g: deviation or 1.0 for g, deviation in std_of.items()}
    return [(r - mean[g]) / std_of[g] for r, g in zip(rewards, groups, strict=True)]


def gae(
    rewards: list[float], values: list[float], dones: list[bool], gamma: float, gae_lambda: float
) -> tuple[list[float], list[float]]:
    """Return advantages and returns (advantage + value) per step (Schulman et al. 2016, eq. 16).

    `values` has one entry more than `rewards`: the value of the state after the last step.
    """
    advantages, advantage = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        not_done = 0.0 if dones[t] else 1.0
        td_error = rewards[t] + gamma * not_done * values[t + 1] - values[t]
        advantage = td_error + gamma * gae_lambda * not_done * advantage
        advantages[t] = advantage
    return advantages, [a + v for a, v in zip(advantages, values[:-1], strict=True)]


def sum_by_turn(numbers: Tensor, batch: Batch) -> Tensor:
    """Return sums [batch, turns] of `numbers` [batch, tokens] by field `turn`."""
    turn = batch.per_token["turn"].long()
    sums = numbers.new_zeros(len(turn), int(turn.max()) + 1)
    return sums.scatter_add(1, turn, numbers)


def shift_left(numbers: Tensor, by: int) -> Tensor:
    """Return `numbers` shifted `by` places to the left along the last axis, padded with zeros."""
    return pad(numbers[..., by:], (0, min(by, numbers.shape[-1])))


def td_targets(rewards: Tensor, values: Tensor, gamma: float, steps: int) -> Tensor:
    """Return the targets of TD(1) to TD(steps), [steps, ..., states], without gradient: the sum of
    the next m discounted rewards plus the discounted value of the state after them (Sutton and
    Barto 2018, eq. 7.1).

    `rewards` and `values` are [..., states]. The last state's reward is the outcome; padding is 0.
    """
    values, targets, reward_sum = values.detach(), [], torch.zeros_like(rewards)
    for m in range(1, steps + 1):
        reward_sum = reward_sum + gamma ** (m - 1) * shift_left(rewards, m - 1)
        targets.append(reward_sum + gamma**m * shift_left(values, m))
    return torch.stack(targets)


def turn_advantages(
    rewards: Tensor, values: Tensor, ends: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Return GAE's advantages and TD errors, [..., states], without gradient (Schulman et al. 2016,
    eq. 16). Shapes are those of `td_targets`. If bool `ends` is true, the reward replaces the value
    of the state, which has no action."""
    values = torch.where(ends, rewards, values.detach())
    rewards = torch.where(ends, 0.0, rewards)
    td_errors = torch.where(ends, 0.0, rewards + gamma * shift_left(values, 1) - values)
    advantages, advantage = torch.zeros_like(td_errors), torch.zeros_like(td_errors[..., 0])
    for k in reversed(range(td_errors.shape[-1])):
        advantage = td_errors[..., k] + gamma * gae_lambda * advantage
        advantages[..., k] = advantage
    return advantages, td_errors
