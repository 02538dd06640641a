"""The improvement step: which actions of a state are learnt from.

Candidates are fresh actions of the policy and, unless critiques alone decide, the refined one. By
`improvement`:
- `refinement`: the refined action of the first draw (arXiv 2512.04601), if the gate lets it pass;
- `critique`: the draw whose critique is best (the same paper's NLQL);
- `choice`: the likeliest action of the improved policy π'(a|s) ∝ π(a|s) exp(V(a)/τ), which solves
  KL-regularised improvement (Peters et al. 2010; Abdolmaleki et al. 2018, MPO, eq. 4), π(a|s)
  estimated by how often the action was drawn and V by the success that its forecasts foretell, less
  1 where its critique calls it not optimal: forecasts tell ends, a critique names faults;
- `contrast`: every draw, by its value less the state's. No distillation but a policy gradient over
  turns (Williams 1992) with verbal values.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal

from agentrl_cli.algos.nlac.reading import Reading
from agentrl_cli.algos.nlac.refine import Refinement, Refiner
from agentrl_cli.algos.nlac.roles import CritiquedAction, Ids, Roles, mean_success
from agentrl_cli.algos.samples import TurnRef

Improvement = Literal["choice", "contrast", "critique", "refinement"]
Control = Literal[
    "none",
    "shuffled_outcomes",
    "shuffled_critiques",
    "empty_critiques",
    "frozen_critic",
    "majority",
]
NEVER_DRAWN = 0.5  # draws that a refined action counts for which the policy never drew


@dataclass(frozen=True)
class Lesson:
    """An action to learn in the state of a turn; with a weight below 0 it becomes less likely."""

    turn: TurnRef
    action_ids: Ids
    weight: float = 1.0


@dataclass
class Candidate:
    """An action, how many of the draws it is, its forecasts, and its critique once it was asked
    for; `reading` says how these texts are read."""

    action_ids: Ids
    draws: int
    forecasts: list[str] = field(default_factory=list)
    critique: str | None = None
    reading: Reading = field(kw_only=True)

    @property
    def is_optimal(self) -> bool | None:
        """The critique's verdict; None where it has none."""
        return self.reading.verdict(self.critique or "")

    @property
    def value(self) -> float:
        """The mean success that the forecasts foretell; 0.5 without forecasts."""
        return mean_success(self.forecasts, self.reading)

    @property
    def judged_value(self) -> float:
        """The value, less 1 where the critique calls the action not optimal."""
        return self.value - (self.is_optimal is False)


@dataclass
class Candidates:
    """The different actions of a turn's state: the first draw, the other draws, and the refined
    action where it is none of them. `refinement` is that of the first draw, None where there is
    none or it could not be read."""

    turn: TurnRef
    actions: list[Candidate]
    refinement: Refinement | None = None

    @property
    def first(self) -> Candidate:
        """The first draw."""
        return self.actions[0]

    @property
    def drawn(self) -> list[Candidate]:
        """Those that the policy drew."""
        return [action for action in self.actions if action.draws]

    @property
    def draws(self) -> int:
        """How many actions were drawn, equal ones counted as often as they came."""
        return sum(action.draws for action in self.actions)

    @property
    def state_value(self) -> float:
        """V(s): the mean value of the draws."""
        return sum(action.draws * action.value for action in self.drawn) / self.draws


@dataclass(frozen=True, kw_only=True)
class Chooser:
    """Draws `candidates` fresh actions of a state, forecasts each `forecasts` times, and says what
    is learnt. With `compare` a critique also reads forecasts of the other draws. `control` spoils
    the critic's words on purpose; `majority` asks for none and takes the most frequent draw."""

    roles: Roles
    refiner: Refiner
    improvement: Improvement
    candidates: int
    forecasts: int
    temperature: float
    compare: bool
    control: Control

    def draw(self, turns: list[TurnRef], first: list[Ids] | None = None) -> list[Candidates]:
        """The candidates of each turn as the critic sees them; the first of them as given, or drawn
        like the others."""
        drawn = self._draw_actions(turns, first)
        counts = [Counter(map(tuple, row)) for row in drawn]
        reading = self.roles.reading
        groups = [
            Candidates(turn, [Candidate(list(ids), n, reading=reading) for ids, n in row.items()])
            for turn, row in zip(turns, counts, strict=True)
        ]
        if self.control != "majority":
            self._add_forecasts([(g.turn, action) for g in groups for action in g.actions])
            if self.improvement != "critique":
                self._add_refinements(groups)
            if self.improvement in ("choice", "critique"):
                self._add_critiques(groups)
        return groups

    def lessons(self, group: Candidates) -> list[Lesson]:
        """What is learnt from a turn's candidates."""
        if self.improvement == "contrast":
            return _contrast(group)
        chosen = self.choose(group)
        if chosen is None or not self.roles.is_complete(chosen.action_ids):
            return []
        if self.improvement == "choice":
            return _less_draws(group, chosen)
        return [Lesson(group.turn, chosen.action_ids)]

    def best_action(self, group: Candidates) -> Ids | None:
        """The action that is learnt most of a turn's candidates, if any."""
        lessons = [lesson for lesson in self.lessons(group) if lesson.weight > 0]
        return max(lessons, key=lambda lesson: lesson.weight).action_ids if lessons else None

    def choose(self, group: Candidates) -> Candidate | None:
        """The action that is distilled, if any."""
        if self.improvement == "refinement":
            found = group.refinement
            return None if found is None or not self.refiner.passes(found) else _last(group, found)
        if self.improvement == "critique":
            return _best_by_critique(group.actions, self.refiner.gate)
        scores = [self._log_improved(action) for action in group.actions]
        best = max(scores)
        return group.actions[scores.index(best)] if scores.count(best) == 1 else None

    def _log_improved(self, action: Candidate) -> float:
        """log π'(a|s) up to a constant of the state."""
        return math.log(action.draws or NEVER_DRAWN) + action.judged_value / self.temperature

    def _draw_actions(self, turns: list[TurnRef], first: list[Ids] | None) -> list[list[Ids]]:
        """[turns, candidates]: fresh actions, the first as given if it is."""
        fresh = self.candidates - (first is not None)
        ids = self.roles.act([turn for turn in turns for _ in range(fresh)])
        rows = [ids[i * fresh : (i + 1) * fresh] for i in range(len(turns))]
        given = [[action] for action in first] if first is not None else [[] for _ in turns]
        return [a + b for a, b in zip(given, rows, strict=True)]

    def _add_forecasts(self, rows: Sequence[tuple[TurnRef, Candidate]]) -> None:
        turns, actions = [turn for turn, _ in rows], [action.action_ids for _, action in rows]
        found = self.roles.forecast(turns, actions, self.forecasts)
        if self.control == "shuffled_critiques":
            random.Random(self.roles.seed("values")).shuffle(found)
        for (_, action), forecasts in zip(rows, found, strict=True):
            action.forecasts = [] if self.control == "empty_critiques" else forecasts

    def _add_critiques(self, groups: list[Candidates]) -> None:
        """Criticise what is still to be judged, until nothing is."""
        while rows := [(g, action) for g in groups for action in self._to_judge(g)]:
            critiqued = self.refiner.criticise([self.as_read(*row) for row in rows])
            for (_, action), critique in zip(rows, critiqued, strict=True):
                action.critique = critique.critique

    def _to_judge(self, group: Candidates) -> list[Candidate]:
        """The actions whose critique still counts: where critiques decide, all; for a choice among
        several those in the lead, since a critique only ever takes from an action's chances."""
        waiting = [action for action in group.actions if action.critique is None]
        if self.improvement == "critique":
            return waiting
        if len(group.actions) == 1:
            return []
        most = max(map(self._log_improved, group.actions))
        return [action for action in waiting if self._log_improved(action) == most]

    def _add_refinements(self, groups: list[Candidates]) -> None:
        """Refine the first draw of each group; what is new is forecast, too, where values count."""
        first = [self.as_read(group, group.first) for group in groups]
        refinements = {r.turn: r for r in self.refiner.refine(first)}
        new: list[tuple[TurnRef, Candidate]] = []
        for group in groups:
            group.refinement = refinements.get(group.turn)
            if group.refinement is None:
                continue
            group.first.critique = group.refinement.first.critique
            known = [action.action_ids for action in group.actions]
            if group.refinement.last.action_ids not in known:
                last = group.refinement.last
                group.actions.append(Candidate(last.action_ids, 0, reading=last.reading))
                new.append((group.turn, group.actions[-1]))
        if self.improvement != "refinement":
            self._add_forecasts(new)

    def as_read(self, group: Candidates, action: Candidate) -> CritiquedAction:
        """A candidate as the evaluator reads it: as many of its forecasts as a critique reads and,
        with `compare`, of the other draws', one of each in turn; of its own where there is none."""
        count = self.refiner.forecasts
        rows = [a.forecasts for a in group.drawn if a is not action] or [action.forecasts]
        others = [f for column in zip_longest(*rows) for f in column if f is not None]
        mine, others = action.forecasts[:count], others[: count if self.compare else 0]
        texts = (mine, others, action.critique or "")
        return CritiquedAction(group.turn, action.action_ids, *texts, reading=action.reading)


def _last(group: Candidates, refinement: Refinement) -> Candidate:
    """The refined action among the candidates."""
    return next(a for a in group.actions if a.action_ids == refinement.last.action_ids)


def _best_by_critique(actions: list[Candidate], gate: bool) -> Candidate | None:
    """Called optimal first, then by value, the first of equals; None where no critique can be read
    or, under the gate, none calls its action optimal."""
    optimal = [action for action in actions if action.is_optimal]
    readable = [action for action in actions if action.is_optimal is not None]
    return max(optimal or (() if gate else readable), key=lambda a: a.value, default=None)


def _less_draws(group: Candidates, chosen: Candidate) -> list[Lesson]:
    """The chosen action, less what was drawn. The score of actions that the policy draws has a mean
    of zero, so taking it off changes what is learnt by its noise alone. A chosen action that was
    always drawn teaches nothing."""
    weights = [(a, float(a is chosen) - a.draws / group.draws) for a in group.actions]
    return [Lesson(group.turn, a.action_ids, weight) for a, weight in weights if weight]


def _contrast(group: Candidates) -> list[Lesson]:
    """Every draw by how often it came times its value less the state's; a refined action only where
    it is better."""
    gaps = [(a, (a.draws or 1) * (a.value - group.state_value)) for a in group.actions]
    kept = [(a, gap) for a, gap in gaps if gap and (a.draws or gap > 0)]
    return [Lesson(group.turn, a.action_ids, gap) for a, gap in kept]
