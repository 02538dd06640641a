"""StepAgent: learn every single step of an expert by trying it first (arXiv 2411.03817).

Both variants practise at the states of an expert's trajectories and learn from the contrast, step
by step, without a reward from the world. The implicit variant prefers the expert's action to the
agent's own (DPO, one action a pair). The inverse one is generative adversarial imitation (Ho and
Ermon 2016, arXiv 1606.03476): a discriminator learns to tell the agent's actions from the expert's,
the policy learns by PPO to be taken for the expert.

Our choices: the expert's own probabilities are not known, so the reference of DPO is the model that
the run started from, which should be an SFT on the same demonstrations (`init`). A try at a
fragment is an episode of one turn whose baseline is what the other tries in its state earn; in
episodes of its own it is a learned value. Rewards come from a discriminator that was trained at
other fragments, or on other episodes, each read in one pass. One update is one cycle. Left out:
training the discriminator to convergence before every cycle.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from agentrl_cli.algos.base import Algorithm, Context, Phase, Texts
from agentrl_cli.algos.dpo import Pair, preference_phase, renew_reference, with_reference
from agentrl_cli.algos.left_out import left_out_metrics, without_left_out
from agentrl_cli.algos.losses import bce, dpo, expert_rewards
from agentrl_cli.algos.ppo import PPO
from agentrl_cli.algos.samples import completion_sample
from agentrl_cli.algos.stepagent import policy_loss, practice
from agentrl_cli.algos.stepagent.discriminator import (
    judgements,
    labelled_actions,
    labelled_episodes,
    logits,
    weighed,
)
from agentrl_cli.algos.stepagent.practice import Attempt, StateAction
from agentrl_cli.algos.turns import all_turns
from agentrl_cli.core.errors import require_at_least
from agentrl_cli.core.statistics import mean
from agentrl_cli.core.types import Episode, Sample, derive_seed
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer


@dataclass(kw_only=True)
class StepAgentImplicit(Algorithm):
    """Practises at `fragments_per_update` fragments (0: at all): whole turns, or only the last line
    behind the expert's thought. `reference` is the model the run started from, or the policy at the
    start of each update; `imitation_coef` weighs the expert's own likelihood beside the preference.
    """

    fragments_per_update: int
    attempt: Literal["turn", "last_line"]
    beta: float
    imitation_coef: float
    reference: Literal["start", "iteration"]
    epochs: int
    tokens_per_step: int
    optimizer: OptimizerSpec

    demo_use = "must"  # they are what is practised
    plays = False  # practice needs no world

    def __post_init__(self) -> None:
        require_at_least(1, epochs=self.epochs)
        require_at_least(0, beta=self.beta, imitation_coef=self.imitation_coef)
        require_at_least(0, fragments_per_update=self.fragments_per_update)
        require_at_least(0, tokens_per_step=self.tokens_per_step)

    def models(self) -> dict[str, ModelSpec]:
        """The policy and its reference."""
        return with_reference(self.optimizer)

    def texts(self, turns: int, max_tokens: int) -> dict[str, Texts]:
        """An attempt at each fragment; how many all are, the demonstrations alone say."""
        count = self.fragments_per_update
        return {"attempts": Texts(count, max_tokens)} if count else {}

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Practise, then one phase of pairs."""
        cuts = practice.fragments(self.context, self.attempt, self.fragments_per_update)
        attempts = practice.attempt_fragments(self.context, cuts)
        pairs = [preference_pair(attempt) for attempt in attempts if not attempt.matches]
        renew_reference(self.context.models, self.reference)
        equal = {"stepagent/dropped": float(len(attempts) - len(pairs))}
        loss = partial(dpo, beta=self.beta, imitation_coef=self.imitation_coef)
        yield preference_phase(
            self.context.models, pairs, loss, epochs=self.epochs,
            tokens_per_step=self.tokens_per_step, metrics=practice.match_metrics(attempts) | equal,
        )  # fmt: skip


@dataclass(kw_only=True)
class StepAgentInverse(Algorithm):
    """`rollout` says where the policy acts: `attempts` times at each of `fragments_per_update`
    fragments (0: at a `attempts`-th of all; whole turns, or only the last line behind the expert's
    thought), or through whole episodes of its own. Rewards are held within +-`reward_clip`;
    `imitation_coef` weighs the expert's own likelihood beside PPO's loss."""

    fragments_per_update: int
    attempts: int
    attempt: Literal["turn", "last_line"]
    rollout: Literal["fragment", "environment"]
    reward: Literal["logit", "unlike_agent", "like_expert"]
    reward_clip: float
    imitation_coef: float
    discriminator_epochs: int
    discriminator_turns_per_step: int
    discriminator_optimizer: OptimizerSpec
    ppo: PPO

    demo_use = "must"  # they are what the discriminator is shown
    uses_ratio = True

    def __post_init__(self) -> None:
        require_at_least(1, discriminator_epochs=self.discriminator_epochs)
        require_at_least(2, attempts=self.attempts)
        require_at_least(0, fragments_per_update=self.fragments_per_update)
        require_at_least(0, discriminator_turns_per_step=self.discriminator_turns_per_step)
        require_at_least(0, reward_clip=self.reward_clip, imitation_coef=self.imitation_coef)

    @property
    def plays(self) -> bool:
        """Whole episodes of its own come from the loop."""
        return self.rollout == "environment"

    def models(self) -> dict[str, ModelSpec]:
        """PPO's, at fragments without its value, and the discriminator: weights of its own, which
        begin as the policy does, with a scalar head that begins at 0."""
        judge = ModelSpec(
            kind="trained", generates=False, optimizer=self.discriminator_optimizer, head="value",
            begins_as="policy",
        )  # fmt: skip
        found = self.ppo.models()
        policy = found["policy"] if self.plays else replace(found["policy"], head=None)
        return {**found, "policy": policy, "discriminator": judge}

    def texts(self, turns: int, max_tokens: int) -> dict[str, Texts]:
        """The attempts at all fragments; with no number of these, the demonstrations say."""
        count = self.attempts * self.fragments_per_update * (not self.plays)
        return {"attempts": Texts(count, max_tokens)} if count else {}

    def bind(self, context: Context) -> None:
        """Receive the given objects; PPO uses the same."""
        super().bind(context)
        self.ppo.bind(context)

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """The discriminator first, then the policy for the rewards that it now gives."""
        yield from self._played(episodes, buffer) if self.plays else self._practised()

    def _practised(self) -> Iterator[Phase]:
        """The discriminator learns at half of the fragments, rewards the attempts at the others."""
        context, count = self.context, self.fragments_per_update
        cuts = practice.fragments(context, self.attempt, count, self.attempts)
        attempted = [fragment for fragment in cuts for _ in range(self.attempts)]
        attempts = practice.attempt_fragments(context, attempted)
        seen, unseen = practice.discriminator_halves(attempts, self.attempts, context)
        expert_seen = self._expert_at(seen)
        own_seen = labelled_actions([a.state_action for a in seen], 1.0, context)
        yield self._discrimination(expert_seen, own_seen, practice.match_metrics(attempts))

        own_unseen = labelled_actions([a.state_action for a in unseen], 1.0, context)
        rewards = self.rewards(own_unseen)
        states = [attempt.fragment.state_ids for attempt in unseen]
        advantages = policy_loss.shrink_to_unit_std(policy_loss.leave_one_out(rewards, states))
        own = [completion_sample(a.fragment.state_ids, a.action_ids) for a in unseen]
        phase = policy_loss.surrogate_phase(own, advantages, self.ppo)
        phase.metrics = {
            "stepagent/reward_gap": self._gap(expert_seen, self.rewards(own_seen)),
            "stepagent/heldout_gap": self._gap(self._expert_at(unseen), rewards),
        }
        practised = [attempt.fragment for attempt in unseen[:: self.attempts]]
        shown = [completion_sample(f.state_ids, f.expert_ids) for f in practised]
        yield policy_loss.with_expert_likelihood(phase, shown, self.imitation_coef)

    def _played(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """The discriminator learns from half of the episodes and from at most as many
        demonstrations, all drawn anew in every update; it rewards the turns of the other half."""
        context, played = self.context, without_left_out(episodes)
        draw = random.Random(derive_seed(context.seed, "episodes", context.step))
        played, demos = (draw.sample(row, len(row)) for row in (played, context.demos))
        middle = len(played) // 2
        seen, unseen = played[:middle], played[middle:]
        own_seen, own_unseen = (labelled_episodes(row, 1.0, context) for row in (seen, unseen))
        count = min(middle, -(-len(demos) // 2))
        expert_seen = labelled_episodes(demos[:count], 0.0, context)
        expert_unseen = labelled_episodes(demos[count : 2 * count], 0.0, context)
        yield self._discrimination(expert_seen, own_seen, {})

        rewards = self.rewards(own_unseen)
        gaps = {
            "stepagent/reward_gap": self._gap(expert_seen, self.rewards(own_seen)),
            "stepagent/heldout_gap": self._gap(expert_unseen, rewards),
        }
        for phase in self.ppo.update(policy_loss.with_rewards(unseen, rewards), buffer):
            policy_loss.centre_advantages(phase.samples)
            phase.metrics |= gaps | left_out_metrics("ppo", episodes)
            turns = draw.choices(all_turns(context.demos), k=len(phase.samples))
            shown = [completion_sample(turn.state_ids, turn.action_ids) for turn in turns]
            yield policy_loss.with_expert_likelihood(phase, shown, self.imitation_coef)

    def _expert_at(self, attempts: list[Attempt]) -> list[Sample]:
        """The expert's turns at the fragments of these attempts."""
        firsts = attempts[:: self.attempts]
        acts = [StateAction.played(attempt.fragment.turn) for attempt in firsts]
        return labelled_actions(acts, 0.0, self.context)

    def _discrimination(
        self, expert: list[Sample], own: list[Sample], metrics: dict[str, float]
    ) -> Phase:
        """Both sides count alike, however many actions there are of one and of the other."""
        weight = sum(map(judgements, own)) / max(1, sum(map(judgements, expert)))
        return Phase(
            "discriminator", [*own, *weighed(expert, weight)], bce,
            model="discriminator", epochs=self.discriminator_epochs,
            units=judgements, tokens_per_step=self.discriminator_turns_per_step,
            metrics=metrics,
        )  # fmt: skip

    def _gap(self, expert: list[Sample], own_rewards: list[float]) -> float:
        """How much more the expert's turns earn in the mean than the agent's own."""
        return mean(self.rewards(expert)) - mean(own_rewards)

    def rewards(self, samples: list[Sample]) -> list[float]:
        """What the discriminator gives for each action that is judged in the samples, in order."""
        found = logits(self.context.models, samples)
        return expert_rewards(found, self.reward, self.reward_clip)


def preference_pair(attempt: Attempt) -> Pair:
    """The expert's action and the agent's own behind the same state."""
    state, expert = attempt.fragment.state_ids, attempt.fragment.expert_ids
    return completion_sample(state, expert), completion_sample(state, attempt.action_ids)
