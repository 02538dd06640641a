"""Compare groups of runs: success with intervals, costs, and the settings that differ. Runs form a
section if they share an environment and evaluation settings, and a group within it if they differ
only in their seeds. Tables show shares in percent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, count
from statistics import fmean, median
from typing import Any

import numpy as np

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError, require_fraction
from agentrl_cli.core.statistics import Interval
from agentrl_cli.core.terminal import safe
from agentrl_cli.report import records, seeds
from agentrl_cli.report.records import PHASES, Record, success_interval
from agentrl_cli.report.seeds import Noise, Outcomes
from agentrl_cli.report.summary import DASH, Cells, share, table

SMOOTHED_UPDATES = 5  # the mean success of this many updates is compared with the threshold
ALL_TASKS = ""  # the only task of a run for which only the mean outcome is known
RunKey = tuple[int, int]  # the seed of a run, and its number among the runs with that seed


@dataclass
class Group:
    """The runs of one configuration; `split` is the split that is compared."""

    label: str
    records: list[Record]
    split: str

    @property
    def finished(self) -> dict[RunKey, Record]:
        """The runs with a final evaluation of the compared split."""
        found: dict[RunKey, Record] = {}
        numbers: Counter[int] = Counter()  # of the runs with each seed
        for record in self.records:
            if f"eval/{self.split}_success" in record.final_metrics:
                found[record.seed, numbers[record.seed]] = record
                numbers[record.seed] += 1
        return found

    def scores(self) -> list[float]:
        """Return the final success of each finished run."""
        key = f"eval/{self.split}_success"
        return [record.final_metrics[key] for record in self.finished.values()]

    def outcomes(self, *, base: bool = False) -> dict[RunKey, Outcomes]:
        """Return the outcomes of each finished run by task, after training or before (`base`). If
        the tasks of one run are unknown, all are means. Empty if a base is unknown."""
        known: dict[RunKey, Outcomes] = {}
        for key, run in self.finished.items():
            step = 0 if base else run.final_step or 0
            score = run.score(step, self.split)
            by_task = run.outcomes(step) if run.splits[:1] == [self.split] else None
            if by_task or score is not None:
                known[key] = by_task or {ALL_TASKS: [score or 0.0]}
            elif base:
                return {}
        return alike(known)[0]


def alike(*sides: dict[RunKey, Outcomes]) -> list[dict[RunKey, Outcomes]]:
    """Return the outcomes of runs, each with its mean alone if the tasks of one are unknown."""
    if all(ALL_TASKS not in run for side in sides for run in side.values()):
        return list(sides)
    return [
        {key: {ALL_TASKS: [fmean(chain(*run.values()))]} for key, run in side.items()}
        for side in sides
    ]


@dataclass(frozen=True)
class Efficiency:
    """The median cost until training success reached a threshold, over the runs that did."""

    threshold: float
    reached: int
    runs: int
    episodes: float | None
    seconds: float | None


@dataclass(frozen=True)
class Figures:
    """The results of a group. `scores` are the final success rates of its runs, `intervals` those
    that each run logged, `failed` is the share of failed episodes, which count as lost.
    `difference` compares with the reference group."""

    group: str
    seeds: list[int]
    scores: list[float]
    intervals: list[Interval | None]
    base: Interval | None
    final: Interval
    gain: Interval | None
    difference: Interval | None
    efficiency: Efficiency | None
    cost: dict[str, float]
    failed: float


@dataclass
class Section:
    """Comparable runs. `rows` are the results of groups with finished runs, `reference` is the
    group that the others are compared with."""

    label: str
    groups: list[Group]
    split: str
    reference: str | None = None
    noise: Noise | None = None
    rows: list[Figures] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        return [record for group in self.groups for record in group.records]


@dataclass(frozen=True)
class Report:
    """All sections, and notes on data that is missing or not comparable."""

    sections: list[Section]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; numbers that are not finite are null."""
        found = [
            {
                "environment": section.label, "split": section.split,
                "reference": section.reference, "noise": section.noise and asdict(section.noise),
                "rows": [asdict(row) for row in section.rows],
            }
            for section in self.sections
        ]  # fmt: skip
        return files.null_if_not_finite({"notes": self.notes, "environments": found})


def gather(
    refs: Sequence[str], against: str | None = None, threshold: float | None = None
) -> Report:
    """Read and compare runs. `against` is the label of a group, the start of one, or a run.

    The default threshold is halfway between the lowest base and the highest mean of a group.
    Raises UserError for unknown runs and an invalid threshold.
    """
    if threshold is not None:
        require_fraction(**{"--threshold": threshold})
    found = records.read_records(refs)
    sections = []
    for label, members in _grouped(found, records.environment_settings):
        split = next((split for record in members for split in record.splits), "test")
        grouped = _grouped(members, records.group_settings)
        labels = number_duplicates((name for name, _ in grouped), " ({})")
        groups = [Group(n, runs, split) for n, (_, runs) in zip(labels, grouped, strict=True)]
        sections.append(Section(label, groups, split))
    reference = against and _reference(sections, against)
    for section in sections:
        compared = [group for group in section.groups if group.finished]
        base = next((group for group in compared if group.label == reference), None)
        section.reference = base and base.label
        limit = _halfway(compared, section.split) if threshold is None else threshold
        section.rows = [_figures(group, base, limit) for group in compared]
        section.noise = seeds.seed_noise([row.scores for row in section.rows])
    notes = [note for record in found for note in record.notes]
    if len(sections) > 1:
        names = "; ".join(section.label for section in sections)
        line = "environments or evaluation settings, which are not comparable"
        notes.insert(0, f"{len(sections)} {line}: {names}")
    return Report(sections, notes)


def number_duplicates(names: Iterable[str], suffix: str) -> list[str]:
    """Return the names, with a suffix such as `-{}` numbered from 2 for repeated names."""
    distinct: dict[str, None] = {}
    for name in names:
        numbered = chain([name], (name + suffix.format(number) for number in count(2)))
        distinct[next(candidate for candidate in numbered if candidate not in distinct)] = None
    return list(distinct)


def _grouped(
    runs: Iterable[Record], settings_of: Callable[[Record], records.Settings]
) -> list[tuple[str, list[Record]]]:
    """Return runs with equal settings together, under a label that tells the groups apart."""
    groups: dict[str, tuple[records.Settings, list[Record]]] = {}
    for run in runs:
        settings = settings_of(run)
        key = json.dumps(settings, sort_keys=True, default=str)
        groups.setdefault(key, (settings, []))[1].append(run)
    others = [settings for settings, _ in groups.values()]
    return [(records.settings_label(own, others), members) for own, members in groups.values()]


def _reference(sections: Sequence[Section], ref: str) -> str:
    groups = [group for section in sections for group in section.groups]
    labels = [group.label for group in groups]
    exact = [g.label for g in groups if ref in (g.label, *(record.name for record in g.records))]
    close = [label for label in labels if label.startswith(ref)]
    if exact or len(close) == 1:
        return (exact or close)[0]
    line = f"--against '{ref}' is not in the report; choose one of {', '.join(labels)}"
    raise UserError(line, code="unknown-reference")


def _halfway(groups: Sequence[Group], split: str) -> float | None:
    runs = [run for group in groups for run in group.finished.values()]
    bases = [base for run in runs if (base := run.score(0, split)) is not None]
    best = max((fmean(group.scores()) for group in groups), default=0.0)
    return (min(bases) + best) / 2 if bases and best > min(bases) else None


def _figures(group: Group, against: Group | None, threshold: float | None) -> Figures:
    runs = list(group.finished.values())
    final, base = group.outcomes(), group.outcomes(base=True)
    other = against.outcomes() if against and against is not group else {}
    failed = f"eval/{group.split}_failed"
    return Figures(
        group=group.label,
        seeds=[seed for seed, _ in group.finished],
        scores=group.scores(),
        intervals=[
            success_interval(run.final_metrics, group.split)
            if f"eval/{group.split}_success_low" in run.final_metrics
            else None
            for run in runs
        ],
        base=seeds.mean_success(list(base.values())) if base else None,
        final=seeds.mean_success(list(final.values())),
        gain=seeds.paired_difference(*alike(final, base)),
        difference=seeds.paired_difference(*alike(final, other)),
        efficiency=efficiency(runs, threshold) if threshold is not None else None,
        cost=mean_cost(runs),
        failed=fmean(run.final_metrics.get(failed, 0.0) for run in runs),
    )


def efficiency(runs: Sequence[Record], threshold: float) -> Efficiency | None:
    """Return the cost until the mean success of five updates reached the threshold; None if no run
    has played as many."""
    played = [r for r in runs if len(r.columns.get("episodes/success", ())) >= SMOOTHED_UPDATES]
    points: dict[str, list[float]] = {"episodes": [], "seconds": []}
    for record in played:
        success = seeds.moving_average(list(record.column("episodes/success")), SMOOTHED_UPDATES)
        reached = np.flatnonzero(np.array(success[SMOOTHED_UPDATES - 1 :]) >= threshold)
        if reached.size:
            for axis, values in points.items():
                values.append(float(record.axis(axis)[SMOOTHED_UPDATES - 1 + reached[0]]))
    medians = [median(values) if values else None for values in points.values()]
    return Efficiency(threshold, len(points["episodes"]), len(played), *medians) if played else None


def mean_cost(runs: Sequence[Record]) -> dict[str, float]:
    """Return episodes, tokens played and read in training, seconds by phase, as means of runs."""
    costs = []
    for run in runs:
        read = [k for k in run.columns if k.endswith("/tokens") and k != "episodes/tokens"]
        seconds = {name: float(run.column(f"time/{name}").sum()) for name in PHASES[:-1]}
        costs.append({
            "episodes": float(run.column("episodes/count").sum()),
            "tokens_played": float(run.column("episodes/tokens").sum()),
            "tokens_read": float(sum(run.column(key).sum() for key in read)),
            **{f"seconds_{name}": value for name, value in seconds.items()},
            "seconds_eval": sum(row.get("time/eval", 0.0) for row in run.evaluations.values()),
            "seconds": sum(seconds.values()),
        })  # fmt: skip
    return {name: fmean(cost[name] for cost in costs) for name in costs[0]}


# tables: the header of each column, and its cells
Columns = dict[str, Callable[[Figures], str]]


def results(section: Section) -> Cells:
    """Return the table of base, final and gain, with differences from the reference."""
    columns: Columns = {
        "group": lambda row: row.group,
        "seed": lambda row: " ".join(map(str, row.seeds)),
        "base": lambda row: share(row.base and row.base.mean),
        "final [95 %]": lambda row: interval(row.final),
        "each seed": lambda row: " ".join(map(share, row.scores)),
        "gain [95 %]": lambda row: interval(row.gain, signed=True),
    }
    if section.reference is not None:
        header = f"minus {section.reference} [95 %]"
        columns[header] = lambda row: interval(row.difference, signed=True)
    return _cells(columns, section.rows)


def costs(section: Section) -> Cells:
    """Return the table of what a run cost, in total and until it reached the threshold."""
    columns: Columns = {
        "group": lambda row: row.group,
        "episodes": lambda row: rounded(row.cost["episodes"]),
        "tokens played": lambda row: rounded(row.cost["tokens_played"]),
        "tokens read": lambda row: rounded(row.cost["tokens_read"]),
        "seconds": lambda row: rounded(row.cost["seconds"]),
        "+ evaluation": lambda row: rounded(row.cost["seconds_eval"]),
    }
    if known := next((row.efficiency for row in section.rows if row.efficiency), None):
        to = f"to {share(known.threshold)} %"
        columns[f"episodes {to}"] = lambda row: rounded(row.efficiency and row.efficiency.episodes)
        columns[f"seconds {to}"] = lambda row: rounded(row.efficiency and row.efficiency.seconds)
        columns["reached by"] = lambda row: (
            f"{row.efficiency.reached} of {row.efficiency.runs}" if row.efficiency else DASH
        )
    return _cells(columns, section.rows)


def settings_table(section: Section) -> tuple[Cells, int]:
    """Return the settings in which groups differ, with groups as columns and the algorithm first,
    and the number of those left out, which some groups lack and the others share."""
    found = {g.label: records.group_settings(g.records[0]) for g in section.groups}
    keys = dict.fromkeys(key for settings in found.values() for key in ("choice", *settings))
    classes = {(s["choice"], s.get("algo._target_")) for s in found.values()}
    if len(classes) == len({choice for choice, _ in classes}):
        keys.pop("algo._target_", None)  # the algorithm names its class
    rows, left_out = [], 0
    for key in keys:
        values = [settings[key] for settings in found.values() if key in settings]
        if any(value != values[0] for value in values):
            name = "algo" if key == "choice" else key
            texts = (records.setting_text(s.get(key, DASH), 48) for s in found.values())
            rows.append([name, *texts])
        else:
            left_out += len(values) < len(found)
    return [["setting", *found], *rows], left_out


def remarks(section: Section) -> list[str]:
    """Return sentences on how to interpret the results."""
    gains = {row.group: row.gain for row in section.rows if row.gain is not None}
    changes = {
        "Success rose": [group for group, gain in gains.items() if gain.low > 0],
        "Success fell": [group for group, gain in gains.items() if gain.high < 0],
        "No evidence of a change (the interval of the gain includes 0)": [
            group for group, gain in gains.items() if gain.low <= 0 <= gain.high
        ],
    }
    found = [f"{change}: {', '.join(groups)}." for change, groups in changes.items() if groups]
    lines = [" ".join(found)] if found else []
    if len(section.rows) > 1 and section.reference is None:
        lines.append("For differences between groups with intervals, add --against GROUP.")
    lines.append(
        f"Success on {section.split} in %. Intervals of several runs hold for new seeds and new"
        " tasks, those of one run only for new tasks."
    )
    if (noise := section.noise) is None:
        lines.append("Noise between seeds is unknown: no configuration has two finished runs.")
    else:
        line = (
            f"Noise between seeds: {share(noise.deviation)} points (pooled standard deviation,"
            f" {noise.freedom} degrees of freedom)."
        )
        if noise.least_difference < 1:  # with few runs it may be more than all points
            line += (
                " Two single runs differ by more than"
                f" {share(noise.least_difference)} points in 5 % of cases."
            )
        lines.append(line)
    if failed := [f"{row.group} ({share(row.failed)} %)" for row in section.rows if row.failed]:
        lines.append(f"Failed episodes count as lost: {', '.join(failed)}.")
    if few := [row.group for row in section.rows if len(row.scores) < 3]:
        lines.append(
            f"Fewer than three seeds, so another seed may change the result: {', '.join(few)}."
        )
    return lines


def render(report: Report, width: int | None = None) -> str:
    """Return the tables for a terminal."""
    parts: list[str] = []
    for found in report.sections:
        if not found.rows:
            parts.append(safe(f"{found.label}: no run has finished"))
            continue
        parts += [*table(results(found), found.label, width), *map(safe, remarks(found))]
        parts += table(costs(found), "cost (means over finished runs)", width)
    return "\n".join(parts)


def markdown(report: Report) -> str:
    """Return the final results as Markdown tables, one per section."""
    lines: list[str] = []
    for section in report.sections:
        if len(report.sections) > 1:
            lines += [f"**{_markdown_cell(section.label)}**", ""]
        usual = max((row.seeds for row in section.rows), key=len, default=[])
        columns: Columns = {
            "algorithm": lambda row, usual=usual: row.group + _other_seeds(row.seeds, usual),
            "base, %": lambda row: share(row.base and row.base.mean),
            f"final, %, seeds {', '.join(map(str, usual))}": lambda row: ", ".join(
                map(interval, row.intervals)
            ),
            "gain, points": lambda row: interval(row.gain, signed=True),
            "training seconds": lambda row: rounded(row.cost["seconds"]),
        }
        if section.reference is not None:
            less = f"less {section.reference}, points"
            columns[less] = lambda row: interval(row.difference, signed=True)
        header, *rows = _cells(columns, section.rows)
        for row in [header, ["---"] * len(header), *rows]:
            lines.append(f"| {' | '.join(map(_markdown_cell, row))} |")
        lines.append("")
    return "\n".join(lines).rstrip("\n")


def interval(value: Interval | None, signed: bool = False) -> str:
    """Return `40.8 [33.8, 47.8]` in percent, or a dash."""
    if value is None:
        return DASH
    mean, low, high = (share(end, signed) for end in (value.mean, value.low, value.high))
    return f"{mean} [{low}, {high}]"


def rounded(value: float | None) -> str:
    """Return a number with thousands separators, rounded to a tenth below 10, or a dash."""
    if value is None:
        return DASH
    return f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:,.0f}"


def _cells(columns: Columns, rows: list[Figures]) -> Cells:
    return [list(columns), *([cell(row) for cell in columns.values()] for row in rows)]


def _markdown_cell(text: str) -> str:
    return safe(text).replace("\n", " ").replace("|", "\\|")


def _other_seeds(seeds: list[int], usual: list[int]) -> str:
    plural = "s" if len(seeds) > 1 else ""
    return "" if seeds == usual else f" (seed{plural} {', '.join(map(str, seeds))})"
