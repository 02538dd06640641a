"""Records to figures: groups of runs that differ by their seed, compared within their world. The
fields of `Figures` and `Comparison` are those of `agentrl report --json`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from statistics import fmean, median
from typing import Any

import numpy as np

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.statistics import Interval, pass_at_k, pass_hat_k
from agentrl_cli.report import seeds
from agentrl_cli.report.records import Record, group_settings, settings_label, world_settings
from agentrl_cli.report.seeds import Noise, Outcomes
from agentrl_cli.report.text import number_duplicates

SMOOTHED_UPDATES = 5  # whose mean success is compared with the threshold
PASS_K = (2, 4, 8)  # k of pass@k and pass^k, where tasks were played that often
PHASES = ("rollout", "algorithm", "train", "eval")
ALL_TASKS = ""  # the one task of a run whose outcomes are known by their mean alone
RunKey = tuple[int, int]  # a run's seed, and its number among the group's runs of that seed
OutcomesByRun = dict[RunKey, Outcomes]


@dataclass
class Group:
    """The runs of one configuration."""

    label: str
    records: list[Record]
    split: str | None = None  # whose success is compared

    @property
    def finished(self) -> dict[RunKey, Record]:
        """The runs with a final evaluation, of the compared split."""
        finished = [record for record in self.records if record.final_step is not None]
        if self.split is not None:
            finished = [r for r in finished if r.score(r.final_step or 0, self.split) is not None]
        copies: dict[int, count[int]] = defaultdict(count)  # the next number of each seed
        return {(record.seed, next(copies[record.seed])): record for record in finished}


@dataclass
class World:
    """Runs that may be compared: one environment, evaluated in one way."""

    label: str
    groups: list[Group]
    split: str


@dataclass(frozen=True)
class Efficiency:
    """What it took until training success reached a threshold: medians over the runs that did."""

    threshold: float
    reached: int
    runs: int
    episodes: float | None
    seconds: float | None


@dataclass(frozen=True)
class Figures:
    """The results of a group. Shares in 0 to 1; `scores` are all runs' finals by seed, never the
    best, `intervals` what each run measured; `failed` is the share of their last episodes that
    broke and count as lost; `passes` are pass@k and pass^k. `difference` and `improvement` are
    against the reference, None for itself (and for the latter with a single run on a side, which
    shows no spread)."""

    group: str
    seeds: list[int]
    scores: list[float]
    intervals: list[Interval | None]
    base: Interval | None
    final: Interval
    gain: Interval | None
    iqm: Interval
    difference: Interval | None
    improvement: Interval | None
    efficiency: Efficiency | None
    cost: dict[str, float]
    failed: float
    passes: dict[str, Interval]


@dataclass(frozen=True)
class Comparison:
    """A world's table."""

    world: str
    split: str
    reference: str | None
    noise: Noise | None
    rows: list[Figures]


def worlds(records: Sequence[Record]) -> list[World]:
    """Records sorted into worlds and groups, in the order of their first run."""
    return [_world(together) for together in _grouped(records, world_settings)]


def _world(together: Group) -> World:
    groups = _grouped(together.records, group_settings)
    labels = number_duplicates((group.label for group in groups), " ({})")
    splits = [split for record in together.records for split in record.splits]
    split = splits[0] if splits else "test"
    named = zip(labels, groups, strict=True)
    groups = [Group(label, group.records, split) for label, group in named]
    return World(together.label, groups, split)


def _grouped(
    records: Sequence[Record], settings_of: Callable[[Record], dict[str, Any]]
) -> list[Group]:
    """Records that have the same settings, labelled by what these differ in."""
    settings: dict[str, dict[str, Any]] = {}
    members: dict[str, list[Record]] = {}
    for record in records:
        own = settings_of(record)
        key = json.dumps(own, sort_keys=True, default=str)
        settings.setdefault(key, own)
        members.setdefault(key, []).append(record)
    others = list(settings.values())
    return [Group(settings_label(settings[key], others), members[key]) for key in settings]


def find_reference(worlds: Sequence[World], ref: str | None) -> str | None:
    """The label of the group that is, or whose run is, called `ref`. Raises UserError for none."""
    if ref is None:
        return None
    groups = [group for world in worlds for group in world.groups]
    labels = [group.label for group in groups]
    called = [g.label for g in groups if ref in (g.label, *(record.name for record in g.records))]
    close = [label for label in labels if label.startswith(ref)]
    if called or len(close) == 1:
        return (called or close)[0]
    raise UserError(f"--against '{ref}' is none of the compared; there is {', '.join(labels)}")


def compare(world: World, reference: str | None, threshold: float | None) -> Comparison:
    """A world's table; without a threshold it is halfway from the base to the best group's mean."""
    groups = [group for group in world.groups if group.finished]
    against = next((group for group in groups if group.label == reference), None)
    if threshold is None:
        threshold = _halfway(groups, world.split)
    rows = [_figures(group, against, world.split, threshold) for group in groups]
    noise = seeds.seed_noise([row.scores for row in rows])
    return Comparison(world.label, world.split, against and against.label, noise, rows)


def _figures(group: Group, against: Group | None, split: str, threshold: float | None) -> Figures:
    runs = list(group.finished.values())
    final, base = _final_outcomes(group, split), _base_outcomes(group, split)
    other = None if against is group else against
    scores, other_scores = _scores(group, split), _scores(other, split) if other else []
    has_spread = min(len(scores), len(other_scores)) > 1
    return Figures(
        group=group.label,
        seeds=[seed for seed, _ in group.finished],
        scores=scores,
        intervals=[run.interval(split) for run in runs],
        base=seeds.crossed_bootstrap(list(base.values())) if base else None,
        final=seeds.crossed_bootstrap(list(final.values())),
        gain=_paired_difference(final, base) if base else None,
        iqm=seeds.iqm(scores),
        difference=_paired_difference(final, _final_outcomes(other, split)) if other else None,
        improvement=seeds.probability_of_improvement(scores, other_scores) if has_spread else None,
        efficiency=efficiency(runs, threshold) if threshold is not None else None,
        cost=mean_cost(runs),
        failed=fmean(run.failed(split) for run in runs),
        passes=passes(list(final.values())),
    )


def _base_outcomes(group: Group, split: str) -> OutcomesByRun | None:
    """Every run's outcomes before training; None where they are not known of all."""
    by_run = {key: outcomes(run, 0, split) for key, run in group.finished.items()}
    known = {key: run for key, run in by_run.items() if run}
    return known if len(known) == len(by_run) else None


def _final_outcomes(group: Group, split: str) -> OutcomesByRun:
    """Every run's outcomes after training, by their means alone where one's tasks are not known."""
    finals = {key: outcomes(r, r.final_step or 0, split) for key, r in group.finished.items()}
    known = {key: run for key, run in finals.items() if run}
    if any(ALL_TASKS in run for run in known.values()):
        means = {key: np.mean(list(chain(*run.values()))) for key, run in known.items()}
        return {key: {ALL_TASKS: [float(mean)]} for key, mean in means.items()}
    return known


def outcomes(record: Record, step: int, split: str) -> Outcomes | None:
    """Each task's outcomes at a step where they are kept; else all tasks as one, by their mean."""
    by_task = record.outcomes(step) if record.splits[:1] == [split] else None
    score = record.score(step, split)
    return by_task or ({ALL_TASKS: [score]} if score is not None else None)


def _scores(group: Group, split: str) -> list[float]:
    scores = [record.score(record.final_step or 0, split) for record in group.finished.values()]
    return [score for score in scores if score is not None]


def _paired_difference(ours: OutcomesByRun, theirs: OutcomesByRun) -> Interval | None:
    try:
        return seeds.paired_difference(ours, theirs)
    except ValueError:  # they played no common task
        return None


def _halfway(groups: Sequence[Group], split: str) -> float | None:
    """Between the lowest base and the highest mean of a group."""
    bases = [run.score(0, split) for group in groups for run in group.finished.values()]
    known = [score for score in bases if score is not None]
    return (min(known) + max(fmean(_scores(g, split)) for g in groups)) / 2 if known else None


def passes(runs: Sequence[Outcomes]) -> dict[str, Interval]:
    """pass@k (one of k episodes of a task succeeds) and pass^k (all k do), each estimated without
    bias for every task of every run; runs and tasks are resampled."""
    if any(ALL_TASKS in run for run in runs):
        return {}
    fewest = min((len(values) for run in runs for values in run.values()), default=0)
    intervals: dict[str, Interval] = {}
    for k in (k for k in PASS_K if k <= fewest):
        some = [{t: [pass_at_k(int(sum(r)), len(r), k)] for t, r in run.items()} for run in runs]
        every = [{t: [pass_hat_k([v > 0 for v in r], k)] for t, r in run.items()} for run in runs]
        intervals[f"pass@{k}"] = seeds.crossed_bootstrap(some)
        intervals[f"pass^{k}"] = seeds.crossed_bootstrap(every)
    return intervals


def efficiency(records: Sequence[Record], threshold: float) -> Efficiency | None:
    """Episodes and seconds until the mean training success of five updates reached the threshold;
    None where no run played."""
    played = [record for record in records if "episodes/success" in record.columns]
    if not played:
        return None
    episodes, seconds = (_until(played, axis, threshold) for axis in ("episodes", "seconds"))
    medians = [median(points) if points else None for points in (episodes, seconds)]
    return Efficiency(threshold, len(episodes), len(played), *medians)


def _until(records: Sequence[Record], axis: str, threshold: float) -> list[float]:
    """Where on an axis each run reached the threshold, of those that did."""
    points: list[float | None] = []
    for record in records:
        success = seeds.moving_average(list(record.column("episodes/success")), SMOOTHED_UPDATES)
        xs, first = list(map(float, record.axis(axis))), SMOOTHED_UPDATES - 1
        points.append(seeds.first_reached(xs[first:], success[first:], threshold))
    return [point for point in points if point is not None]


def mean_cost(records: Sequence[Record]) -> dict[str, float]:
    """Means over runs: episodes and tokens played, tokens read in training, prompts
    among them, seconds of each phase."""
    costs = [_cost(record) for record in records]
    return {name: fmean(cost[name] for cost in costs) for name in costs[0]}


def _cost(record: Record) -> dict[str, float]:
    read = [k for k in record.columns if k.endswith("/tokens") and k != "episodes/tokens"]
    seconds = {name: float(record.column(f"time/{name}").sum()) for name in PHASES[:-1]}
    return {
        "episodes": float(record.column("episodes/count").sum()),
        "tokens_played": float(record.column("episodes/tokens").sum()),
        "tokens_read": float(sum(record.column(key).sum() for key in read)),
        **{f"seconds_{name}": value for name, value in seconds.items()},
        "seconds_eval": sum(row.get("time/eval", 0.0) for row in record.evaluations.values()),
        "seconds": sum(seconds.values()),
    }
