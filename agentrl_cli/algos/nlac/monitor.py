"""What must be watched of a language critic, measured and not assumed.

Is it calibrated; do its forecasts tell the actions of one state apart, against probed outcomes; is
the refined action really better; how far has the policy drifted. Nothing here trains.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agentrl_cli.algos.nlac.roles import CritiquedAction, Roles, TurnRef
from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.core.types import Episode, evenly_spaced
from agentrl_cli.models.policy import token_logprobs
from agentrl_cli.rollout.play import probe_starts

if TYPE_CHECKING:
    from agentrl_cli.algos.nlac.algorithm import NLAC

FORECASTS = 16  # of an action, when its value is measured
DIFFERENT = 0.2  # probed success rates closer than this do not count as different
SCORED = 64  # episodes on which drift is measured


def mean(values: Sequence[float]) -> float:
    """The mean, 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def improvement(
    chains: list[list[CritiquedAction]], lessons: int, places: int, forecasts: int
) -> dict[str, float]:
    """How the critic judged and the refiner answered in one update."""
    changed = [chain[-1].action != chain[0].action for chain in chains]
    approved = [chain[0].optimal is True for chain in chains]
    kept = [not c for c, yes in zip(changed, approved, strict=True) if yes]
    read = [len(chain[0].forecasts) / forecasts for chain in chains]
    return {
        "nlac/unparsed": 1 - len(chains) / places,
        "nlac/valid_forecasts": mean(read),
        "nlac/optimal_share": mean([float(yes) for yes in approved]),
        "nlac/changed_share": mean([float(c) for c in changed]),
        "nlac/kept_when_optimal": mean([float(k) for k in kept]),
        "nlac/distilled_share": lessons / places,
        "nlac/forecast_success": mean([chain[0].value for chain in chains]),
    }


def note(chain: list[CritiquedAction], roles: Roles) -> None:
    """Write what the critic said of a played action into its turn."""
    first, last = chain[0], chain[-1]
    first.place.episode.turns[first.place.turn].info["critic"] = {
        "forecasts": first.forecasts,
        "others": first.others,
        "critique": first.critique,
        "verdict": first.optimal,
        "refined": roles.read(last.action),
        "refined_critique": last.critique,
        "refined_verdict": last.optimal,
    }


def critic(algo: NLAC, episodes: list[Episode]) -> dict[str, float]:
    """All measurements on states of these episodes, `nlac/…` and `policy/kl_from_start`."""
    rng = random.Random(algo.roles.seed("states"))
    turns = [TurnRef(episode, t) for episode in episodes for t in range(len(episode.turns))]
    count = algo.advanced.monitored_states
    if not turns or not count:
        return {}
    places = rng.sample(turns, min(len(turns), 4 * count))
    measured = (
        calibration(algo.roles, places)
        | discrimination(algo, places[:count])
        | drift(algo, episodes)
    )
    start = calibration(algo.roles, places, "reference")
    return measured | {"nlac/brier_start": start["nlac/brier"]}


def calibration(roles: Roles, places: list[TurnRef], model: str = "policy") -> dict[str, float]:
    """The Brier score of forecast success against how episodes really ended (0.25: a coin's)."""
    forecasts = roles.forecast(places, [place.action for place in places], FORECASTS, model)
    judged = [
        CritiquedAction(p, p.action, texts) for p, texts in zip(places, forecasts, strict=True)
    ]
    told = [one for one in judged if one.forecasts]
    gaps = [one.value - float(one.place.episode.success) for one in told]
    parsed = sum(map(len, forecasts)) / (FORECASTS * len(places))
    return {
        "nlac/brier": mean([gap**2 for gap in gaps]),
        "nlac/optimism": mean(gaps),
        "nlac/valid_forecasts": parsed,
    }


def discrimination(algo: NLAC, places: list[TurnRef]) -> dict[str, float]:
    """Forecast values of several actions of each state against their probed values; and the refined
    action's probed gain over the fresh action that it was made from."""
    roles, probed_each = algo.roles, algo.advanced.monitored_actions
    rows = [place for place in places for _ in range(probed_each)]
    actions = roles.act(rows)
    forecasts = roles.forecast(rows, actions, FORECASTS)
    judged = [CritiquedAction(*row) for row in zip(rows, actions, forecasts, strict=True)]
    chains = algo.refine.chains(
        places, [judged[i * probed_each].action for i in range(len(places))]
    )
    ends = [(chain[0].place, chain[-1].action) for chain in chains]
    wanted = [(one.place, one.action) for one in judged] + ends
    truths = probe(algo, wanted)
    measured = list(zip(judged, truths, strict=False))
    groups = [measured[i * probed_each : (i + 1) * probed_each] for i in range(len(places))]
    first = {id(places[i]): group[0][1] for i, group in enumerate(groups)}
    gains = [q - first[id(p)] for (p, _), q in zip(ends, truths[len(judged) :], strict=True)]
    within = [pair for group in groups for pair in pairs(group)]
    return {
        "nlac/auc_within": auc(within),
        "nlac/auc_pairs": float(len(within)),
        "nlac/auc_all": auc(pairs(measured)),
        "nlac/refined_gain": mean(gains),
    }


def pairs(measured: Sequence[tuple[CritiquedAction, float]]) -> list[tuple[float, float]]:
    """(forecast value of the truly worse action, of the truly better one) of pairs that differ."""
    found = []
    for (one, truth), (other, other_truth) in itertools.combinations(measured, 2):
        if abs(truth - other_truth) >= DIFFERENT:
            worse, better = sorted([(truth, one.value), (other_truth, other.value)])
            found.append((worse[1], better[1]))
    return found


def auc(ranked: Sequence[tuple[float, float]]) -> float:
    """The share of (worse, better) pairs that are ranked right; ties count half; 0.5 of nothing."""
    right = [1.0 if low < high else 0.5 if low == high else 0.0 for low, high in ranked]
    return mean(right) if right else 0.5


def probe(algo: NLAC, wanted: list[tuple[TurnRef, list[int]]]) -> list[float]:
    """The success rate of each action, played out by the current policy `probes` times over the
    tasks that look alike up to this state. Equal actions of a place share their probes' seeds."""
    context, count, starts = algo.context, algo.advanced.probes, []
    tasks = {
        place: context.indistinguishable_tasks(place.episode, place.turn) for place, _ in wanted
    }
    for place, action in wanted:
        seeds = [algo.roles.seed("probe", place.episode.id, place.turn, k) for k in range(count)]
        text = context.chat.decode(action)
        row = probe_starts(place.episode, place.turn, text, action, seeds)
        aims = itertools.cycle(tasks[place])
        starts += [replace(start, task=task) for start, task in zip(row, aims, strict=False)]
    ends = [float(episode.success) for episode in context.probe(starts)]
    return [mean(ends[i * count : (i + 1) * count]) for i in range(len(wanted))]


def drift(algo: NLAC, episodes: list[Episode]) -> dict[str, float]:
    """KL(policy || start) per sampled token by the k3 estimator (Schulman 2020)."""
    samples = [
        s for e in evenly_spaced(episodes, SCORED) for s in episode_samples(e, lambda i, turn: {})
    ]
    models = algo.context.models
    now, then = (token_logprobs(models.module(name), samples) for name in ("policy", "reference"))
    gaps = [
        b - a
        for sample, row, old in zip(samples, now, then, strict=True)
        for a, b, m in zip(row, old, sample.mask, strict=True)
        if m
    ]
    return {"policy/kl_from_start": mean([math.exp(gap) - 1 - gap for gap in gaps])}
