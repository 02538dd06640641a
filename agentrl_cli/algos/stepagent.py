"""StepAgent: learn every single step of an expert by trying it first (arXiv 2411.03817).

Both variants practise at the states of an expert's trajectories and learn from the contrast, step
by step, without a reward from the world. `Implicit` prefers the expert's action to the agent's own
(DPO, one action a pair). `Inverse` is generative adversarial imitation (Ho and Ermon 2016, arXiv
1606.03476): a discriminator learns to tell the agent's actions from the expert's, the policy learns
by PPO to be taken for the expert.

Our choices: the expert's own probabilities are not known, so the reference of DPO is the model that
the run started from, which should be an SFT on the same demonstrations (`init`). A try at a
fragment is an episode of one turn, so that the baseline of its state is PPO's value. One update is
one cycle. Left out: training the discriminator to convergence before every cycle.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from agentrl_cli.algos.base import Algorithm, Context, ModelSpec, OptimizerSpec, Phase, one
from agentrl_cli.algos.dpo import Pair, preference, renew, with_reference
from agentrl_cli.algos.ppo import PPO, standardised
from agentrl_cli.algos.practice import (
    Try,
    every_turn,
    fragments,
    match_metrics,
    practise,
    tidy,
)
from agentrl_cli.algos.roles import Place
from agentrl_cli.algos.samples import written_sample
from agentrl_cli.algos.values import whole
from agentrl_cli.buffer import ReplayBuffer
from agentrl_cli.errors import at_least
from agentrl_cli.losses import bce, dpo, expert_rewards
from agentrl_cli.models.policy import assess
from agentrl_cli.types import Episode, Sample, derive_seed

Act = tuple[list[int], str]  # a state's ids, and the whole text of a turn there
Acts = tuple[list[Act], list[Act], list[Episode], dict[str, float]]


@dataclass(kw_only=True)
class Implicit(Algorithm):
    """Practises at `fragments_per_update` fragments (0: at all): whole turns, or only the last line
    behind the expert's thought. `reference` is the model the run started from, or the policy at the
    start of each update; `imitation` weighs the expert's own likelihood beside the preference."""

    fragments_per_update: int
    tried: Literal["turn", "last_line"]
    beta: float
    imitation: float
    reference: Literal["start", "iteration"]
    epochs: int
    tokens_per_step: int
    optimizer: OptimizerSpec

    def __post_init__(self) -> None:
        at_least(1, epochs=self.epochs)
        at_least(0, beta=self.beta, imitation=self.imitation)
        at_least(0, fragments_per_update=self.fragments_per_update)
        at_least(0, tokens_per_step=self.tokens_per_step)

    @property
    def demonstrations(self) -> Literal["never", "may", "must"]:
        """They are what is practised."""
        return "must"

    @property
    def plays(self) -> bool:
        """Practice needs no world."""
        return False

    def models(self) -> dict[str, ModelSpec]:
        """The policy and its reference."""
        return with_reference(self.optimizer)

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Practise, then one phase of pairs."""
        found = fragments(self.context, self.tried, self.fragments_per_update)
        tries = practise(self.context, found)
        pairs = [pair(one) for one in tries if not one.matches]
        renew(self.context.models, self.reference)
        metrics = match_metrics(tries) | {"stepagent/dropped": float(len(tries) - len(pairs))}
        loss = partial(dpo, beta=self.beta, imitation=self.imitation)
        yield preference(
            self.context.models, pairs, loss, epochs=self.epochs,
            tokens_per_step=self.tokens_per_step, metrics=metrics,
        )  # fmt: skip


@dataclass(kw_only=True)
class Inverse(Algorithm):
    """`rollout` says where the policy acts: once at each of `fragments_per_update` fragments (0: at
    all; whole turns, or only the last line behind the expert's thought), or through whole episodes
    of its own. Rewards are held within +-`reward_clip`, then standardised."""

    fragments_per_update: int
    tried: Literal["turn", "last_line"]
    rollout: Literal["fragment", "environment"]
    reward: Literal["logit", "unlike_agent", "like_expert"]
    reward_clip: float
    discriminator_epochs: int
    discriminator_tokens_per_step: int
    discriminator_optimizer: OptimizerSpec
    ppo: PPO

    def __post_init__(self) -> None:
        at_least(1, discriminator_epochs=self.discriminator_epochs)
        at_least(0, fragments_per_update=self.fragments_per_update)
        at_least(0, discriminator_tokens_per_step=self.discriminator_tokens_per_step)
        at_least(0, reward_clip=self.reward_clip)

    @property
    def demonstrations(self) -> Literal["never", "may", "must"]:
        """They are what the discriminator is shown."""
        return "must"

    @property
    def plays(self) -> bool:
        """Whole episodes of its own come from the loop."""
        return self.rollout == "environment"

    def models(self) -> dict[str, ModelSpec]:
        """PPO's, and the discriminator: weights of its own, which begin as the policy does, with a
        scalar head that begins at 0."""
        judge = ModelSpec(
            kind="trained", generates=False, optimizer=self.discriminator_optimizer, head="value",
            begins_as="policy",
        )  # fmt: skip
        return {**self.ppo.models(), "discriminator": judge}

    def bind(self, context: Context) -> None:
        """Receive the given objects; PPO uses the same."""
        super().bind(context)
        self.ppo.bind(context)

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """The discriminator first, then PPO for the rewards that it now gives."""
        practises = self.rollout == "fragment"
        shown, acted, own, metrics = self._practised() if practises else self._played(episodes)
        yield Phase(
            "discriminator", self.judged(acted, label=1.0) + self.judged(shown, label=0.0), bce,
            model="discriminator", epochs=self.discriminator_epochs, count=one,
            tokens_per_step=self.discriminator_tokens_per_step, metrics=metrics,
        )  # fmt: skip
        rewards = self.rewards(acted)
        gap = mean(self.rewards(shown)) - mean(rewards)
        for phase in self.ppo.update(rewarded(own, standardised(rewards)), buffer):
            phase.metrics["stepagent/reward_gap"] = gap
            yield phase

    def _practised(self) -> Acts:
        """At every fragment the expert's turn and a try, the tries as episodes."""
        found = fragments(self.context, self.tried, self.fragments_per_update)
        tries = practise(self.context, found)
        shown = [act(t.fragment.place) for t in tries]
        acted = [(t.fragment.place.state, t.fragment.thought + t.text) for t in tries]
        return shown, acted, [t.as_episode() for t in tries], match_metrics(tries)

    def _played(self, episodes: list[Episode]) -> Acts:
        """All turns that the policy played itself, and as many of the expert's."""
        own, everything = whole(episodes), every_turn(self.context.demos)
        acted = [act(place) for place in every_turn(own)]
        draw = random.Random(derive_seed(self.context.seed, "experts", self.context.step))
        shown = [act(place) for place in draw.choices(everything, k=len(acted))]
        return shown, acted, own, {}

    def judged(self, acts: list[Act], label: float) -> list[Sample]:
        """Samples [state; action] that the discriminator reads at the last token: 1 for the agent's
        actions, 0 for the expert's. Actions are written anew without what only their layout tells.
        """
        samples = []
        for state, text in acts:
            ids = state + self.context.chat.encode_action(tidy(text))
            before = [0.0] * (len(ids) - 1)
            streams = {"value_at": [*before, 1.0], "label": [*before, label]}
            samples.append(Sample(ids, [0] * len(ids), streams))
        return samples

    def rewards(self, acts: list[Act]) -> list[float]:
        """What the discriminator gives for each action."""
        models, samples = self.context.models, self.judged(acts, label=0.0)
        rows = assess(models.module("discriminator"), models.head("discriminator"), samples)
        return expert_rewards([float(v[-1]) for _, v in rows], self.reward, self.reward_clip)


def act(place: Place) -> Act:
    """A turn as state and text."""
    return place.state, place.episode.turns[place.turn].action


def pair(attempt: Try) -> Pair:
    """The expert's action and the agent's own behind the same state."""
    state, shown = attempt.fragment.state, attempt.fragment.action
    return written_sample(state, shown), written_sample(state, attempt.ids)


def rewarded(episodes: list[Episode], rewards: list[float]) -> list[Episode]:
    """Copies of the episodes with these rewards, one a turn, in place of the world's."""
    given = iter(rewards)
    return [
        replace(e, turns=[replace(turn, reward=next(given), info={}) for turn in e.turns])
        for e in episodes
    ]


def mean(numbers: list[float]) -> float:
    """0 where there are none."""
    return statistics.fmean(numbers) if numbers else 0.0
