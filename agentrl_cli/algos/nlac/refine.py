"""Policy improvement in words: forecast an action, criticise it, write it again, pass it or not."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl_cli.algos.nlac.prompts import fill
from agentrl_cli.algos.nlac.roles import CritiquedAction, Roles, TurnRef
from agentrl_cli.core.types import Episode, Task, Turn
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.rollout.play import split_into_turns

Chain = list[CritiquedAction]


@dataclass(frozen=True, kw_only=True)
class Refinement:
    """`rounds` times a^{i+1} ~ refiner(s, a^i, q^i) with q^i ~ evaluator(s, a^i, d) and `forecasts`
    texts d ~ successor(s, a^i). With `compare` the evaluator also reads forecasts of another action
    of the same state; with `gate` the last action needs a critique that calls it optimal; with
    `keep` the refiner is not asked of an action that its critique calls optimal. `writer` names
    the refiner's weights; `control` spoils critiques on purpose."""

    roles: Roles
    forecasts: int
    rounds: int
    compare: bool
    gate: bool
    keep: bool
    writer: str
    control: str

    def chains(self, places: list[TurnRef], actions: list[list[int]]) -> list[Chain]:
        """For each place the chain a^1, …, a^{m+1}; all but the last are judged, the last too under
        the gate. Places where a critique could not be read are left out."""
        beside: list[list[str]] = [[] for _ in places]
        if self.compare:
            beside = self.roles.forecast(places, self.roles.act(places), self.forecasts)
        chains = [[one] for one in self._judge(places, actions, beside)]
        prompts = [place.state for place in places]
        for i in range(self.rounds):
            prompts = [self._prompt(ids, chain) for ids, chain in zip(prompts, chains, strict=True)]
            refined = self._refined(chains, prompts)
            links = self._follow(chains, refined, beside, self.gate or i + 1 < self.rounds)
            chains = [[*chain, link] for chain, link in zip(chains, links, strict=True)]
        return [chain for chain in chains if self._readable(chain)]

    def passes(self, chain: Chain) -> bool:
        """Whether to distil: a whole turn that, under the gate, its own critique calls optimal."""
        ungated = not self.gate or self.control == "empty_critiques"
        return self.roles.ended(chain[-1].action) and (ungated or chain[-1].optimal is True)

    def _refined(self, chains: list[Chain], prompts: list[list[int]]) -> list[list[int]]:
        """The next action of each chain."""
        asked = [i for i, one in enumerate(chains) if not (self.keep and one[-1].optimal)]
        written = self.roles.refine([prompts[i] for i in asked], self.writer)
        actions = [chain[-1].action for chain in chains]
        for i, ids in zip(asked, written, strict=True):
            actions[i] = ids
        return actions

    def _prompt(self, ids: list[int], chain: Chain) -> list[int]:
        critique = fill(self.roles.prompts.refine, critique=chain[-1].critique)
        return self.roles.context.chat.role(ids, chain[-1].action, critique)

    def _follow(
        self,
        chains: list[Chain],
        refined: list[list[int]],
        beside: list[list[str]],
        judges: bool,
    ) -> list[CritiquedAction]:
        """The next link of each chain; an action that the refiner kept keeps its critique too."""
        links = [
            chain[-1] if chain[-1].action == ids else CritiquedAction(chain[0].place, ids)
            for chain, ids in zip(chains, refined, strict=True)
        ]
        new = [i for i, link in enumerate(links) if judges and link is not chains[i][-1]]
        if new:
            places, actions = [links[i].place for i in new], [links[i].action for i in new]
            judged = self._judge(places, actions, [beside[i] for i in new])
            for i, one in zip(new, judged, strict=True):
                links[i] = one
        return links

    def _judge(
        self, places: list[TurnRef], actions: list[list[int]], beside: list[list[str]]
    ) -> list[CritiquedAction]:
        """Judge, and spoil the critiques where a control says so."""
        judged = self.roles.judge(places, actions, beside, self.forecasts)
        critiques = [one.critique for one in judged]
        if self.control == "shuffled_critiques":
            random.Random(self.roles.seed("critiques")).shuffle(critiques)
        if self.control == "empty_critiques":
            critiques = [""] * len(judged)
        return [replace(one, critique=text) for one, text in zip(judged, critiques, strict=True)]

    def _readable(self, chain: Chain) -> bool:
        asked = chain if self.gate else chain[:-1]
        return self.control == "empty_critiques" or all(one.optimal is not None for one in asked)


@dataclass(frozen=True, kw_only=True)
class RefinedPlay(Generator):
    """A generator that plays the refined action instead of distilling it: each of the policy's
    actions is criticised and written again, and kept where the result does not pass."""

    refine: Refinement
    generator: Generator

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """One action behind each prompt, no more than one turn; of rewritten ones the log-probs are
        not known (NaN)."""
        rows = self.generator.generate(prompts, seeds, sampling, model)
        context = self.refine.roles.context
        first = [split_into_turns(row[0], context.turn_delimiter, context.chat)[0] for row in rows]
        places = [standing(ids) for ids in prompts]
        chains = self.refine.chains(places, [one.ids for one in first])
        better = {chain[0].place: chain[-1].action for chain in chains if self.refine.passes(chain)}
        return [
            [_rewritten(one, better.get(place, one.ids))]
            for place, one in zip(places, first, strict=True)
        ]

    def load(self, model: str, version: int, path: Path | None = None) -> None:
        """Hand on to the generator inside."""
        self.generator.load(model, version, path)


def standing(ids: list[int]) -> TurnRef:
    """A place of which nothing is known but the ids that lead there."""
    turn = Turn([], "", ids, [], [])
    return TurnRef(Episode("", Task("", "", {}), "", 0, [turn]), 0)


def _rewritten(one: Completion, ids: list[int]) -> Completion:
    if ids == one.ids:
        return one
    return replace(one, ids=ids, logprobs=[float("nan")] * len(ids), finish="stop")
