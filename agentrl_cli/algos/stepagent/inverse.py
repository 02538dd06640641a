"""Parts of inverse StepAgent: the discriminator's samples and rewards, and the policy's loss.

The discriminator D(s, a), the probability that the policy and not the expert acted, is a copy of
the policy with a scalar head, read at the last token of an action. Actions are written without
their layout (spaces, empty lines), so that D cannot use it. A sample is one state and action, or an
episode with all of its actions.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import replace
from itertools import compress

import torch
from torch.nn.functional import logsigmoid

from agentrl_cli.algos.base import Context, Phase
from agentrl_cli.algos.losses import Loss, clipped_ratio, with_entropy, with_kl
from agentrl_cli.algos.ppo import PPO
from agentrl_cli.algos.samples import append_tokens
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.models.forward import Batch, Outputs, add_logprobs, logprobs_and_values
from agentrl_cli.models.model_set import ModelSet

StateAction = tuple[list[int], str]  # the tokens of a state, the text of a whole turn


def without_layout(text: str) -> str:
    """Return the text with single spaces, without empty lines and margins."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def encode_action(text: str, context: Context) -> list[int]:
    """Return the tokens of an action without its layout. It is closed unless it ends with the text
    at which the environment splits a reply."""
    delimiter = context.turn_delimiter
    if delimiter and text.endswith(delimiter):
        return context.chat.encode_action(without_layout(text) + delimiter)[:-1]
    return context.chat.encode_action(without_layout(text))


def labelled_actions(acts: list[StateAction], label: float, context: Context) -> list[Sample]:
    """Return one sample [state; action] each. At the last token, `value_at` is 1 and
    `label` is `label`: 1 for the policy's actions, 0 for the expert's."""
    samples = []
    for state_ids, action in acts:
        samples.append(Sample([], [], {"value_at": [], "label": []}))
        append_tokens(samples[-1], state_ids)
        _append_labelled(samples[-1], encode_action(action, context), label)
    return samples


def labelled_episodes(episodes: list[Episode], label: float, context: Context) -> list[Sample]:
    """Return one sample per unbroken segment, with the fields of `labelled_actions` at every
    action. Earlier actions are written without layout, too."""
    samples: list[Sample] = []
    for episode in episodes:
        for i, turn in enumerate(episode.turns):
            if i == 0 or turn.context_reset:
                samples.append(Sample([], [], {"value_at": [], "label": []}))
            sample, ids, closing = samples[-1], turn.observation_ids, context.chat.end_of_turn
            # an observation after an unclosed action begins with the closing token, which
            # `encode_action` has already written
            is_closed = bool(sample.ids) and sample.ids[-1] == closing
            append_tokens(sample, ids[1:] if is_closed and ids[:1] == [closing] else ids)
            _append_labelled(sample, encode_action(turn.action, context), label)
    return samples


def _append_labelled(sample: Sample, ids: list[int], label: float) -> None:
    append_tokens(sample, ids)
    sample.per_token["value_at"][-1], sample.per_token["label"][-1] = 1.0, label


def labels(sample: Sample) -> float:
    """Return the unit of the discriminator's loss: the total weight of the sample's labels."""
    return sum(sample.per_token["value_at"])


def weighed(samples: list[Sample], weight: float) -> list[Sample]:
    """Return copies of the samples with `weight` times the weight of each label."""
    per_token_of = [
        {**s.per_token, "value_at": [weight * at for at in s.per_token["value_at"]]}
        for s in samples
    ]
    return [
        replace(s, per_token=per_token) for s, per_token in zip(samples, per_token_of, strict=True)
    ]


def logits(models: ModelSet, samples: list[Sample]) -> list[float]:
    """Return the logit of D(s, a) at every label of the samples, in order."""
    found: list[float] = []
    rows = logprobs_and_values(models.forward("discriminator"), samples)
    for sample, (_, values) in zip(samples, rows, strict=True):  # values: [tokens]
        found += compress(values.tolist(), sample.per_token["value_at"])
    return found


def expert_rewards(logits: list[float], form: str, clip: float) -> list[float]:
    """Return rewards that fall with D, clamped to +-`clip` (Ho and Ermon 2016, and other forms of
    the same sign).

    `form` is `logit`, log(1 - D) - log D; `neg_log_d`, -log D; or `log_one_minus_d`, log(1 - D).
    """
    logit = torch.tensor(logits)
    forms = {
        "logit": -logit,
        "neg_log_d": -logsigmoid(logit),
        "log_one_minus_d": logsigmoid(-logit),
    }
    return forms[form].clamp(-clip, clip).tolist()


def leave_one_out(rewards: list[float], states: list[list[int]]) -> list[float]:
    """Return each reward minus the mean of the others in the same state, or 0 without others: an
    unbiased baseline (Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740)."""
    by_state: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for reward, state in zip(rewards, states, strict=True):
        by_state[tuple(state)].append(reward)
    found = []
    for reward, state in zip(rewards, states, strict=True):
        row = by_state[tuple(state)]
        others = (sum(row) - reward) / (len(row) - 1) if len(row) > 1 else reward
        found.append(reward - others)
    return found


def shrink_to_unit_std(numbers: list[float]) -> list[float]:
    """Return the numbers divided by their population standard deviation if that is above 1, which
    never enlarges the noise of a discriminator at chance."""
    spread = statistics.pstdev(numbers) if numbers else 0.0
    return [number / max(1.0, spread) for number in numbers]


def with_rewards(episodes: list[Episode], rewards: list[float]) -> list[Episode]:
    """Return copies of the episodes with these rewards, one per turn. Rewards are centred, so that
    the length of an episode does not matter, and divided by the standard deviation of the returns
    if that is above 1."""
    average = statistics.fmean(rewards) if rewards else 0.0
    given = (reward - average for reward in rewards)
    rows = [[next(given) for _ in episode.turns] for episode in episodes]
    returns = [sum(row[i:]) for row in rows for i in range(len(row))]
    scale = max(1.0, statistics.pstdev(returns)) if returns else 1.0
    return [
        replace(episode, turns=[
            replace(turn, reward=reward / scale, info={})
            for turn, reward in zip(episode.turns, row, strict=True)
        ])
        for episode, row in zip(episodes, rows, strict=True)
    ]  # fmt: skip


def centre_advantages(samples: list[Sample]) -> None:
    """Subtract the mean advantage of the trained tokens. While V is untrained, a common offset
    would only make all actions less likely."""
    numbers = [
        a for s in samples for a, m in zip(s.per_token["advantage"], s.mask, strict=True) if m
    ]
    average = statistics.fmean(numbers) if numbers else 0.0
    for s in samples:
        pairs = zip(s.per_token["advantage"], s.mask, strict=True)
        s.per_token["advantage"] = [(advantage - average) * trained for advantage, trained in pairs]


def surrogate_phase(samples: list[Sample], advantages: list[float], ppo: PPO) -> Phase:
    """Return PPO's phase on actions with these advantages: clipped ratio, KL and entropy."""
    for sample, advantage in zip(samples, advantages, strict=True):
        sample.per_token["advantage"] = [advantage * trained for trained in sample.mask]
    models = ppo.context.models
    add_logprobs(models.forward("policy"), samples, "old_logprob")
    if ppo.kl_coef:
        add_logprobs(models.forward("reference"), samples, "reference_logprob")

    def loss(outputs: Outputs, batch: Batch) -> Loss:
        near = with_kl(clipped_ratio(outputs, batch, ppo.clip_eps), outputs, batch, ppo.kl_coef)
        return with_entropy(near, outputs, ppo.entropy_coef)

    return Phase(
        "policy", samples, loss, epochs=ppo.epochs, minibatch_tokens=ppo.minibatch_tokens,
        entropy_gradient=ppo.entropy_coef > 0,
    )  # fmt: skip


def with_expert_likelihood(phase: Phase, expert: list[Sample], weight: float) -> Phase:
    """Return the phase with `weight` times the negative log-likelihood of the expert's actions in
    its loss, per token and averaged over actions. Each expert sample follows an equal share of the
    policy's samples, whose number must be a multiple."""
    if not (weight and phase.samples):
        return phase
    size, rest = divmod(len(phase.samples), len(expert))
    assert not rest, f"{len(phase.samples)} samples for {len(expert)} expert actions"
    units_each = sum(map(phase.units, phase.samples)) / len(expert)
    names = phase.samples[0].per_token
    samples: list[Sample] = []
    for i, one in enumerate(expert):
        own = phase.samples[i * size : (i + 1) * size]
        for sample in own:
            sample.per_token["shown"] = [0.0] * len(sample.ids)
        zeros = {name: [0.0] * len(one.ids) for name in names}
        share = units_each / sum(one.mask)
        per_token = {**zeros, "shown": [share * trained for trained in one.mask]}
        samples += [*own, replace(one, per_token=per_token)]

    def loss(outputs: Outputs, batch: Batch) -> Loss:
        shown = batch.per_token["shown"]  # [batch, tokens], 0 on the policy's tokens
        own = (shown == 0).float()
        policy_outputs = replace(outputs, entropy=outputs.entropy * own)
        found, metrics = phase.loss(policy_outputs, replace(batch, mask=batch.mask * own))
        expert_nll = -(outputs.logprobs * shown).sum()
        return found + weight * expert_nll, metrics | {"expert_nll": expert_nll.detach()}

    return replace(
        phase, samples=samples, keep_together=size + 1, loss=loss,
        units=lambda sample: 0.0 if any(sample.per_token["shown"]) else phase.units(sample),
    )  # fmt: skip
