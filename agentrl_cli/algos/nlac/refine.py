"""Policy improvement in words: criticise an action, write it again, pass it on or not.

i = 1 … m: d ~ M(s, a_i), q_i ~ evaluator(s, a_i, d), a_{i+1} ~ refiner(s, a_1, q_1, …, a_i, q_i)
(arXiv 2512.04601). What is done with the last action, algorithm.py says.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from agentrl_cli.algos.nlac.prompts import fill
from agentrl_cli.algos.nlac.roles import CritiquedAction, Ids, Roles
from agentrl_cli.algos.samples import TurnRef


@dataclass
class Refinement:
    """A turn's actions a_1, …, a_{m+1} with their critiques, and the prompt of the last action."""

    actions: list[CritiquedAction]
    prompt: Ids

    @property
    def turn(self) -> TurnRef:
        """The turn whose action is refined."""
        return self.first.turn

    @property
    def first(self) -> CritiquedAction:
        """a_1."""
        return self.actions[0]

    @property
    def last(self) -> CritiquedAction:
        """a_{m+1}, or the action refined last so far."""
        return self.actions[-1]


@dataclass(frozen=True, kw_only=True)
class Refiner:
    """`rounds` is m, `forecasts` is k. With `gate` the last action needs a critique that calls it
    optimal; with `keep_optimal` an action that its critique calls optimal is not written again.
    `control` spoils critiques on purpose."""

    roles: Roles
    forecasts: int
    rounds: int
    gate: bool
    keep_optimal: bool
    control: str

    def refine(self, first: list[CritiquedAction]) -> list[Refinement]:
        """A refinement of each action, which comes with its forecasts and those of an alternative.
        All its actions but the last are criticised, under the gate the last one too. Turns where a
        critique could not be read are left out."""
        first = self.criticise(first)
        refinements = [Refinement([action], action.turn.state_ids) for action in first]
        for i in range(self.rounds):
            actions = self._write_again(refinements)
            self._extend(refinements, actions, self.gate or i + 1 < self.rounds)
        return [refinement for refinement in refinements if self._is_readable(refinement)]

    def passes(self, refinement: Refinement) -> bool:
        """Whether to distil a_{m+1}: complete and, under the gate, optimal by its own critique."""
        gated = self.gate and self.control != "empty_critiques"
        approved = refinement.last.is_optimal is True or not gated
        return self.roles.is_complete(refinement.last.action_ids) and approved

    def _write_again(self, refinements: list[Refinement]) -> list[Ids]:
        """The next action of each refinement, behind all of its actions and critiques so far."""
        for refinement in refinements:
            last = refinement.last
            critique = fill(self.roles.prompts.refine, critique=last.critique)
            asked = self.roles.asked(refinement.prompt, last.action_ids, critique)
            refinement.prompt = asked
        kept = [self.keep_optimal and r.last.is_optimal is True for r in refinements]
        prompts = [r.prompt for r, keep in zip(refinements, kept, strict=True) if not keep]
        written = iter(self.roles.refine(prompts))
        return [
            r.last.action_ids if keep else next(written)
            for r, keep in zip(refinements, kept, strict=True)
        ]

    def _extend(
        self,
        refinements: list[Refinement],
        actions: list[Ids],
        with_critique: bool,
    ) -> None:
        """Append the next action of each; one that the refiner kept keeps its critique too."""
        changed = [i for i, ids in enumerate(actions) if ids != refinements[i].last.action_ids]
        turns, new = [refinements[i].turn for i in changed], [actions[i] for i in changed]
        reading = self.roles.reading
        if with_critique and changed:
            forecasts = self.roles.forecast(turns, new, self.forecasts)
            others = [refinements[i].first.alternative_forecasts for i in changed]
            rows = zip(turns, new, forecasts, others, strict=True)
            new_actions = [CritiquedAction(*row, reading=reading) for row in rows]
            critiqued = self.criticise(new_actions)
        else:
            rows = zip(turns, new, strict=True)
            critiqued = [CritiquedAction(*row, reading=reading) for row in rows]
        following = dict(zip(changed, critiqued, strict=True))
        for i, refinement in enumerate(refinements):
            refinement.actions.append(following.get(i, refinement.last))

    def criticise(self, actions: list[CritiquedAction]) -> list[CritiquedAction]:
        """Let the evaluator write critiques, and spoil them where a control says so."""
        self.roles.write_critiques(actions)
        critiques = [action.critique for action in actions]
        if self.control == "shuffled_critiques":
            random.Random(self.roles.seed("critiques")).shuffle(critiques)
        if self.control == "empty_critiques":
            critiques = [""] * len(actions)
        return [replace(a, critique=text) for a, text in zip(actions, critiques, strict=True)]

    def _is_readable(self, refinement: Refinement) -> bool:
        """Whether every critique that was asked for has a verdict."""
        asked = refinement.actions if self.gate else refinement.actions[:-1]
        readable = all(action.is_optimal is not None for action in asked)
        return readable or self.control == "empty_critiques"
