"""What must be watched of a language critic, measured and not assumed.

Is it calibrated; do its forecasts tell the actions of one state apart, against probed outcomes; is
what is learnt really better than what is played, and if not, which part is at fault (the ledger);
how far has the policy drifted. Nothing here trains.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from agentrl_cli.algos.base import Context
from agentrl_cli.algos.nlac.choice import Candidate, Candidates, Chooser, Lesson
from agentrl_cli.algos.nlac.ledger import ProbedCandidates, differ, ledger
from agentrl_cli.algos.nlac.probe import CannotReplay, probe
from agentrl_cli.algos.nlac.roles import CritiquedAction, Roles
from agentrl_cli.algos.samples import TurnRef, all_turns, episode_samples
from agentrl_cli.core.statistics import mean
from agentrl_cli.core.types import Episode, evenly_spaced
from agentrl_cli.models.forward import token_logprobs

CALIBRATION_STATES = 4  # for each state at which actions are probed
DRIFT_EPISODES = 64


@dataclass(frozen=True, kw_only=True)
class Monitor:
    """Measures a critic at `states` states (0: never): the candidates that `chooser` draws at each
    are played out `probes` times."""

    chooser: Chooser
    states: int
    probes: int

    @property
    def roles(self) -> Roles:
        """Who forecasts and judges."""
        return self.chooser.roles

    def measure(self, episodes: list[Episode]) -> dict[str, float]:
        """All measurements on states of these episodes: `nlac/…`, `ledger/…` and
        `policy/kl_from_start`; without what needs probes where the world cannot be replayed."""
        rng, turns = random.Random(self.roles.seed("states")), all_turns(episodes)
        if not turns or not self.states:
            return {}
        sampled = rng.sample(turns, min(len(turns), CALIBRATION_STATES * self.states))
        measured = self.calibration(sampled)
        with suppress(CannotReplay):
            measured |= self.discrimination(sampled[: self.states])
        measured |= drift(self.roles.context, episodes)
        start = self.calibration(sampled, "reference")
        if "nlac/brier" in start:
            measured["nlac/brier_start"] = start["nlac/brier"]
        return measured

    def calibration(self, turns: list[TurnRef], model: str | None = None) -> dict[str, float]:
        """The Brier score of forecast success against how episodes ended (0.25: a coin's) and its
        optimism. An episode that broke or was cut off says nothing; without a forecast that could
        be read of one that ended, both are left out."""
        actions, count = [turn.action_ids for turn in turns], self.chooser.forecasts
        forecasts = self.roles.forecast(turns, actions, count, model)
        rows = zip(turns, actions, forecasts, strict=True)
        reading = self.roles.reading
        forecast = [CritiquedAction(*row, reading=reading) for row in rows if row[-1]]
        ended = [a for a in forecast if a.turn.episode.stop == "done"]
        errors = [a.forecast_success - float(a.turn.episode.success) for a in ended]
        score = {"nlac/brier": mean([e**2 for e in errors]), "nlac/optimism": mean(errors)}
        valid = sum(map(len, forecasts)) / (count * len(turns))
        return {**(score if errors else {}), "nlac/valid_forecasts": valid}

    def discrimination(self, turns: list[TurnRef]) -> dict[str, float]:
        """Forecast values of several actions of each state against their probed values; the probed
        gain of the refined action over the one that it was made from; the ledger."""
        groups = self.probed(turns)
        within = [pair for group in groups for pair in ranked_pairs(group.drawn, self.probes)]
        drawn = [action for group in groups for action in group.drawn]
        refined = [g for g in groups if g.refined is not None]
        return {
            "nlac/auc_within": auc(within),
            "nlac/auc_pairs": float(len(within)),
            "nlac/auc_all": auc(ranked_pairs(drawn, self.probes)),
            "nlac/refined_gain": mean([g.refined_gain for g in refined if self._is_taught(g)]),
            "nlac/refined_gain_all": mean([g.refined_gain for g in refined]),
            **ledger(groups, self.chooser, self.probes),
        }

    def _is_taught(self, group: ProbedCandidates) -> bool:
        """Whether the refined action is what is learnt."""
        refinement = group.candidates.refinement
        best = self.chooser.best_action(group.candidates)
        return refinement is not None and refinement.last.action_ids == best

    def probed(self, turns: list[TurnRef]) -> list[ProbedCandidates]:
        """The candidates of each turn and the share of their probes that succeeded; a turn of which
        one of them could not be measured is left out."""
        groups = self.chooser.draw(turns)
        wanted = [(g.turn, action.action_ids) for g in groups for action in g.actions]
        found = iter(probe(self.roles, wanted, self.probes))
        rows = [(group, [next(found) for _ in group.actions]) for group in groups]
        measured = [(g, [rate for rate in row if rate is not None]) for g, row in rows]
        return [ProbedCandidates(g, row) for g, row in measured if len(row) == len(g.actions)]


def improvement(
    groups: list[Candidates], lessons: list[Lesson], forecasts: int
) -> dict[str, float]:
    """How critic and refiner did in an update of these turns and lessons."""
    refinements = [group.refinement for group in groups if group.refinement]
    read = [g for g in groups if g.refinement or g.first.is_optimal is not None]
    changed = [r.last.action_ids != r.first.action_ids for r in refinements]
    pairs = zip(changed, refinements, strict=True)
    kept = [not is_changed for is_changed, r in pairs if r.first.is_optimal]
    taught = {lesson.turn for lesson in lessons if lesson.weight > 0}
    return {
        "nlac/unparsed": 1 - len(read) / len(groups),
        "nlac/valid_forecasts": mean([len(g.first.forecasts) / forecasts for g in groups]),
        "nlac/optimal_share": mean([group.first.is_optimal is True for group in read]),
        "nlac/changed_share": mean(changed),
        "nlac/kept_when_optimal": mean(kept),
        "nlac/distilled_share": len(taught) / len(groups),
        "nlac/forecast_success": mean([group.first.value for group in groups]),
    }


def annotate(group: Candidates, chooser: Chooser) -> None:
    """Write what the critic said of a played action into its turn's `info["critic"]`."""
    refinement = group.refinement
    first = refinement.first if refinement else chooser.as_read(group, group.first)
    last = (
        refinement.last
        if refinement
        else CritiquedAction(group.turn, [], reading=chooser.roles.reading)
    )
    group.turn.episode.turns[group.turn.turn].info["critic"] = {
        "forecasts": first.forecasts,
        "others": first.alternative_forecasts,
        "critique": first.critique,
        "verdict": first.is_optimal,
        "refined": chooser.roles.decode(last.action_ids),
        "refined_critique": last.critique,
        "refined_verdict": last.is_optimal,
    }


def ranked_pairs(
    drawn: Sequence[tuple[Candidate, float]], probes: int
) -> list[tuple[float, float]]:
    """(forecast value of the truly worse action, of the truly better one) of every two draws whose
    probed success differs by two standard errors."""
    pairs = []
    for (a, p), (b, q) in itertools.combinations(drawn, 2):
        if differ(p, q, probes):
            pairs.append((a.value, b.value) if p < q else (b.value, a.value))
    return pairs


def auc(pairs: Sequence[tuple[float, float]]) -> float:
    """The share of (worse, better) pairs that are ranked right; ties count half; 0.5 of nothing."""
    right = [1.0 if worse < better else 0.5 if worse == better else 0.0 for worse, better in pairs]
    return mean(right) if right else 0.5


def drift(context: Context, episodes: list[Episode]) -> dict[str, float]:
    """KL(policy || start) per sampled token by the k3 estimator (Schulman 2020)."""
    chosen = evenly_spaced(episodes, DRIFT_EPISODES)
    samples = [sample for episode in chosen for sample in episode_samples(episode)]
    now = token_logprobs(context.models.reader("policy"), samples)
    start = token_logprobs(context.models.reader("reference"), samples)
    gaps = [
        old - new
        for sample, new_row, old_row in zip(samples, now, start, strict=True)
        for new, old, trained in zip(new_row, old_row, sample.mask, strict=True)
        if trained
    ]
    return {"policy/kl_from_start": mean([math.exp(gap) - 1 - gap for gap in gaps])}
