"""What must be watched of a language critic, measured and not assumed.

Is it calibrated; do its forecasts tell the actions of one state apart, against probed outcomes; is
the refined action really better; how far has the policy drifted. Nothing here trains.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentrl_cli.algos.base import Context
from agentrl_cli.algos.nlac.refine import Refinement, Refiner
from agentrl_cli.algos.nlac.roles import CritiquedAction, Ids, Roles
from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.algos.turns import TurnRef, all_turns
from agentrl_cli.core.types import Episode, evenly_spaced
from agentrl_cli.models.policy import token_logprobs
from agentrl_cli.rollout.play import probe_starts

DIFFERENT = 0.2  # probed success rates closer than this do not count as different
CALIBRATION_STATES = 4  # for each state at which actions are probed
DRIFT_EPISODES = 64


@dataclass(frozen=True)
class ProbedAction:
    """An action with forecasts, and the share of its probes that succeeded."""

    action: CritiquedAction
    success: float


@dataclass(frozen=True, kw_only=True)
class Monitor:
    """Measures a critic at `states` states (0: never), at each of `actions` fresh actions that are
    forecast `forecasts` times and played out `probes` times."""

    roles: Roles
    refiner: Refiner
    states: int
    actions: int
    forecasts: int
    probes: int

    def measure(self, episodes: list[Episode]) -> dict[str, float]:
        """All measurements on states of these episodes, `nlac/…` and `policy/kl_from_start`."""
        rng, turns = random.Random(self.roles.seed("states")), all_turns(episodes)
        if not turns or not self.states:
            return {}
        sampled = rng.sample(turns, min(len(turns), CALIBRATION_STATES * self.states))
        measured = self.calibration(sampled) | self.discrimination(sampled[: self.states])
        measured |= drift(self.roles.context, episodes)
        start = self.calibration(sampled, "reference")
        return measured | {"nlac/brier_start": start["nlac/brier"]}

    def calibration(self, turns: list[TurnRef], model: str = "policy") -> dict[str, float]:
        """The Brier score of forecast success against how episodes ended (0.25: a coin's)."""
        actions = [turn.action_ids for turn in turns]
        forecasts = self.roles.forecast(turns, actions, self.forecasts, model)
        rows = zip(turns, actions, forecasts, strict=True)
        forecast = [CritiquedAction(*row) for row in rows if row[-1]]
        errors = [a.forecast_success - float(a.turn.episode.success) for a in forecast]
        return {
            "nlac/brier": mean([error**2 for error in errors]),
            "nlac/optimism": mean(errors),
            "nlac/valid_forecasts": sum(map(len, forecasts)) / (self.forecasts * len(turns)),
        }

    def discrimination(self, turns: list[TurnRef]) -> dict[str, float]:
        """Forecast values of several actions of each state against their probed values; and the
        refined action's probed gain over the fresh action that it was made from, of those that
        would be distilled and of all."""
        states = [turn for turn in turns for _ in range(self.actions)]
        actions = self.roles.act(states)
        forecasts = self.roles.forecast(states, actions, self.forecasts)
        fresh = list(map(CritiquedAction, states, actions, forecasts))
        refined = self.refiner.refine(turns, actions[:: self.actions])
        wanted = [(a.turn, a.action_ids) for a in fresh]
        wanted += [(refinement.turn, refinement.last.action_ids) for refinement in refined]
        success = self.probe(wanted)
        probed = [ProbedAction(*row) for row in zip(fresh, success, strict=False)]
        groups = [probed[i : i + self.actions] for i in range(0, len(probed), self.actions)]
        before = {group[0].action.turn: group[0].success for group in groups}
        after = zip(refined, success[len(fresh) :], strict=True)
        gains = [(value - before[r.turn], self.refiner.passes(r)) for r, value in after]
        within = [pair for group in groups for pair in ranked_pairs(group)]
        return {
            "nlac/auc_within": auc(within),
            "nlac/auc_pairs": float(len(within)),
            "nlac/auc_all": auc(ranked_pairs(probed)),
            "nlac/refined_gain": mean([gain for gain, passes in gains if passes]),
            "nlac/refined_gain_all": mean([gain for gain, _ in gains]),
        }

    def probe(self, wanted: list[tuple[TurnRef, Ids]]) -> list[float]:
        """The success rate of each action, played out by the current policy over the tasks that
        look alike up to its state. Equal actions of a turn share their probes' seeds."""
        context, starts = self.roles.context, []
        tasks = {t: context.indistinguishable_tasks(t.episode, t.turn) for t, _ in wanted}
        for turn, action in wanted:
            name = ("probe", turn.episode.id, turn.turn)
            seeds = [self.roles.seed(*name, k) for k in range(self.probes)]
            text = context.chat.decode(action)
            probes = probe_starts(turn.episode, turn.turn, text, action, seeds)
            of_tasks = zip(probes, itertools.cycle(tasks[turn]), strict=False)
            starts += [replace(start, task=task) for start, task in of_tasks]
        ends = [float(episode.success) for episode in context.probe(starts)]
        firsts = range(0, len(wanted) * self.probes, self.probes)
        return [mean(ends[first : first + self.probes]) for first in firsts]


def improvement(
    refinements: list[Refinement], lessons: int, turns: int, forecasts: int
) -> dict[str, float]:
    """How critic and refiner did in an update; `lessons` of its `turns` turns are distilled."""
    changed = [r.last.action_ids != r.first.action_ids for r in refinements]
    optimal = [r.first.is_optimal is True for r in refinements]
    kept = [not c for c, is_optimal in zip(changed, optimal, strict=True) if is_optimal]
    return {
        "nlac/unparsed": 1 - len(refinements) / turns,
        "nlac/valid_forecasts": mean([len(r.first.forecasts) / forecasts for r in refinements]),
        "nlac/optimal_share": mean(optimal),
        "nlac/changed_share": mean(changed),
        "nlac/kept_when_optimal": mean(kept),
        "nlac/distilled_share": lessons / turns,
        "nlac/forecast_success": mean([r.first.forecast_success for r in refinements]),
    }


def annotate(first: CritiquedAction, last: CritiquedAction, roles: Roles) -> None:
    """Write what the critic said of a played action into its turn's `info["critic"]`."""
    first.turn.episode.turns[first.turn.turn].info["critic"] = {
        "forecasts": first.forecasts,
        "others": first.alternative_forecasts,
        "critique": first.critique,
        "verdict": first.is_optimal,
        "refined": roles.decode(last.action_ids),
        "refined_critique": last.critique,
        "refined_verdict": last.is_optimal,
    }


def ranked_pairs(probed: Sequence[ProbedAction]) -> list[tuple[float, float]]:
    """(forecast success of the truly worse action, of the truly better one) of every two actions
    whose probed success differs."""
    pairs = []
    for a, b in itertools.combinations(probed, 2):
        if abs(a.success - b.success) >= DIFFERENT:
            worse, better = (a, b) if a.success < b.success else (b, a)
            pairs.append((worse.action.forecast_success, better.action.forecast_success))
    return pairs


def auc(pairs: Sequence[tuple[float, float]]) -> float:
    """The share of (worse, better) pairs that are ranked right; ties count half; 0.5 of nothing."""
    right = [1.0 if worse < better else 0.5 if worse == better else 0.0 for worse, better in pairs]
    return mean(right) if right else 0.5


def drift(context: Context, episodes: list[Episode]) -> dict[str, float]:
    """KL(policy || start) per sampled token by the k3 estimator (Schulman 2020)."""
    chosen = evenly_spaced(episodes, DRIFT_EPISODES)
    samples = [sample for episode in chosen for sample in episode_samples(episode)]
    now = token_logprobs(context.models.module("policy"), samples)
    start = token_logprobs(context.models.module("reference"), samples)
    gaps = [
        old - new
        for sample, new_row, old_row in zip(samples, now, start, strict=True)
        for new, old, trained in zip(new_row, old_row, sample.mask, strict=True)
        if trained
    ]
    return {"policy/kl_from_start": mean([math.exp(gap) - 1 - gap for gap in gaps])}


def mean(values: Sequence[float]) -> float:
    """The mean, 0 of nothing."""
    return sum(values) / len(values) if values else 0.0
