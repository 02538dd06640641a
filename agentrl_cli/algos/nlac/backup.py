"""The language Bellman backup: the targets from which the successor role learns.

NLAC's single backup is y ~ Backup(s, a, s', d') with d' ~ M(s', a') and a' ~ policy(s') (arXiv
2512.04601). `trace` chains backups over the turns that were played, as the λ of TD(λ) does (Sutton
1988; off-policy without correction, as in the Q(λ) of Peng and Williams 1996), so that the true end
of an episode reaches its early turns in one update. Every text but that of a true end is sampled.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from agentrl_cli.algos.nlac.roles import Ids, Roles
from agentrl_cli.algos.samples import TurnRef

Target = Ids | None


@dataclass
class Chain:
    """Backups that lead from turn `start` of an episode back to `goal`. `text` forecasts the
    episode from turn `at` on; `target` is the text of `goal` once the chain has come there."""

    goal: TurnRef
    start: TurnRef
    at: int = 0
    text: str = ""
    target: Target = None


@dataclass(frozen=True)
class LanguageBackup:
    """`instruction` asks for a backup; each further turn joins a chain with probability `trace`:
    0 is the paper's single backup, 1 goes to the end of the episode."""

    roles: Roles
    instruction: str
    trace: float

    def targets(self, turns: list[TurnRef], true_end: Callable[[TurnRef], Target]) -> list[Target]:
        """A target for each turn, by the target model; `true_end` gives that of a last turn. None
        where a text of the chain names no outcome or was cut off."""
        draw = random.Random(self.roles.seed("trace"))
        chains = [Chain(turn, start=self._start(turn, draw)) for turn in turns]
        open_chains = self._read_true_ends(chains, true_end) + self._forecast_next_turns(chains)
        while open_chains := [chain for chain in open_chains if chain.at > chain.goal.turn]:
            self._back_up(open_chains)
            open_chains = [chain for chain in open_chains if chain.target is not None]
        return [chain.target for chain in chains]

    def _start(self, turn: TurnRef, draw: random.Random) -> TurnRef:
        """The turn at which the chain back to `turn` begins. An episode that was cut off has no
        true end: its chains begin before the last turn."""
        start, last = turn.turn, len(turn.episode.turns) - 1 - (turn.episode.stop != "done")
        while start < last and draw.random() < self.trace:
            start += 1
        return TurnRef(turn.episode, start)

    def _read_true_ends(
        self, chains: list[Chain], true_end: Callable[[TurnRef], Target]
    ) -> list[Chain]:
        """The chains that begin at a true end, which is told as a forecast of that turn."""
        for chain in chains:
            if chain.start.is_last and (end := true_end(chain.start)):
                chain.target, chain.at, chain.text = end, chain.start.turn, self.roles.decode(end)
        return [chain for chain in chains if chain.target]

    def _forecast_next_turns(self, chains: list[Chain]) -> list[Chain]:
        """The chains that begin before the end of the episode, at a forecast of the next turn;
        those whose forecast names no outcome are left out."""
        chains = [chain for chain in chains if not chain.start.is_last]
        next_turns = [chain.start.next for chain in chains]
        actions = self.roles.act(next_turns)
        forecasts = self.roles.forecast(next_turns, actions, 1, "target")
        for chain, turn, found in zip(chains, next_turns, forecasts, strict=True):
            chain.at, chain.text = turn.turn, found[0] if found else ""
        return [chain for chain in chains if chain.text]

    def _back_up(self, chains: list[Chain]) -> None:
        """y ~ Backup(s, a, s', d'): one turn back, each from the text of the turn after it."""
        prompts = [self.prompt(TurnRef(c.goal.episode, c.at - 1), c.text) for c in chains]
        written = self.roles.write(prompts, 1, "target", role="backup")
        for chain, (ids,) in zip(chains, written, strict=True):
            chain.target = self.if_readable(ids)
            chain.at, chain.text = chain.at - 1, self.roles.decode(chain.target or [])

    def prompt(self, turn: TurnRef, forecast: str) -> Ids:
        """The prompt of a backup: what the world answered, and what is forecast from there."""
        texts = {"response": turn.response, "forecast": forecast}
        return self.roles.prompt(turn, turn.action_ids, self.instruction, **texts)

    def if_readable(self, ids: Ids) -> Target:
        """The ids of a complete text that names an outcome, else None."""
        names_outcome = self.roles.reading.outcome(self.roles.decode(ids)) is not None
        return ids if self.roles.is_complete(ids) and names_outcome else None
