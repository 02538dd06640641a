"""Records to figures: groups of runs that differ by their seed, compared within their world."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.statistics import Interval, pass_at_k, pass_hat_k
from agentrl_cli.report import seeds
from agentrl_cli.report.records import Record, group_of, label, world_of
from agentrl_cli.report.seeds import Noise, Outcomes

SMOOTH = 5  # updates whose mean success is held against the threshold
TRIES = (2, 4, 8)  # k of pass@k and pass^k, where tasks were played that often
PHASES = ("rollout", "algorithm", "train", "eval")
Key = tuple[int, int]  # a run's seed, and its number among those of that seed


@dataclass
class Group:
    """The runs of one configuration."""

    label: str
    records: list[Record]

    @property
    def finished(self) -> dict[Key, Record]:
        """The runs with a final evaluation."""
        found: dict[Key, Record] = {}
        for record in self.records:
            if record.final_step is not None:
                copies = sum(seed == record.seed for seed, _ in found)
                found[record.seed, copies] = record
        return found


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
    """What is said of a group. Shares in 0 to 1; `scores` are all runs' finals by seed, never the
    best, `intervals` what each run measured; `passes` are pass@k and pass^k. `difference` and
    `improvement` are against the reference, None for itself (and for the latter with a single run
    on a side, which shows no spread)."""

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
    passes: dict[str, Interval]


@dataclass(frozen=True)
class Comparison:
    """A world's table."""

    world: str
    split: str
    reference: str | None
    noise: Noise | None
    rows: list[Figures]

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def worlds(records: Sequence[Record]) -> list[World]:
    """Records sorted into worlds and groups, in the order of their first run."""
    found: list[World] = []
    parts = _partition(records, world_of)
    for own, members in parts:
        inside = _partition(members, group_of)
        labels = distinct([label(keys, [k for k, _ in inside]) for keys, _ in inside])
        groups = [Group(name, runs) for name, (_, runs) in zip(labels, inside, strict=True)]
        splits = [split for record in members for split in record.splits]
        named = label(own, [keys for keys, _ in parts])
        found.append(World(named, groups, splits[0] if splits else "test"))
    return found


def distinct(labels: Sequence[str]) -> list[str]:
    """The labels, equal ones (cut to the same length, say) numbered from the second on."""
    found: list[str] = []
    for name in labels:
        before = sum(name == other for other in labels[: len(found)])
        found.append(f"{name} ({before + 1})" if before else name)
    return found


def find_reference(found: Sequence[World], ref: str | None) -> str | None:
    """The label of the group that is, or whose run is, called `ref`. Raises UserError for none."""
    if ref is None:
        return None
    groups = [group for world in found for group in world.groups]
    for group in groups:
        if ref == group.label or any(ref == record.name for record in group.records):
            return group.label
    close = [group.label for group in groups if group.label.startswith(ref)]
    if len(close) == 1:
        return close[0]
    choice = ", ".join(group.label for group in groups)
    raise UserError(f"--against '{ref}' is none of the compared; there is {choice}")


def compare(world: World, reference: str | None, threshold: float | None) -> Comparison:
    """The table of a world. Without a threshold it lies halfway between base and the best group's
    mean."""
    done = [group for group in world.groups if group.finished]
    against = next((group for group in done if group.label == reference), None)
    level = threshold if threshold is not None else _halfway(done, world.split)
    rows = [_figures(group, against, world.split, level) for group in done]
    floor = seeds.noise([row.scores for row in rows])
    return Comparison(world.label, world.split, against and against.label, floor, rows)


def _figures(group: Group, against: Group | None, split: str, level: float | None) -> Figures:
    finished = group.finished
    runs = list(finished.values())
    final = _final(group, split)
    base = {key: outcomes(record, 0, split) for key, record in finished.items()}
    known = {key: found for key, found in base.items() if found}
    has_base = len(known) == len(finished)
    other = against if against is not None and against is not group else None
    scores, others = _scores(group, split), _scores(other, split) if other else []
    has_spread = min(len(scores), len(others)) > 1
    return Figures(
        group=group.label,
        seeds=[seed for seed, _ in finished],
        scores=scores,
        intervals=[run.interval(split) for run in runs],
        base=seeds.crossed(list(known.values())) if has_base else None,
        final=seeds.crossed(list(final.values())),
        gain=_pair(final, known) if has_base else None,
        iqm=seeds.iqm(scores),
        difference=_pair(final, _final(other, split)) if other else None,
        improvement=seeds.improvement(scores, others) if has_spread else None,
        efficiency=efficiency(runs, level) if level is not None else None,
        cost=cost(runs),
        passes=passes(list(final.values())),
    )


def outcomes(record: Record, step: int | None, split: str) -> Outcomes | None:
    """Each task's outcomes at a step where they are kept; else all tasks as one, by their mean."""
    if step is None:
        return None
    kept = record.outcomes(step) if split == record.splits[0] else None
    score = record.score(step, split)
    return kept or ({"": [score]} if score is not None else None)


def passes(runs: Sequence[Outcomes]) -> dict[str, Interval]:
    """pass@k (one of k episodes of a task succeeds) and pass^k (all k do), each estimated without
    bias for every task of every run; runs and tasks are resampled."""
    if any("" in run for run in runs):
        return {}
    least = min((len(row) for run in runs for row in run.values()), default=0)
    found: dict[str, Interval] = {}
    for k in (k for k in TRIES if k <= least):
        some = [{t: [pass_at_k(int(sum(r)), len(r), k)] for t, r in run.items()} for run in runs]
        every = [{t: [pass_hat_k([v > 0 for v in r], k)] for t, r in run.items()} for run in runs]
        found |= {f"pass@{k}": seeds.crossed(some), f"pass^{k}": seeds.crossed(every)}
    return found


def efficiency(records: Sequence[Record], threshold: float) -> Efficiency | None:
    """Episodes and seconds until the mean training success of five updates reached the threshold;
    None where no run played."""
    played = [record for record in records if "episodes/success" in record.columns]
    if not played:
        return None
    found: dict[str, list[float]] = {"episodes": [], "seconds": []}
    for record in played:
        success = seeds.trailing(list(record.total("episodes/success")), SMOOTH)
        for name, reached in found.items():
            xs = list(map(float, record.axis(name)))
            at = seeds.reached(xs[SMOOTH - 1 :], success[SMOOTH - 1 :], threshold)
            reached += [at] if at is not None else []
    count = len(found["episodes"])
    middle = {name: median(reached) if reached else None for name, reached in found.items()}
    return Efficiency(threshold, count, len(played), middle["episodes"], middle["seconds"])


def cost(records: Sequence[Record]) -> dict[str, float]:
    """Means over runs: episodes and tokens played, tokens trained on, seconds of each phase."""
    return {name: fmean(_spent(record)[name] for record in records) for name in _spent(records[0])}


def _spent(record: Record) -> dict[str, float]:
    trained = [k for k in record.columns if k.endswith("/tokens") and k != "episodes/tokens"]
    evaluated = sum(row.get("time/eval", 0.0) for row in record.evaluations.values())
    seconds = {name: float(record.total(f"time/{name}").sum()) for name in PHASES[:-1]}
    return {
        "episodes": float(record.total("episodes/count").sum()),
        "tokens_played": float(record.total("episodes/tokens").sum()),
        "tokens_trained": float(sum(record.total(key).sum() for key in trained)),
        **{f"seconds_{name}": spent for name, spent in seconds.items()},
        "seconds_eval": evaluated,
        "seconds": sum(seconds.values()),
    }


def _final(group: Group, split: str) -> dict[Key, Outcomes]:
    found = {
        key: outcomes(record, record.final_step, split) for key, record in group.finished.items()
    }
    known = {key: one for key, one in found.items() if one}
    if any("" in one for one in known.values()):  # one run's tasks are unknown: then by means alone
        return {
            key: {"": [float(np.mean(np.concatenate([np.array(v) for v in one.values()])))]}
            for key, one in known.items()
        }
    return known


def _scores(group: Group, split: str) -> list[float]:
    found = [record.score(record.final_step or 0, split) for record in group.finished.values()]
    return [score for score in found if score is not None]


def _pair(ours: dict[Key, Outcomes], theirs: dict[Key, Outcomes]) -> Interval | None:
    try:
        return seeds.paired(ours, theirs)
    except ValueError:
        return None


def _halfway(groups: Sequence[Group], split: str) -> float | None:
    """Between the lowest base and the highest mean of a group."""
    bases = [r.score(0, split) for group in groups for r in group.finished.values()]
    known = [score for score in bases if score is not None]
    return (min(known) + max(fmean(_scores(g, split)) for g in groups)) / 2 if known else None


def _partition(
    records: Sequence[Record], by: Callable[[Record], dict[str, Any]]
) -> list[tuple[dict[str, Any], list[Record]]]:
    found: dict[str, tuple[dict[str, Any], list[Record]]] = {}
    for record in records:
        keys = by(record)
        found.setdefault(json.dumps(keys, sort_keys=True, default=str), (keys, []))[1].append(
            record
        )
    return list(found.values())
