"""What turns the discriminator's rewards into a policy's lesson: a baseline for each state, a scale
that never enlarges noise, and the expert's own actions beside the policy's."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.losses import Loss, clipped_ratio, with_entropy, with_kl
from agentrl_cli.algos.ppo import PPO
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.models.policy import Batch, Outputs
from agentrl_cli.models.reader import add_logprobs


def leave_one_out(rewards: list[float], states: list[list[int]]) -> list[float]:
    """Each reward less the mean of the others in the same state, 0 where there are none: a baseline
    that does not bias the gradient (Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740)."""
    together: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for reward, state in zip(rewards, states, strict=True):
        together[tuple(state)].append(reward)
    found = []
    for reward, state in zip(rewards, states, strict=True):
        row = together[tuple(state)]
        others = (sum(row) - reward) / (len(row) - 1) if len(row) > 1 else reward
        found.append(reward - others)
    return found


def shrink_to_unit_std(numbers: list[float]) -> list[float]:
    """The numbers over their population standard deviation where that is above 1: large rewards
    become small enough, while the noise of a discriminator at chance is not enlarged."""
    spread = statistics.pstdev(numbers) if numbers else 0.0
    return [number / max(1.0, spread) for number in numbers]


def with_rewards(episodes: list[Episode], rewards: list[float]) -> list[Episode]:
    """Copies of the episodes with these rewards, one a turn, in place of the world's: less their
    mean, so that no turn is worth living for or dying for as such, and made smaller where what is
    still to be earned in an episode, which the value must learn, spreads by more than 1."""
    average = statistics.fmean(rewards) if rewards else 0.0
    given = (reward - average for reward in rewards)
    rows = [[next(given) for _ in episode.turns] for episode in episodes]
    returns = [sum(row[i:]) for row in rows for i in range(len(row))]
    scale = max(1.0, statistics.pstdev(returns)) if returns else 1.0
    turns_of = [
        [
            replace(turn, reward=reward / scale, info={})
            for turn, reward in zip(e.turns, row, strict=True)
        ]
        for e, row in zip(episodes, rows, strict=True)
    ]
    return [replace(e, turns=turns) for e, turns in zip(episodes, turns_of, strict=True)]


def centre_advantages(samples: list[Sample]) -> None:
    """Take from every trained token's advantage their mean, a baseline that biases nothing: while
    the value knows little, what all turns have in common would only make all actions unlikely."""
    numbers = [a for s in samples for a, m in zip(s.streams["advantage"], s.mask, strict=True) if m]
    average = statistics.fmean(numbers) if numbers else 0.0
    for s in samples:
        pairs = zip(s.streams["advantage"], s.mask, strict=True)
        s.streams["advantage"] = [(advantage - average) * trained for advantage, trained in pairs]


def surrogate_phase(samples: list[Sample], advantages: list[float], ppo: PPO) -> Phase:
    """PPO's phase on actions with these advantages: its clipped ratio, KL and entropy, no value."""
    for sample, advantage in zip(samples, advantages, strict=True):
        sample.streams["advantage"] = [advantage * trained for trained in sample.mask]
    models = ppo.context.models
    add_logprobs(models.reader("policy"), samples, "old_logprob")
    if ppo.kl_coef:
        add_logprobs(models.reader("reference"), samples, "reference_logprob")

    def loss(outputs: Outputs, batch: Batch) -> Loss:
        near = with_kl(clipped_ratio(outputs, batch, ppo.clip), outputs, batch, ppo.kl_coef)
        return with_entropy(near, outputs, ppo.entropy_coef)

    return Phase(
        "policy", samples, loss, epochs=ppo.epochs, tokens_per_step=ppo.tokens_per_step,
        entropy_gradient=ppo.entropy_coef > 0,
    )  # fmt: skip


def with_expert_likelihood(phase: Phase, shown: list[Sample], weight: float) -> Phase:
    """The phase with the expert's actions among its samples, each behind an equal share of them,
    and `weight` times their negative log-likelihood per token, a mean over actions, in its loss.
    Itself without samples or weight. Raises ValueError where the samples cannot be shared out."""
    if not (weight and phase.samples):
        return phase
    size, rest = divmod(len(phase.samples), len(shown))
    if rest:
        raise ValueError(f"{len(phase.samples)} samples cannot be shared by {len(shown)} actions")
    each = sum(map(phase.units, phase.samples)) / len(shown)
    names = phase.samples[0].streams
    samples: list[Sample] = []
    for i, expert in enumerate(shown):
        own = phase.samples[i * size : (i + 1) * size]
        for sample in own:
            sample.streams["shown"] = [0.0] * len(sample.ids)
        zeros = {name: [0.0] * len(expert.ids) for name in names}
        share = each / sum(expert.mask)
        streams = {**zeros, "shown": [share * trained for trained in expert.mask]}
        samples += [*own, replace(expert, streams=streams)]
    return replace(
        phase, samples=samples, keep_together=size + 1,
        loss=partial(_both, loss=phase.loss, weight=weight),
        units=lambda sample: 0.0 if any(sample.streams["shown"]) else phase.units(sample),
    )  # fmt: skip


def _both(
    outputs: Outputs, batch: Batch, loss: Callable[[Outputs, Batch], Loss], weight: float
) -> Loss:
    """`loss` on the policy's own tokens only, and beside it the likelihood of the others."""
    shown = batch.streams["shown"]
    own = (shown == 0).float()
    mine = replace(outputs, entropy=outputs.entropy * own)
    found, metrics = loss(mine, replace(batch, mask=batch.mask * own))
    unlikely = -(outputs.logprobs * shown).sum()
    return found + weight * unlikely, metrics | {"expert_nll": unlikely.detach()}
