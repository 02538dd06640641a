"""Policy improvement: find a better action in a state and turn it into training targets.

`ActionSelector.draw` samples candidates from the policy, lets the critic write about them, and
refines the first one. `ActionSelector.targets` selects what the policy trains on, by
`algo.policy_target`:

- `refined`: the refined action (the paper's method).
- `best_critique`: the candidate with the best critique (the paper's NLQL).
- `best_of_n`: the most likely candidate of π'(a|s) ∝ π(a|s) exp(V(a)/τ), which solves
  KL-regularized improvement (Peters et al. 2010; MPO, Abdolmaleki et al. 2018, eq. 4). π(a|s) is
  estimated by the number of draws. V is the value by forecasts, minus 1 if the critique calls the
  action not optimal.
- `advantage_weighted`: every candidate, weighted by V(a) - V(s). This is a policy
  gradient over turns (Williams 1992) with values from text.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from agentrl_cli.algos.nlac.roles import Candidate, Ids, Roles, fill
from agentrl_cli.algos.samples import TurnRef
from agentrl_cli.algos.settings import NLACConfig
from agentrl_cli.core.types import Episode
from agentrl_cli.generators.base import Sampling

REFINED_DRAWS = 0.5  # draws that a refined action counts for if the policy never drew it


@dataclass(frozen=True)
class TrainingTarget:
    """An action to train on in the state of a turn. A negative weight makes it less likely."""

    turn: TurnRef
    action_ids: Ids
    weight: float = 1.0


@dataclass
class Candidates:
    """The different actions of one state: the first draw, the other draws, and the refined action
    if it equals none of them. `chain` holds a_1 … a_{m+1} of the first draw, empty if it was not
    refined or a critique could not be parsed."""

    turn: TurnRef
    actions: list[Candidate]
    chain: list[Candidate] = field(default_factory=list)

    @property
    def first(self) -> Candidate:
        return self.actions[0]

    @property
    def refined(self) -> Candidate | None:
        """The action that the refiner wrote last."""
        return self.find(self.chain[-1].action_ids) if self.chain else None

    @property
    def drawn(self) -> list[Candidate]:
        """The actions that the policy drew."""
        return [action for action in self.actions if action.draws]

    @property
    def draws(self) -> int:
        """The number of draws, equal ones included."""
        return sum(action.draws for action in self.actions)

    def find(self, action_ids: Ids) -> Candidate | None:
        """Return the candidate with these token ids."""
        return next((a for a in self.actions if a.action_ids == action_ids), None)


class Ablation:
    """The parts of NLAC that an ablation can change. This class changes nothing.
    `ABLATIONS` has one class per value of `algo.advanced.ablation`."""

    trains_critic = True  # False: no successor phase
    uses_critic = True  # False: candidates get no forecasts, critiques and refinements
    needs_verdicts = True  # False: refinements count whatever their critiques say

    def outcome_of(self, episode: Episode, episodes: list[Episode], roles: Roles) -> Episode:
        """Return the episode that provides the terminal target of `episode`."""
        return episode

    def next_of(self, turns: list[TurnRef], roles: Roles) -> list[TurnRef]:
        """Return the next state s' that provides the forecast of each turn's backup."""
        return [turn.next for turn in turns]

    def forecasts(self, texts: list[list[str]], roles: Roles) -> list[list[str]]:
        """Return the forecasts that count for each candidate."""
        return texts

    def critiques(self, texts: list[str], roles: Roles) -> list[str]:
        """Return the critique that counts for each action."""
        return texts


class ShuffledOutcomes(Ablation):
    """Terminal targets state the end of another episode of the buffer."""

    def outcome_of(self, episode: Episode, episodes: list[Episode], roles: Roles) -> Episode:
        ended = [other for other in episodes if other.stop == "done"]
        return random.Random(roles.seed("shuffle", episode.id)).choice(ended)


class ShuffledNextStates(ShuffledOutcomes):
    """Backups continue from the next state of another transition, or from its end."""

    def next_of(self, turns: list[TurnRef], roles: Roles) -> list[TurnRef]:
        following = super().next_of(turns, roles)
        random.Random(roles.seed("next states")).shuffle(following)
        return following


class ShuffledCritiques(Ablation):
    """Forecasts and critiques belong to other actions."""

    def forecasts(self, texts: list[list[str]], roles: Roles) -> list[list[str]]:
        random.Random(roles.seed("values")).shuffle(texts)
        return texts

    def critiques(self, texts: list[str], roles: Roles) -> list[str]:
        random.Random(roles.seed("critiques")).shuffle(texts)
        return texts


class EmptyCritiques(Ablation):
    """Forecasts do not count and the refiner reads empty critiques."""

    needs_verdicts = False

    def forecasts(self, texts: list[list[str]], roles: Roles) -> list[list[str]]:
        return [[] for _ in texts]

    def critiques(self, texts: list[str], roles: Roles) -> list[str]:
        return ["" for _ in texts]


class FrozenCritic(Ablation):
    """The critic is never trained."""

    trains_critic = False


class Majority(Ablation):
    """No critic: the policy trains on its most frequent action."""

    trains_critic = False
    uses_critic = False


ABLATIONS: dict[str, type[Ablation]] = {
    "none": Ablation,
    "shuffled_outcomes": ShuffledOutcomes,
    "shuffled_next_states": ShuffledNextStates,
    "shuffled_critiques": ShuffledCritiques,
    "empty_critiques": EmptyCritiques,
    "frozen_critic": FrozenCritic,
    "majority": Majority,
}


@dataclass(frozen=True)
class ActionSelector:
    """Draws `num_candidates` actions per state with `num_forecasts` forecasts each, refines the
    first, and selects the training targets."""

    roles: Roles
    settings: NLACConfig
    ablation: Ablation
    num_candidates: int
    num_forecasts: int

    def draw(
        self, turns: list[TurnRef], first: list[Ids] | None = None, sampling: Sampling | None = None
    ) -> list[Candidates]:
        """Return the candidates of each turn with the critic's texts. `first` gives the first
        action of each turn instead of a draw, `sampling` how to draw the others; default: as in
        training."""
        groups = []
        for turn, row in zip(turns, self._draw_actions(turns, first, sampling), strict=True):
            counts = Counter(map(tuple, row)).items()
            groups.append(Candidates(turn, [self._candidate(turn, [*ids], n) for ids, n in counts]))
        if self.ablation.uses_critic:
            self._add_forecasts([action for group in groups for action in group.actions])
            if self.settings.policy_target != "best_critique":
                self._add_refinements(groups)
            if self.settings.policy_target in ("best_of_n", "best_critique"):
                self._add_critiques(groups)
        return groups

    def _draw_actions(
        self, turns: list[TurnRef], first: list[Ids] | None, sampling: Sampling | None
    ) -> list[list[Ids]]:
        """Return the actions of each turn, [turns, candidates]."""
        fresh = self.num_candidates - (first is not None)
        ids = self.roles.act([turn for turn in turns for _ in range(fresh)], sampling)
        rows = [ids[i * fresh : (i + 1) * fresh] for i in range(len(turns))]
        return rows if first is None else [[a, *row] for a, row in zip(first, rows, strict=True)]

    def _candidate(self, turn: TurnRef, action_ids: Ids, draws: int) -> Candidate:
        return Candidate(turn, action_ids, draws, parser=self.roles.parser)

    def _add_forecasts(self, actions: list[Candidate]) -> None:
        turns, ids = [action.turn for action in actions], [action.action_ids for action in actions]
        texts = self.roles.forecast(turns, ids, self.num_forecasts)
        for action, row in zip(actions, self.ablation.forecasts(texts, self.roles), strict=True):
            action.forecasts = row

    # --- refinement ---

    def _add_refinements(self, groups: list[Candidates]) -> None:
        """Refine the first draw of each group. New actions become candidates."""
        chains = self.refine([self.shown(group, group.first) for group in groups])
        new: list[Candidate] = []
        for group, chain in zip(groups, chains, strict=True):
            group.chain = chain
            if chain:
                group.first.critique = chain[0].critique
                if group.refined is None:
                    new.append(self._candidate(group.turn, chain[-1].action_ids, 0))
                    group.actions.append(new[-1])
        if self.settings.policy_target != "refined":
            self._add_forecasts(new)

    def refine(self, first: list[Candidate]) -> list[list[Candidate]]:
        """Return the chain a_1 … a_{m+1} of each action, which comes with its forecasts.

        For i = 1 … m: d ~ M(s, a_i), q_i ~ E(s, a_i, d), a_{i+1} ~ π^r(s, a_1, q_1, …, a_i, q_i)
        (arXiv 2512.04601). With `require_optimal` the last action gets a critique, too. A
        chain is empty if one of its critiques cannot be parsed.
        """
        settings, roles = self.settings, self.roles
        self.criticise(first)
        chains = [[action] for action in first]
        prompts = [action.turn.state_ids for action in first]
        for i in range(settings.num_refinements):
            last = [chain[-1] for chain in chains]
            critiques = [fill(roles.prompts.refine, critique=a.critique or "") for a in last]
            prompts = [
                roles.prompt_after(prompt, action.action_ids, critique)
                for prompt, action, critique in zip(prompts, last, critiques, strict=True)
            ]
            keeps = [settings.advanced.keep_optimal and a.is_optimal is True for a in last]
            written = iter(roles.refine([p for p, k in zip(prompts, keeps, strict=True) if not k]))
            new = {}
            for j, (action, keep) in enumerate(zip(last, keeps, strict=True)):
                ids = action.action_ids if keep else next(written)
                if ids != action.action_ids:
                    new[j] = replace(action, action_ids=ids, draws=0, forecasts=[], critique=None)
            if new and (settings.require_optimal or i + 1 < settings.num_refinements):
                turns, ids = [a.turn for a in new.values()], [a.action_ids for a in new.values()]
                forecasts = roles.forecast(turns, ids, settings.num_forecasts)
                for action, texts in zip(new.values(), forecasts, strict=True):
                    action.forecasts = texts
                self.criticise([*new.values()])
            for j, chain in enumerate(chains):
                chain.append(new.get(j, chain[-1]))  # an unchanged action keeps its critique
        return [chain if self._is_parsable(chain) else [] for chain in chains]

    def criticise(self, actions: list[Candidate]) -> None:
        """Write a critique of each action."""
        texts = self.ablation.critiques(self.roles.critiques(actions), self.roles)
        for action, text in zip(actions, texts, strict=True):
            action.critique = text

    def shown(self, group: Candidates, action: Candidate) -> Candidate:
        """Return a copy of a candidate with the texts that its critique reads: its first k
        forecasts and, with `show_alternatives`, k of the other draws in turn (of its own if there
        is no other)."""
        count = self.settings.num_forecasts
        rows = [a.forecasts for a in group.drawn if a is not action] or [action.forecasts]
        others = [text for column in zip_longest(*rows) for text in column if text is not None]
        alternatives = others[: count if self.settings.show_alternatives else 0]
        return replace(action, forecasts=action.forecasts[:count], alternatives=alternatives)

    def _is_parsable(self, chain: list[Candidate]) -> bool:
        judged = chain if self.settings.require_optimal else chain[:-1]
        parsable = all(action.is_optimal is not None for action in judged)
        return parsable or not self.ablation.needs_verdicts

    # --- selection ---

    def targets(self, group: Candidates) -> list[TrainingTarget]:
        """Return the training targets of one state."""
        if self.settings.policy_target == "advantage_weighted":
            return _advantage_weighted(group, self.roles.is_complete)
        chosen = self.select(group)
        if chosen is None or not self.roles.is_complete(chosen.action_ids):
            return []
        drops = self.settings.policy_target == "refined" and self.settings.advanced.drop_unchanged
        if drops and chosen is group.first and chosen.is_optimal is not True:
            return []
        return [TrainingTarget(group.turn, chosen.action_ids)]

    def best_action(self, group: Candidates) -> Ids | None:
        """Return the action with the largest positive weight among the training targets."""
        raised = [target for target in self.targets(group) if target.weight > 0]
        return max(raised, key=lambda target: target.weight).action_ids if raised else None

    def select(self, group: Candidates) -> Candidate | None:
        """Return the action to distill, if any."""
        gate = self.settings.require_optimal and self.ablation.needs_verdicts
        if self.settings.policy_target == "refined":
            approved = group.chain and (group.chain[-1].is_optimal is True or not gate)
            return group.refined if approved else None
        if self.settings.policy_target == "best_critique":
            return _best_critique(group.actions, gate)
        leading = self._leading(group)
        return leading[0] if len(leading) == 1 else None

    def _leading(self, group: Candidates) -> list[Candidate]:
        """Return the actions with the highest score. One without a valid forecast has no score,
        unless no action has one."""
        rated = [action for action in group.actions if action.forecasts] or group.actions
        best = max(map(self._log_improved, rated))
        return [action for action in rated if self._log_improved(action) == best]

    def _log_improved(self, action: Candidate) -> float:
        """Return log π'(a|s) up to a constant of the state."""
        judged_value = action.value - (action.is_optimal is False)
        temperature = self.settings.selection_temperature
        return math.log(action.draws or REFINED_DRAWS) + judged_value / temperature

    def _add_critiques(self, groups: list[Candidates]) -> None:
        """Write the critiques that can still change the selection."""
        while rows := [(group, action) for group in groups for action in self._to_judge(group)]:
            shown = [self.shown(*row) for row in rows]
            self.criticise(shown)
            for (_, action), copy in zip(rows, shown, strict=True):
                action.critique = copy.critique

    def _to_judge(self, group: Candidates) -> list[Candidate]:
        """Return the actions that need a critique. Best of n needs those of the leading actions
        only, because a critique can only lower a score."""
        waiting = [action for action in group.actions if action.critique is None]
        if self.settings.policy_target == "best_critique":
            return waiting
        if len(group.actions) == 1:
            return []
        return [action for action in self._leading(group) if action.critique is None]


def _best_critique(actions: list[Candidate], gate: bool) -> Candidate | None:
    """Return the action of the highest value among those called optimal, else, without `gate`,
    among those with a verdict."""
    optimal = [action for action in actions if action.is_optimal]
    judged = [action for action in actions if action.is_optimal is not None]
    return max(optimal or ([] if gate else judged), key=lambda a: a.value, default=None)


def _advantage_weighted(
    group: Candidates, is_complete: Callable[[Ids], bool]
) -> list[TrainingTarget]:
    """Return every draw with its number of draws times V(a) - V(s), and a complete refined action
    only if that is positive. V(s) is the mean value of the draws. Actions without forecasts have no
    value and are left out."""
    rated = [action for action in group.actions if action.forecasts]
    draws = sum(action.draws for action in rated)
    if not draws:
        return []
    state_value = sum(action.draws * action.value for action in rated) / draws
    weights = [(a, (a.draws or 1) * (a.value - state_value)) for a in rated]
    kept = [
        (a, weight)
        for a, weight in weights
        if weight and (a.draws or (weight > 0 and is_complete(a.action_ids)))
    ]
    return [TrainingTarget(group.turn, a.action_ids, weight) for a, weight in kept]
