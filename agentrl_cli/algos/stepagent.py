"""StepAgent: step-wise reinforcement learning from an expert (arXiv 2411.03817).

Inspection: cut the expert's trajectories before every action; at each cut, with state s_i and
expert action a*_i, the policy samples its own action a_i. Needs no environment and no reward.

Reflection, implicit variant: step-level DPO. In the paper the reference is the expert, pi_e:

    L = - log sigmoid( beta log pi(a*)/pi_e(a*) - beta log pi(a)/pi_e(a) )

The expert's probabilities are seldom known. `reference=expert` estimates pi_e by SFT of the initial
policy on the demonstrations. `reference=start` takes the initial policy, which should be such an
SFT already.

Reflection, inverse variant: adversarial imitation (Ho and Ermon 2016, arXiv 1606.03476). A
discriminator D learns to separate the policy's actions from the expert's, and PPO maximizes a
reward that falls with D:

    max_D  E_pi[log D] + E_expert[log(1 - D)]        r = log(1 - D) - log D

D(s, a) is a copy of the policy with a scalar head, read at the last token of an action. Actions are
written without their layout (spaces, empty lines), so that D cannot use it. A sample of D is one
state and action, or an episode with all of its actions.

Our choices: a sample at a cut is an episode of one turn with the mean reward of the other samples
in its state as baseline; in whole episodes the baseline is a learned value. Rewards come from a
discriminator that was trained on other expert states or episodes in this update. One update is one
cycle. Left out: training the discriminator to convergence in every cycle.
"""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import compress
from typing import Literal

import torch
from torch.nn.functional import logsigmoid

from agentrl_cli.algos.base import Algorithm, Context, Phase, Texts
from agentrl_cli.algos.dpo import preference_phase
from agentrl_cli.algos.losses import Loss, bce, clipped_ratio, nll, with_entropy, with_kl
from agentrl_cli.algos.ppo import PPO
from agentrl_cli.algos.samples import (
    TurnRef,
    all_turns,
    append_tokens,
    completion_sample,
    episode_samples,
    skipped_metrics,
    without_skipped,
)
from agentrl_cli.algos.settings import StepAgentImplicitConfig, StepAgentInverseConfig
from agentrl_cli.algos.sft import turn_weight
from agentrl_cli.core.statistics import mean
from agentrl_cli.core.types import Episode, Sample, derive_seed
from agentrl_cli.models.forward import (
    Batch,
    Outputs,
    add_logprobs,
    logprobs_and_values,
    max_positions,
    token_logprobs,
)
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import ModelSpec, with_reference
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.rollout.play import first_turn
from agentrl_cli.rollout.replay_buffer import ReplayBuffer

StateAction = tuple[list[int], str]  # the tokens of a state, the text of a whole turn

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


def count_expert_states(algo: Algorithm) -> int:
    """Return the number of turns of all demonstrations; 0 before `bind`."""
    return len(all_turns(algo.context.demos)) if hasattr(algo, "context") else 0


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
        """Return the policy and the reference, which is trained if it estimates the expert."""
        found = with_reference(self.optimizer)
        if self.reference == "expert":
            found["reference"] = ModelSpec(
                kind="trained", generates=False, optimizer=self.optimizer, begins_as="policy"
            )
        return found

    def texts(self, turns: int, max_tokens: int) -> dict[str, Texts]:
        count = self.expert_states_per_update or count_expert_states(self)
        return {"fresh actions": Texts(count, max_tokens)} if count else {}

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Sample at the fragments, then yield one phase of pairs (expert's action, own action).
        If the reference estimates the expert, the first update trains it before."""
        if self.reference == "expert" and self.context.step == 0:
            samples = [s for demo in self.context.demos for s in episode_samples(demo, turn_weight)]
            yield Phase(
                "reference", samples, nll, model="reference", epochs=self.reference_epochs,
                minibatch_tokens=self.minibatch_tokens,
            )  # fmt: skip
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

    def action_values(self, turns: list[TurnRef]) -> list[float]:
        """Return DPO's implicit rewards, beta log pi(a|s) / pi_ref(a|s) (Rafailov et al. 2023)."""
        samples = [completion_sample(turn.state_ids, turn.action_ids) for turn in turns]
        models = self.context.models
        rows, initial = (
            token_logprobs(models.forward(m), samples) for m in ("policy", "reference")
        )
        pairs = zip(rows, initial, strict=True)
        return [self.beta * (sum(new) - sum(old)) for new, old in pairs]


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
        states = self.expert_states_per_update * self.num_samples or count_expert_states(self)
        count = 0 if self.plays else states
        return {"fresh actions": Texts(count, max_tokens)} if count else {}

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
        own_seen = labelled_actions([a.state_action for a in seen], 1.0, context)
        yield self._discriminator_phase(expert_seen, own_seen, match_metrics(attempts))

        own_unseen = labelled_actions([a.state_action for a in unseen], 1.0, context)
        rewards = self.rewards(own_unseen)
        states = [attempt.fragment.state_ids for attempt in unseen]
        advantages = shrink_to_unit_std(leave_one_out(rewards, states))
        own = [completion_sample(a.fragment.state_ids, a.action_ids) for a in unseen]
        phase = surrogate_phase(own, advantages, self.ppo)
        phase.metrics = {
            "stepagent/reward_gap": self._gap(expert_seen, self.rewards(own_seen)),
            "stepagent/heldout_gap": self._gap(self._expert_at(unseen), rewards),
        }
        inspected = [attempt.fragment for attempt in unseen[:: self.num_samples]]
        expert = [completion_sample(f.state_ids, f.expert_ids) for f in inspected]
        yield with_expert_likelihood(phase, expert, self.nll_coef)

    def _on_episodes(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Train the discriminator on one half of the episodes and at most as many demonstrations,
        drawn anew in every update, and the policy on the other half by PPO."""
        context, played = self.context, without_skipped(episodes)
        draw = random.Random(derive_seed(context.seed, "episodes", context.step))
        played, demos = (draw.sample(row, len(row)) for row in (played, context.demos))
        middle = len(played) // 2
        count = min(middle, -(-len(demos) // 2))
        unseen = played[middle:]
        own_seen = labelled_episodes(played[:middle], 1.0, context)
        own_unseen = labelled_episodes(unseen, 1.0, context)
        expert_seen = labelled_episodes(demos[:count], 0.0, context)
        expert_unseen = labelled_episodes(demos[count : 2 * count], 0.0, context)
        yield self._discriminator_phase(expert_seen, own_seen, {})

        rewards = self.rewards(own_unseen)
        gaps = {"stepagent/reward_gap": self._gap(expert_seen, self.rewards(own_seen))}
        if expert_unseen:  # there are at least two demonstrations
            gaps["stepagent/heldout_gap"] = self._gap(expert_unseen, rewards)
        for phase in self.ppo.update(with_rewards(unseen, rewards), buffer):
            centre_advantages(phase.samples)
            phase.metrics |= gaps | skipped_metrics("ppo", episodes)
            turns = draw.choices(all_turns(context.demos), k=len(phase.samples))
            expert = [completion_sample(turn.state_ids, turn.action_ids) for turn in turns]
            yield with_expert_likelihood(phase, expert, self.nll_coef)

    def _expert_at(self, attempts: list[Attempt]) -> list[Sample]:
        """Return the expert's turns at the fragments of these attempts."""
        turns = [attempt.fragment.turn for attempt in attempts[:: self.num_samples]]
        acts = [(turn.state_ids, turn.action) for turn in turns]
        return labelled_actions(acts, 0.0, self.context)

    def _discriminator_phase(
        self, expert: list[Sample], own: list[Sample], metrics: dict[str, float]
    ) -> Phase:
        """Return the discriminator's phase. Both classes have the same total weight."""
        weight = sum(map(label_weight, own)) / max(1, sum(map(label_weight, expert)))
        return Phase(
            "discriminator", [*own, *weighed(expert, weight)], bce,
            model="discriminator", epochs=self.discriminator_epochs,
            units=label_weight, minibatch_tokens=self.discriminator_turns_per_step,
            metrics=metrics,
        )  # fmt: skip

    def _gap(self, expert: list[Sample], own_rewards: list[float]) -> float:
        return mean(self.rewards(expert)) - mean(own_rewards)

    def action_values(self, turns: list[TurnRef]) -> list[float]:
        """Return the rewards of the turns' actions."""
        acts = [(turn.state_ids, turn.action) for turn in turns]
        return self.rewards(labelled_actions(acts, 1.0, self.context))

    def rewards(self, samples: list[Sample]) -> list[float]:
        """Return the discriminator's reward of each labelled action, in order."""
        found = logits(self.context.models, samples)
        return expert_rewards(found, self.reward, self.reward_clip)


def discriminator_halves(
    attempts: list[Attempt], per_fragment: int, context: Context
) -> tuple[list[Attempt], list[Attempt]]:
    """Return the attempts at one half of the fragments and those at the other; each fragment has
    `per_fragment`. Equal states stay in one half, unless one state has most of the fragments. With
    the same fragments, the halves swap in every second update."""
    firsts = range(0, len(attempts), per_fragment)
    middle = len(firsts) // 2
    by_state: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for first in firsts:
        by_state[tuple(attempts[first].fragment.state_ids)].append(first)
    groups = list(by_state.values())
    if max(map(len, groups), default=0) > middle:
        groups = [[first] for first in firsts]
    random.Random(derive_seed(context.seed, "halves", context.step // 2)).shuffle(groups)
    one: list[Attempt] = []
    other: list[Attempt] = []
    for group in groups:
        half = one if len(one) < middle * per_fragment else other
        half += [attempts[first + k] for first in group for k in range(per_fragment)]
    return (other, one) if context.step % 2 else (one, other)


# --- the discriminator's samples and rewards, and the policy's loss ---


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
    """Return one sample per episode, with the fields of `labelled_actions` at every action. Earlier
    actions are written without layout, too."""
    samples: list[Sample] = []
    for episode in episodes:
        sample = Sample([], [], {"value_at": [], "label": []})
        for turn in episode.turns:
            ids, closing = turn.observation_ids, context.chat.end_of_turn
            # an observation after an unclosed action begins with the closing token, which
            # `encode_action` has already written
            is_closed = bool(sample.ids) and sample.ids[-1] == closing
            append_tokens(sample, ids[1:] if is_closed and ids[:1] == [closing] else ids)
            _append_labelled(sample, encode_action(turn.action, context), label)
        samples.append(sample)
    return samples


def _append_labelled(sample: Sample, ids: list[int], label: float) -> None:
    append_tokens(sample, ids)
    sample.per_token["value_at"][-1], sample.per_token["label"][-1] = 1.0, label


def label_weight(sample: Sample) -> float:
    """Return the unit of the discriminator's loss: the total weight of the sample's labels."""
    return sum(sample.per_token["value_at"])


def weighed(samples: list[Sample], weight: float) -> list[Sample]:
    """Return copies of the samples with `weight` times the weight of each label."""
    found = []
    for sample in samples:
        value_at = [weight * at for at in sample.per_token["value_at"]]
        found.append(replace(sample, per_token=sample.per_token | {"value_at": value_at}))
    return found


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
