"""Policy improvement in words: criticise an action, write it again, pass it on or not.

i = 1 … m: d ~ M(s, a_i), q_i ~ evaluator(s, a_i, d), a_{i+1} ~ refiner(s, a_1, q_1, …, a_i, q_i)
(arXiv 2512.04601). What is done with the last action, algorithm.py says.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl_cli.algos.nlac.prompts import fill
from agentrl_cli.algos.nlac.roles import CritiquedAction, Ids, Roles
from agentrl_cli.algos.turns import TurnRef
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.rollout.play import split_into_turns


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
    """`rounds` is m, `forecasts` is k. With `compare` the evaluator also reads forecasts of another
    action of the same state; with `gate` the last action needs a critique that calls it optimal;
    with `keep_optimal` an action that its critique calls optimal is not written again. `control`
    spoils critiques on purpose."""

    roles: Roles
    forecasts: int
    rounds: int
    compare: bool
    gate: bool
    keep_optimal: bool
    control: str

    def refine(self, turns: list[TurnRef], actions: list[Ids]) -> list[Refinement]:
        """A refinement of each turn's action; all its actions but the last are criticised, under
        the gate the last one too. Turns where a critique could not be read are left out."""
        alternatives = self._alternative_forecasts(turns)
        first = self._critique(turns, actions, alternatives)
        refinements = [Refinement([action], action.turn.state_ids) for action in first]
        for i in range(self.rounds):
            actions = self._write_again(refinements)
            self._extend(refinements, actions, alternatives, self.gate or i + 1 < self.rounds)
        return [refinement for refinement in refinements if self._is_readable(refinement)]

    def passes(self, refinement: Refinement) -> bool:
        """Whether to distil a_{m+1}: complete and, under the gate, optimal by its own critique."""
        gated = self.gate and self.control != "empty_critiques"
        approved = refinement.last.is_optimal is True or not gated
        return self.roles.is_complete(refinement.last.action_ids) and approved

    def _alternative_forecasts(self, turns: list[TurnRef]) -> list[list[str]]:
        """With `compare` k forecasts of a fresh action of each turn's state, else none."""
        if not self.compare:
            return [[] for _ in turns]
        return self.roles.forecast(turns, self.roles.act(turns), self.forecasts)

    def _write_again(self, refinements: list[Refinement]) -> list[Ids]:
        """The next action of each refinement, behind all of its actions and critiques so far."""
        for refinement in refinements:
            last, chat = refinement.last, self.roles.context.chat
            critique = fill(self.roles.prompts.refine, critique=last.critique)
            refinement.prompt = chat.role_prompt(refinement.prompt, last.action_ids, critique)
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
        alternatives: list[list[str]],
        with_critique: bool,
    ) -> None:
        """Append the next action of each; one that the refiner kept keeps its critique too."""
        changed = [i for i, ids in enumerate(actions) if ids != refinements[i].last.action_ids]
        turns, new = [refinements[i].turn for i in changed], [actions[i] for i in changed]
        if with_critique and changed:
            critiqued = self._critique(turns, new, [alternatives[i] for i in changed])
        else:
            critiqued = list(map(CritiquedAction, turns, new))
        following = dict(zip(changed, critiqued, strict=True))
        for i, refinement in enumerate(refinements):
            refinement.actions.append(following.get(i, refinement.last))

    def _critique(
        self, turns: list[TurnRef], actions: list[Ids], alternatives: list[list[str]]
    ) -> list[CritiquedAction]:
        """Criticise, and spoil the critiques where a control says so."""
        critiqued = self.roles.forecast_and_critique(turns, actions, alternatives, self.forecasts)
        critiques = [action.critique for action in critiqued]
        if self.control == "shuffled_critiques":
            random.Random(self.roles.seed("critiques")).shuffle(critiques)
        if self.control == "empty_critiques":
            critiques = [""] * len(critiqued)
        return [replace(a, critique=text) for a, text in zip(critiqued, critiques, strict=True)]

    def _is_readable(self, refinement: Refinement) -> bool:
        """Whether every critique that was asked for has a verdict."""
        asked = refinement.actions if self.gate else refinement.actions[:-1]
        readable = all(action.is_optimal is not None for action in asked)
        return readable or self.control == "empty_critiques"


@dataclass(frozen=True, kw_only=True)
class RefinedPlay(Generator):
    """A generator that plays the refined action instead of distilling it: each of the policy's
    actions is criticised and written again, and kept where the result does not pass."""

    refiner: Refiner
    generator: Generator

    def generate(
        self, prompts: list[Ids], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """One action behind each prompt, a turn at most; log-probs of rewritten ones are NaN."""
        context = self.refiner.roles.context
        delimiter, chat = context.turn_delimiter, context.chat
        replies = self.generator.generate(prompts, seeds, sampling, model)
        first = [split_into_turns(reply, delimiter, chat)[0] for (reply, *_) in replies]
        turns = [TurnRef.from_state(ids) for ids in prompts]
        refinements = self.refiner.refine(turns, [completion.ids for completion in first])
        refined = {r.turn: r.last.action_ids for r in refinements if self.refiner.passes(r)}
        pairs = zip(turns, first, strict=True)
        return [[_rewritten(reply, refined.get(turn, reply.ids))] for turn, reply in pairs]

    def load(self, model: str, version: int, path: Path | None = None) -> None:
        """Hand on to the generator inside."""
        self.generator.load(model, version, path)


def _rewritten(completion: Completion, ids: Ids) -> Completion:
    if ids == completion.ids:
        return completion
    return replace(completion, ids=ids, logprobs=[float("nan")] * len(ids), finish="stop")
