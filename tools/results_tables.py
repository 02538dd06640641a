"""The tables of docs/results.md: records of docs/results/ as Markdown. Which records stand on which
page, results_page.py says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from agentrl_cli.report.tables import share

from agentrl_cli.report import seeds

TRIALS = {
    "preset": "as it was", "third": "rates / 3", "thrice": "rates × 3",
    "small_steps": "half the tokens a step",
}  # fmt: skip
Row = dict[str, Any]
Runs = list[Row]  # the records of one configuration on one split, a seed each
Cells = list[list[str]]


def configurations(rows: Iterable[Row], split: str = "test") -> list[Runs]:
    """The records of a split, those that differ by their seed alone together."""
    found: dict[tuple[str, str, Any], Runs] = {}
    for row in rows:
        if row["split"] == split:
            found.setdefault((row["algo"], row["variant"], row["demos"]), []).append(row)
    return list(found.values())


def gains(runs: Runs) -> list[float]:
    """What each seed gained over its own start, as a share of the tasks."""
    return [row["final"] - row["base"] for row in runs]


def mean(runs: Runs, key: str) -> float:
    """The mean of a figure over the seeds."""
    return fmean(row[key] for row in runs)


def points(value: float) -> str:
    """`+15.3`, `−0.4`: a difference of shares in points."""
    return share(value, signed=True).replace("-0.0", "+0.0").replace("-", "−")


def ranged(values: Sequence[float]) -> str:
    """`+15.3 [+12.5, +19.0]`: the mean in points, the lowest and the highest; alone where there is
    only one value."""
    if len(values) == 1:
        return points(values[0])
    return f"{points(fmean(values))} [{points(min(values))}, {points(max(values))}]"


def final(row: Row) -> str:
    """`51.0 [45.5, 56.8]`: the final success with its interval, in per cent."""
    return f"{share(row['final'])} [{share(row['low'])}, {share(row['high'])}]"


def markdown(header: str, cells: Cells) -> str:
    """A Markdown table; the header's columns stand apart by ` | `."""
    columns = header.split(" | ")
    lines = [columns, ["---"] * len(columns), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def learning(rows: Sequence[Row], wanted: Callable[[Row], bool]) -> str:
    """The table of the configurations that are wanted, the largest gain first; with what they win
    on the train split where that was played."""
    trained = {name_of(runs): runs for runs in configurations(rows, "train")}
    chosen = [runs for runs in configurations(rows) if wanted(runs[0])]
    cells = []
    for runs in sorted(chosen, key=lambda runs: -fmean(gains(runs))):
        finals = ", ".join(map(final, runs))
        cell = [name_of(runs), share(mean(runs, "base")), finals, ranged(gains(runs))]
        if trained:
            cell.append(share(mean(trained[name_of(runs)], "final")))
        cells.append([*cell, f"{mean(runs, 'seconds'):,.0f}"])
    train = "train split, % | " if trained else ""
    listed = ", ".join(str(row["seed"]) for row in max(chosen, key=len))
    header = f"algorithm | start, % | final, %, seed {listed} | gain, points | {train}seconds"
    return markdown(header, cells)


def by_demonstrations(rows: Sequence[Row]) -> str:
    """What was reached with each number of demonstrations, the fewest first."""
    cells = [
        [name_of(runs), str(runs[0]["demos"]), ", ".join(share(row["final"]) for row in runs),
         ranged(gains(runs)), f"{mean(runs, 'seconds'):,.0f}"]
        for runs in sorted(configurations(rows), key=lambda runs: runs[0]["demos"])
    ]  # fmt: skip
    header = "algorithm | demonstrations | final, %, seed 0, 1, 2 | gain, points | seconds"
    return markdown(header, cells)


def tuning(rows: Sequence[Row]) -> str:
    """A line for each algorithm: success on `val` at the start and after each trial, at best."""
    cells = []
    for algo in dict.fromkeys(row["algo"] for row in rows):
        own = [row for row in rows if row["algo"] == algo]
        after = {
            trial: max(row["val"] for row in own if row["variant"] == trial and row["step"])
            for trial in TRIALS
        }
        start = next(row["val"] for row in own if not row["step"])
        cells.append([algo, share(start), *(share(after[trial]) for trial in TRIALS)])
    return markdown(" | ".join(["algorithm", "start, %", *TRIALS.values()]), cells)


def delayed_credit(found: Row) -> str:
    """Episodes to the threshold of both algorithms: on the tuning seed, then on the others."""
    cells = []
    for algo in dict.fromkeys(row["algo"] for row in found["runs"]):
        tried, ran = ([r for r in found[name] if r["algo"] == algo] for name in ("trials", "runs"))
        numbers = ", ".join(f"{key} {value:g}" for key, value in ran[0]["numbers"].items())
        cells.append([algo, numbers, *(", ".join(map(_episodes, rows)) for rows in (tried, ran))])
    return markdown("algorithm | settings of the best trial | trials | seed 0, 1, 2", cells)


def _episodes(row: Row) -> str:
    return f"{row['episodes']:,}" if row["episodes"] else "not reached"


def golden(found: Row) -> str:
    """How many of the recorded cases of τ-bench's retail agree, by split and by what is held."""
    parts = ("observations", "reward", "database", "executed", "verdict")
    splits = ("dev", "train")
    cells = [[part, *(_agreement(found, split, part) for split in splits)] for part in parts]
    return markdown("equal to the official code | dev | train", cells)


def _agreement(found: Row, split: str, part: str) -> str:
    equal, recorded = (
        found[f"retail_{split}_golden_{part}_{end}"] for end in ("equal", "recorded")
    )
    return f"{equal:.0f} of {recorded:.0f}"


def lead(rows: Sequence[Row], other: str, variant: str = "") -> str:
    """`+4.4 points (+7.0, +0.5, +5.7)`: NLAC's final success less another's, seed by seed."""
    found = {(runs[0]["algo"], runs[0]["variant"]): runs for runs in configurations(rows)}
    pairs = zip(found["nlac", ""], found[other, variant], strict=True)
    leads = [ours["final"] - theirs["final"] for ours, theirs in pairs]
    return f"{points(fmean(leads))} points ({', '.join(map(points, leads))})"


def differences(
    worlds: Mapping[str, Sequence[Row]],
    spread: Mapping[str, seeds.Noise],
    pairs: Iterable[tuple[str, str]],
) -> str:
    """`+8.5 ± 3.7` for each pair of configurations in each world: the mean final success of the
    first less that of the second, and how far the luck of seeds moves such a difference at 95 %."""
    cells = []
    for first, second in pairs:
        cell = [f"{first} less {second}"]
        for world, rows in worlds.items():
            known = {name_of(runs): runs for runs in configurations(rows)}
            if first not in known or second not in known:
                cell.append("")
                continue
            ours, theirs = known[first], known[second]
            if len(ours) != len(theirs):
                raise SystemExit(f"{first} and {second} have not as many seeds")
            luck = spread[world].least_difference / math.sqrt(len(ours))
            apart = mean(ours, "final") - mean(theirs, "final")
            cell.append(f"{points(apart)} ± {share(luck)}")
        cells.append(cell)
    return markdown(" | ".join(["points", *worlds]), cells)


def deviation(rows: Sequence[Row]) -> seeds.Noise:
    """How far runs that differ in their seed alone lie apart."""
    found = seeds.seed_noise([[row["final"] for row in runs] for runs in configurations(rows)])
    if found is None:
        raise SystemExit("no configuration has two seeds")
    return found


def noise(found: seeds.Noise) -> str:
    """`2.2 points (34 degrees of freedom)`."""
    return f"{share(found.deviation)} points ({found.freedom} degrees of freedom)"


def name_of(runs: Runs) -> str:
    """`nlac, shuffled outcomes`; a variant's own name of its algorithm is not said twice."""
    algo, variant = runs[0]["algo"], runs[0]["variant"]
    words = variant.removeprefix(algo).strip("_").replace("_", " ")
    return ", ".join(filter(None, [algo, words]))
