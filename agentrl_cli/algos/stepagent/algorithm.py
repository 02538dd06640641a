"""StepAgent: step-wise reinforcement learning from an expert (arXiv 2411.03817).

Inspection: cut the expert's trajectories before every action; at each cut, with state s_i and
expert action a*_i, the policy samples its own action a_i. Needs no environment and no reward.

Reflection, implicit variant: step-level DPO (no expert probabilities are known, so the reference is
the initial policy, which should be an SFT on the same demonstrations):

    L = - log sigmoid( beta log pi(a*)/pi_ref(a*) - beta log pi(a)/pi_ref(a) )

Reflection, inverse variant: adversarial imitation (Ho and Ermon 2016, arXiv 1606.03476). A
discriminator D learns to separate the policy's actions from the expert's, and PPO maximizes a
reward that falls with D:

    max_D  E_pi[log D] + E_expert[log(1 - D)]        r = log(1 - D) - log D

Our choices: a sample at a cut is an episode of one turn whose baseline is the mean reward of the
other samples in its state; in whole episodes it is a learned value. Rewards come from a
discriminator that was trained on other expert states or episodes. One update is one cycle. Left
out: training the discriminator to convergence in every cycle.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from agentrl_cli.algos.base import Algorithm, Context, Phase, Texts
from agentrl_cli.algos.dpo import preference_phase
from agentrl_cli.algos.losses import bce
from agentrl_cli.algos.ppo import PPO
from agentrl_cli.algos.samples import (
    TurnRef,
    all_turns,
    completion_sample,
    skipped_metrics,
    without_skipped,
)
from agentrl_cli.algos.settings import StepAgentImplicitConfig, StepAgentInverseConfig
from agentrl_cli.algos.stepagent import inverse
from agentrl_cli.algos.stepagent.inverse import StateAction, without_layout
from agentrl_cli.core.statistics import mean
from agentrl_cli.core.types import Episode, Sample, derive_seed
from agentrl_cli.models.forward import max_positions
from agentrl_cli.models.specs import ModelSpec, with_reference
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.rollout.play import first_turn
from agentrl_cli.rollout.replay_buffer import ReplayBuffer

# --- inspection ---


@dataclass(frozen=True, eq=False)
class Fragment:
    """An expert's trajectory cut before the action of `turn`, or after the `thought` that precedes
    its last line: the tokens before the sample, and the expert's action there."""

    turn: TurnRef
    thought: str
    state_ids: list[int]
    expert_ids: list[int]
    expert_action: str


@dataclass
class Attempt:
    """The policy's own action at a fragment. The environment splits a reply at `turn_delimiter`."""

    fragment: Fragment
    action_ids: list[int]
    action: str
    turn_delimiter: str = ""

    @property
    def state_action(self) -> StateAction:
        """The state and the whole turn."""
        return self.fragment.turn.state_ids, self.fragment.thought + self.action

    def matches(self, *, last_line: bool = False) -> bool:
        """Whether the action, or its last line, equals the expert's apart from layout."""
        own, expert = self.action, self.fragment.expert_action
        if own.endswith(self.turn_delimiter) != expert.endswith(self.turn_delimiter):
            return False
        own, expert = without_layout(own), without_layout(expert)
        if last_line:
            own, expert = own.rpartition("\n")[2], expert.rpartition("\n")[2]
        return own == expert


def fragment_at(turn: TurnRef, chat: Chat, part: Literal["turn", "last_line"]) -> Fragment:
    """Return the cut before an expert's turn or, if only its `last_line` is sampled, after its
    thought. If the thought cannot be tokenized alone, the whole turn is sampled."""
    thought, newline, last_line = turn.action.rpartition("\n")
    if part == "last_line" and newline and last_line.strip():
        ids = chat.encode_action(thought + newline)[:-1]
        if turn.action_ids[: len(ids)] == ids:
            rest = turn.action_ids[len(ids) :]
            return Fragment(turn, thought + newline, turn.state_ids + ids, rest, last_line)
    return Fragment(turn, "", turn.state_ids, turn.action_ids, turn.action)


def fragments(
    context: Context, part: Literal["turn", "last_line"], count: int, attempts: int = 1
) -> list[Fragment]:
    """Return `count` fragments of the demonstrations (0: one in `num_samples` of all), drawn anew
    in every update. States that leave no room for an action are skipped."""
    longest = max_positions(context.models.module("policy")) - context.sampling.max_tokens
    every = [fragment_at(turn, context.chat, part) for turn in all_turns(context.demos)]
    fitting = [fragment for fragment in every if len(fragment.state_ids) <= longest]
    count = count or -(-len(fitting) // attempts)
    seed = derive_seed(context.seed, "fragments", context.step)
    return random.Random(seed).sample(fitting, count) if count < len(fitting) else fitting


def attempt_fragments(context: Context, fragments: list[Fragment]) -> list[Attempt]:
    """Sample the policy's action at every fragment in one call of the generator."""
    context.generator.clear()
    states = [fragment.state_ids for fragment in fragments]
    seeds = [derive_seed(context.seed, "practice", context.step, i) for i in range(len(states))]
    replies = context.generator.generate(states, seeds, context.sampling)
    delimiter, chat = context.turn_delimiter, context.chat
    actions = [first_turn(reply.ids, delimiter, chat) for (reply, *_) in replies]
    pairs = zip(fragments, actions, strict=True)
    return [Attempt(fragment, ids, chat.decode(ids), delimiter) for fragment, ids in pairs]


def match_metrics(attempts: list[Attempt]) -> dict[str, float]:
    """Return the number of fragments and the share of samples that equal the expert's action."""
    count = max(1, len(attempts))
    return {
        "stepagent/expert_states": float(len({attempt.fragment for attempt in attempts})),
        "stepagent/match": sum(attempt.matches() for attempt in attempts) / count,
        "stepagent/last_line_match": sum(a.matches(last_line=True) for a in attempts) / count,
    }


# --- reflection, implicit ---


@dataclass(kw_only=True)
class StepAgentImplicit(StepAgentImplicitConfig, Algorithm):
    """StepAgent with DPO: at every expert state, prefer the expert's action to the policy's."""

    demo_use = "must"
    plays = False  # inspection needs no environment

    def models(self) -> dict[str, ModelSpec]:
        return with_reference(self.optimizer)

    def texts(self, turns: int, max_tokens: int) -> dict[str, Texts]:
        count = self.expert_states_per_update
        return {"num_samples": Texts(count, max_tokens)} if count else {}

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Sample at the fragments, then yield one phase of pairs (expert's action, own action)."""
        cuts = fragments(self.context, self.attempt, self.expert_states_per_update)
        attempts = attempt_fragments(self.context, cuts)
        different = [attempt for attempt in attempts if not attempt.matches()]
        pairs = [
            (completion_sample(a.fragment.state_ids, a.fragment.expert_ids),
             completion_sample(a.fragment.state_ids, a.action_ids))
            for a in different
        ]  # fmt: skip
        dropped = {"stepagent/dropped": float(len(attempts) - len(pairs))}
        metrics = match_metrics(attempts) | dropped
        yield preference_phase(self, self.context.models, pairs, metrics)


# --- reflection, inverse ---


@dataclass(kw_only=True)
class StepAgentInverse(StepAgentInverseConfig, Algorithm):
    """StepAgent with a discriminator and PPO."""

    ppo: PPO  # pyright: ignore[reportIncompatibleVariableOverride]

    demo_use = "must"
    uses_ratio = True

    @property
    def plays(self) -> bool:
        """Whether the policy plays whole episodes."""
        return self.rollout == "environment"

    def models(self) -> dict[str, ModelSpec]:
        """Return PPO's models (without a value head at fragments) and the discriminator, a copy of
        the policy with a scalar head that starts at 0."""
        judge = ModelSpec(
            kind="trained", generates=False, optimizer=self.discriminator_optimizer, head="value",
            begins_as="policy",
        )  # fmt: skip
        found = self.ppo.models()
        policy = found["policy"] if self.plays else replace(found["policy"], head=None)
        return {**found, "policy": policy, "discriminator": judge}

    def texts(self, turns: int, max_tokens: int) -> dict[str, Texts]:
        count = self.num_samples * self.expert_states_per_update * (not self.plays)
        return {"num_samples": Texts(count, max_tokens)} if count else {}

    def bind(self, context: Context) -> None:
        super().bind(context)
        self.ppo.bind(context)

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Train the discriminator, then the policy on its rewards."""
        yield from self._on_episodes(episodes, buffer) if self.plays else self._on_fragments()

    def _on_fragments(self) -> Iterator[Phase]:
        """Train the discriminator on one half of the fragments and the policy on the other."""
        context, count = self.context, self.expert_states_per_update
        cuts = fragments(context, self.attempt, count, self.num_samples)
        attempts = attempt_fragments(context, [f for f in cuts for _ in range(self.num_samples)])
        seen, unseen = discriminator_halves(attempts, self.num_samples, context)
        expert_seen = self._expert_at(seen)
        own_seen = inverse.labelled_actions([a.state_action for a in seen], 1.0, context)
        yield self._discriminator_phase(expert_seen, own_seen, match_metrics(attempts))

        own_unseen = inverse.labelled_actions([a.state_action for a in unseen], 1.0, context)
        rewards = self.rewards(own_unseen)
        states = [attempt.fragment.state_ids for attempt in unseen]
        advantages = inverse.shrink_to_unit_std(inverse.leave_one_out(rewards, states))
        own = [completion_sample(a.fragment.state_ids, a.action_ids) for a in unseen]
        phase = inverse.surrogate_phase(own, advantages, self.ppo)
        phase.metrics = {
            "stepagent/reward_gap": self._gap(expert_seen, self.rewards(own_seen)),
            "stepagent/heldout_gap": self._gap(self._expert_at(unseen), rewards),
        }
        inspected = [attempt.fragment for attempt in unseen[:: self.num_samples]]
        expert = [completion_sample(f.state_ids, f.expert_ids) for f in inspected]
        yield inverse.with_expert_likelihood(phase, expert, self.nll_coef)

    def _on_episodes(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Train the discriminator on one half of the episodes and at most as many demonstrations,
        drawn anew in every update, and the policy on the other half by PPO."""
        context, played = self.context, without_skipped(episodes)
        draw = random.Random(derive_seed(context.seed, "episodes", context.step))
        played, demos = (draw.sample(row, len(row)) for row in (played, context.demos))
        middle = len(played) // 2
        seen, unseen = played[:middle], played[middle:]
        own_seen, own_unseen = (
            inverse.labelled_episodes(row, 1.0, context) for row in (seen, unseen)
        )
        count = min(middle, -(-len(demos) // 2))
        expert_seen, expert_unseen = (
            inverse.labelled_episodes(row, 0.0, context)
            for row in (demos[:count], demos[count : 2 * count])
        )
        yield self._discriminator_phase(expert_seen, own_seen, {})

        rewards = self.rewards(own_unseen)
        gaps = {
            "stepagent/reward_gap": self._gap(expert_seen, self.rewards(own_seen)),
            "stepagent/heldout_gap": self._gap(expert_unseen, rewards),
        }
        for phase in self.ppo.update(inverse.with_rewards(unseen, rewards), buffer):
            inverse.centre_advantages(phase.samples)
            phase.metrics |= gaps | skipped_metrics("ppo", episodes)
            turns = draw.choices(all_turns(context.demos), k=len(phase.samples))
            expert = [completion_sample(turn.state_ids, turn.action_ids) for turn in turns]
            yield inverse.with_expert_likelihood(phase, expert, self.nll_coef)

    def _expert_at(self, attempts: list[Attempt]) -> list[Sample]:
        """Return the expert's turns at the fragments of these attempts."""
        turns = [attempt.fragment.turn for attempt in attempts[:: self.num_samples]]
        acts = [(turn.state_ids, turn.action) for turn in turns]
        return inverse.labelled_actions(acts, 0.0, self.context)

    def _discriminator_phase(
        self, expert: list[Sample], own: list[Sample], metrics: dict[str, float]
    ) -> Phase:
        """Return the discriminator's phase. Both classes have the same total weight."""
        weight = sum(map(inverse.labels, own)) / max(1, sum(map(inverse.labels, expert)))
        return Phase(
            "discriminator", [*own, *inverse.weighed(expert, weight)], bce,
            model="discriminator", epochs=self.discriminator_epochs,
            units=inverse.labels, minibatch_tokens=self.discriminator_turns_per_step,
            metrics=metrics,
        )  # fmt: skip

    def _gap(self, expert: list[Sample], own_rewards: list[float]) -> float:
        """Return the mean reward of the expert's turns minus that of the policy's."""
        return mean(self.rewards(expert)) - mean(own_rewards)

    def rewards(self, samples: list[Sample]) -> list[float]:
        """Return the discriminator's reward of each labelled action, in order."""
        found = inverse.logits(self.context.models, samples)
        return inverse.expert_rewards(found, self.reward, self.reward_clip)


def discriminator_halves(
    attempts: list[Attempt], per_fragment: int, context: Context
) -> tuple[list[Attempt], list[Attempt]]:
    """Return the attempts at one half of the fragments and those at the other; each fragment has
    `per_fragment`. With the same fragments, the halves swap in every second update."""
    firsts = list(range(0, len(attempts), per_fragment))
    random.Random(derive_seed(context.seed, "halves", context.step // 2)).shuffle(firsts)
    middle = len(firsts) // 2
    one, other = (
        [attempts[first + k] for first in half for k in range(per_fragment)]
        for half in (firsts[:middle], firsts[middle:])
    )
    return (other, one) if context.step % 2 else (one, other)
