"""Policy evaluation in words: the targets from which the successor role learns.

One link is NLAC's language Bellman backup (arXiv 2512.04601): y ~ Backup(s, a, s', d'), with d' a
forecast of the policy's own next action. `trace` chains links over the turns that were played, as
the λ of TD(λ) chains Bellman backups (Sutton 1988; off-policy without correction, as in the Q(λ)
of Peng and Williams 1996), so that the true end of an episode reaches its early turns in one
update. Every text is sampled, the one of a true end excepted.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from agentrl_cli.algos.nlac.prompts import outcome
from agentrl_cli.algos.nlac.roles import Roles, TurnRef

Ids = list[int] | None


@dataclass(frozen=True)
class LanguageBackup:
    """`instruction` asks for a backup; each further turn joins a chain with probability `trace`:
    0 is the paper's single link, 1 goes to the end of the episode."""

    roles: Roles
    instruction: str
    trace: float

    def targets(self, places: list[TurnRef], terminal: Callable[[TurnRef], Ids]) -> list[Ids]:
        """One text for each place, by the target's weights; `terminal` gives that of a last turn.
        None where a text of the chain names no outcome or was cut off."""
        draw = random.Random(self.roles.seed("trace"))
        heads = [self._head(place, draw) for place in places]
        found = [terminal(head) if head.last else None for head in heads]
        told = {i: (heads[i].turn, self.roles.read(ids)) for i, ids in enumerate(found) if ids}
        told |= self._forecasts(heads)
        while going := {i: link for i, link in told.items() if link[0] > places[i].turn}:
            for i, ids in zip(going, self._links(places, going), strict=True):
                found[i] = ids
                told[i] = (told[i][0] - 1, self.roles.read(ids or []))
                if ids is None:
                    del told[i]
        return found

    def prompt(self, place: TurnRef, forecast: str) -> list[int]:
        """The prompt for the text of a turn: what the world answered, and what then follows."""
        texts = {"response": place.response, "forecast": forecast}
        return self.roles.prompt(place, place.action, self.instruction, **texts)

    def _head(self, place: TurnRef, draw: random.Random) -> TurnRef:
        """The turn where the chain begins, which goes back to `place`. An episode that was cut off
        has no true end: its chains begin before the last turn."""
        turn, end = place.turn, len(place.episode.turns) - 1 - (place.episode.stop != "done")
        while turn < end and draw.random() < self.trace:
            turn += 1
        return TurnRef(place.episode, turn)

    def _forecasts(self, heads: list[TurnRef]) -> dict[int, tuple[int, str]]:
        """For each head that ends no episode the turn after it and a forecast of that, made for a
        fresh action of the policy; unreadable ones left out."""
        going = [i for i, head in enumerate(heads) if not head.last]
        nexts = [TurnRef(heads[i].episode, heads[i].turn + 1) for i in going]
        rows = self.roles.forecast(nexts, self.roles.act(nexts), 1, "target")
        return {
            i: (place.turn, texts[0])
            for i, place, texts in zip(going, nexts, rows, strict=True)
            if texts
        }

    def _links(self, places: list[TurnRef], going: dict[int, tuple[int, str]]) -> list[Ids]:
        """One backup each: of the turn before the one that is told of, from that telling."""
        prompts = [
            self.prompt(TurnRef(places[i].episode, turn - 1), text)
            for i, (turn, text) in going.items()
        ]
        return [self.readable(ids) for (ids,) in self.roles.write(prompts, 1, "target")]

    def readable(self, ids: list[int]) -> Ids:
        """The ids of a whole text that names an outcome, else None."""
        whole = self.roles.ended(ids) and outcome(self.roles.read(ids)) is not None
        return ids if whole else None
