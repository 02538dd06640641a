"""Write docs/results.md, docs/findings.md and the findings in README.md from docs/results/*.json.

Run `make results-page`, or `python tools/results_page.py --check` to check that they are up to
date. Every number is computed here, but those of experiments that a page links in docs/log. The
texts are in tools/pages/. A table has its name in braces, a figure of runs what it is and of which
runs, such as `{success[twentyq nlac]:.0p}` or `{difference[arithmetic self_ac less grpo]}`. The
format `.0p` is percent without its sign.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from string import Formatter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from scipy import stats

from agentrl_cli.core.statistics import Interval, standard_error, student
from agentrl_cli.report import seeds
from agentrl_cli.report.summary import share
from bench.results import (
    CONTROLS,
    EQUAL_INFORMATION,
    FORECASTS,
    LONG_RUNS,
    OWN_PLAY,
    PLAIN_ANSWER,
    TRIAL_STEPS,
    horizons,
)

ROOT = Path(__file__).parents[1]
RECORDS, TEXTS = ROOT / "docs" / "results", Path(__file__).parent / "pages"
README_HEADING = "## Findings so far"
ENVIRONMENTS = {
    "twentyq": "Twenty Questions", "arithmetic": "arithmetic", "tau_mini": "the small shop",
    "wiki": "the wiki",
}  # fmt: skip
PRETRAINED = {"arithmetic_smollm2": "arithmetic", "courier_smollm2": "the courier"}
TRIALS = {
    "preset": "as it was", "third": "rates / 3", "thrice": "rates × 3",
    "small_steps": "half the tokens a step",
}  # fmt: skip
WRITTEN = {  # metrics of language critics, and their names in tables
    "nlac/brier": "Brier score", "nlac/value_bias": "bias", "nlac/auc_all": "AUC over all",
    "nlac/refined_gain_all": "refined gain",
}  # fmt: skip
SCALAR = {  # metrics of scalar critics
    "critic/brier": "Brier score", "critic/value_bias": "bias",
    "critic/rank_correlation": "rank correlation", "critic/rank_same_turn": "in one turn",
}  # fmt: skip
REPEATED = ("arithmetic", "twentyq")  # environments whose records are not of version 0.2
SIGNIFICANT = 0.05
ROUNDING = 1e-9
ABLATED = "NLAC with one part exchanged ([algorithms.md](algorithms.md#ablations)):"
SECOND_BASE = "By play, from a second initial model that was trained with another seed:"
BASELINES = ("grpo", "rft")
ONLY_IN_FINDINGS = ("guard_", "tot_", "drift_steps")  # figures of critics.json without a row
TRIALS_TEXT = (
    "Trials: success on `val` in percent after 12 updates with seed 10, by learning rate, and with "
    "half the tokens per optimizer step (× 0.5) at the best rate."
)
MIN_TASKS = 10  # for an interval over tasks
WIDTH = 120
Row = dict[str, Any]
Runs = list[Row]  # the seeds of one configuration on one split


def load(name: str) -> Any:
    """Return the content of docs/results/NAME.json."""
    return json.loads((RECORDS / f"{name}.json").read_text())


# cells


def configurations(rows: Iterable[Row], split: str = "test") -> list[Runs]:
    """Return the records of a split by configuration."""
    found: dict[tuple[str, str, Any], Runs] = {}
    for row in rows:
        if row["split"] == split:
            found.setdefault((row["algo"], row["variant"], row["demos"]), []).append(row)
    return list(found.values())


def gains(runs: Runs) -> list[float]:
    """Return the gain of each seed over its start."""
    return [row["final"] - row["base"] for row in runs]


def mean(runs: Runs, key: str) -> float:
    """Return the mean of a value over the seeds."""
    return fmean(row[key] for row in runs)


def cost(runs: Runs) -> float:
    """Return the mean seconds of the runs and of those that they start from."""
    return fmean(row["seconds"] + row.get("start_seconds", 0) for row in runs)


def points(value: float) -> str:
    """Return a difference in points, such as `+15.3` or `−0.4`."""
    return minus(share(value if abs(value) > ROUNDING else 0.0, signed=True))


def minus(text: str) -> str:
    """Return the text with typographic minus signs."""
    return text.replace("-", "−")


def ranged(values: Sequence[float]) -> str:
    """Return mean, minimum and maximum in points, such as `+15.3 [+12.5, +19.0]`."""
    if len(values) == 1:
        return points(values[0])
    return f"{points(fmean(values))} [{points(min(values))}, {points(max(values))}]"


def name_of(runs: Runs) -> str:
    """Return the algorithm and its variant, such as `nlac, shuffled outcomes`."""
    algo, variant = runs[0]["algo"], runs[0]["variant"]
    words = variant.removeprefix(algo).strip("_").replace("_", " ")
    return ", ".join(filter(None, [algo, words]))


def markdown(header: str, cells: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; ` | ` separates the columns of the header."""
    columns = header.split(" | ")
    return "\n".join(f"| {' | '.join(r)} |" for r in [columns, ["---"] * len(columns), *cells])


# tables


def learning(
    rows: Sequence[Row], wanted: Callable[[Row], bool], baselines: Sequence[str] = BASELINES
) -> str:
    """Return the table of the wanted configurations, the largest gain first."""
    trained = {name_of(runs): runs for runs in configurations(rows, "train")}
    chosen = [runs for runs in configurations(rows) if wanted(runs[0])]
    if all("final_by_task" in row for runs in chosen for row in runs):
        return paired_learning(rows, chosen, baselines)
    cells = []
    for runs in sorted(chosen, key=lambda runs: -fmean(gains(runs))):
        finals = [f"{share(r['final'])} [{share(r['low'])}, {share(r['high'])}]" for r in runs]
        cell = [name_of(runs), share(mean(runs, "base")), ", ".join(finals), ranged(gains(runs))]
        if trained:
            cell.append(share(mean(trained[name_of(runs)], "final")))
        cells.append([*cell, f"{mean(runs, 'seconds'):,.0f}"])
    train = "train split, % | " if trained else ""
    listed = ", ".join(str(row["seed"]) for row in max(chosen, key=len))
    header = f"algorithm | start, % | final, %, seed {listed} | gain, points | {train}seconds"
    return markdown(header, cells)


def paired_learning(rows: Sequence[Row], chosen: Sequence[Runs], baselines: Sequence[str]) -> str:
    """Return the table of configurations with intervals over tasks and seeds, and with their
    differences from each baseline, the highest success first, and the same on train tasks if they
    were played. The seconds are those of a run and of the run that it starts from."""
    every = {name_of(runs): runs for runs in configurations(rows)}
    cells = []
    for runs in sorted(chosen, key=lambda runs: -mean(runs, "final")):
        ours, name = by_task(runs, "final"), name_of(runs)
        others = [by_task(runs, "base")]
        others += [
            by_task(every[b], "final") if b in every and b != name else {} for b in baselines
        ]
        found = [seeds.paired_difference(ours, other) for other in others]
        success = seeds.mean_success([*ours.values()])
        cells.append([
            name, str(len(runs)), f"{mean(runs, 'steps'):.0f}", f"{mean(runs, 'episodes'):,.0f}",
            share(mean(runs, "base")), with_interval(success, share),
            *(with_interval(difference, points) for difference in found), greedy(runs),
            f"{cost(runs):,.0f}",
        ])  # fmt: skip
    less = [f"less {name}" for name in baselines]
    header = ["algorithm", "seeds", "updates", "episodes", "start, %", "final, %", "gain, points"]
    table = markdown(" | ".join([*header, *less, "greedy, %", "seconds"]), cells)
    names = {name_of(runs) for runs in chosen}
    trained = [runs for runs in configurations(rows, "train") if name_of(runs) in names]
    return f"{table}\n\n{on_train_tasks(rows, trained, baselines)}" if trained else table


def on_train_tasks(rows: Sequence[Row], chosen: Sequence[Runs], baselines: Sequence[str]) -> str:
    """Return the success of configurations on all train tasks and its differences from each
    baseline by seed, with intervals over seeds."""
    every, cells = {name_of(runs): runs for runs in configurations(rows, "train")}, []
    for runs in sorted(chosen, key=lambda runs: -mean(runs, "final")):
        cell = [name_of(runs), share(mean(runs, "base"))]
        cell.append(with_interval(over_seeds([row["final"] for row in runs], 0.0), share))
        for name in baselines:
            theirs = every.get(name, []) if name != cell[0] else []
            cell.append(with_interval(paired_by_seed(runs, theirs), points))
        cells.append(cell)
    less = " | ".join(f"less {name}" for name in baselines)
    header = f"on train tasks | start, % | final, % | {less}"
    return markdown(header, cells)


def paired_by_seed(ours: Runs, theirs: Runs) -> Interval | None:
    """Return the difference of the final success over the seeds that both have, with its interval;
    None without any."""
    other = {row["seed"]: row["final"] for row in theirs}
    paired = [row["final"] - other[row["seed"]] for row in ours if row["seed"] in other]
    return over_seeds(paired) if paired else None


def over_seeds(values: Sequence[float], least: float = -1.0) -> Interval:
    """Return the mean of one value per seed with its 95 % interval by Student's t, within the
    possible values from `least` to 1."""
    average = fmean(values)
    if len(values) == 1:
        return Interval(average, average, average)
    half = student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(average, max(least, average - half), min(1.0, average + half))


def greedy(runs: Runs) -> str:
    """Return the success at temperature 0 before and after training, if it was measured."""
    if any(row.get("final_greedy") is None for row in runs):
        return ""
    return f"{share(mean(runs, 'base_greedy'))} → {share(mean(runs, 'final_greedy'))}"


def by_task(runs: Runs, end: str) -> dict[int, seeds.Outcomes]:
    """Return the success of each test task by seed, before (`base`) or after (`final`) training."""
    return {
        row["seed"]: {
            str(task): [float(percent) / 100]
            for task, percent in enumerate(row[f"{end}_by_task"].split())
        }
        for row in runs
    }


def with_interval(found: Interval | None, text: Callable[[float], str]) -> str:
    """Return a mean and its interval, such as `61.5 [55.2, 67.0]`."""
    return f"{text(found.mean)} [{text(found.low)}, {text(found.high)}]" if found else ""


def env_learning(env: str) -> str:
    """Return the curves and all tables of an environment."""
    curves = load(f"{env}_curves")
    played = ", ".join(dict.fromkeys(row["algo"] for row in curves))
    picture = f"![Success of {played} against episodes and seconds](images/curves_{env}.svg)"
    parts, rows = [picture], load(env)
    early = [after_short_training(row) for row in rows if has_short_training(row)]
    own = tuple({name_of([row]) for row in early})
    for lead_in, wanted in SHOWN:
        if any(wanted(row) for row in rows):
            parts += [lead_in, learning(rows, wanted)]
    if (RECORDS / f"{env}_base2.json").exists():
        parts += [SECOND_BASE, learning(load(f"{env}_base2"), lambda row: True)]
    if any(_spoils(row) for row in rows):
        parts += ["Controls:", learning([*rows, *early], _spoils, (*own, *BASELINES))]
    if (RECORDS / f"{env}_ablations.json").exists():
        ablated = [*load(f"{env}_ablations"), *early]
        parts += [ABLATED, learning(ablated, lambda row: True, own)]
    return "\n\n".join(parts)


def has_short_training(row: Row) -> bool:
    """Return whether a record has NLAC's success after as many updates as its ablations have."""
    few = row["steps"] <= TRIAL_STEPS and (row["split"] == "train" or "final_by_task" in row)
    return row["algo"] == "nlac" and not row["variant"] and (few or "short" in row)


def after_short_training(row: Row) -> Row:
    """Return the record of NLAC after as many updates as its ablations and controls have."""
    short = row | row.get("short", {})
    return short | {"variant": f"{row['algo']}_{short['steps']}_updates"}


def pretrained(env: str) -> str:
    """Return the runs of SmolLM2 in an environment, the highest mean success first, and their
    trials."""
    rows = [row for row in load("smollm2") if row["env"] == env]
    cells = []
    for runs in sorted(configurations(rows), key=lambda runs: -mean(runs, "final")):
        runs.sort(key=lambda row: row["seed"])
        finals = [share(row["final"]) for row in runs]
        if runs[0]["tasks"] >= MIN_TASKS:
            ends = [f"[{share(row['low'])}, {share(row['high'])}]" for row in runs]
            finals = list(map(" ".join, zip(finals, ends, strict=True)))
        cells.append([
            name_of(runs), ", ".join(share(row["base"]) for row in runs), ", ".join(finals),
            ranged(gains(runs)), f"{mean(runs, 'episodes'):,.0f}", f"{mean(runs, 'seconds'):,.0f}",
        ])  # fmt: skip
    listed = ", ".join(str(row["seed"]) for row in max(configurations(rows), key=len))
    header = f"start, %, seed {listed} | final, % | gain, points | episodes | seconds"
    table = markdown(f"algorithm | {header}", cells)
    return f"{table}\n\n{TRIALS_TEXT}\n\n{trials(env)}"


def by_demonstrations(rows: Sequence[Row]) -> str:
    """Return the results by number of demonstrations."""
    cells = [
        [name_of(runs), str(runs[0]["demos"]), ", ".join(share(row["final"]) for row in runs),
         ranged(gains(runs)), f"{mean(runs, 'seconds'):,.0f}"]
        for runs in sorted(configurations(rows), key=lambda runs: runs[0]["demos"])
    ]  # fmt: skip
    header = "algorithm | demonstrations | final, %, seed 0, 1, 2 | gain, points | seconds"
    return markdown(header, cells)


def tuning() -> str:
    """Return the start and the best success on `val` of each trial of each algorithm."""
    tables = []
    for env, name in ENVIRONMENTS.items():
        if not (RECORDS / f"{env}_tuning.json").exists():
            continue
        rows, cells = load(f"{env}_tuning"), []
        for algo in dict.fromkeys(row["algo"] for row in rows):
            own = [row for row in rows if row["algo"] == algo]
            start = next(row["val"] for row in own if not row["step"])
            trials = [[r["val"] for r in own if r["variant"] == t and r["step"]] for t in TRIALS]
            cells.append([algo, share(start), *(share(max(found)) for found in trials)])
        table = markdown(" | ".join(["algorithm", "start, %", *TRIALS.values()]), cells)
        tables.append(f"On {name}:\n\n{table}")
    return "\n\n".join(tables)


def trials(env: str) -> str:
    """Return the success on `val` of each trial in an environment."""
    rows, cells = load(f"{env}_trials"), []
    rates = sorted({float(row["trial"][5:]) for row in rows if row["trial"].startswith("rate_")})
    columns = {f"rate_{rate:g}": f"{rate:g}" for rate in rates}
    sizes = sorted({float(row["trial"][5:]) for row in rows if row["trial"].startswith("size_")})
    columns |= {f"size_{size:g}": f"step × {size:g}" for size in sizes}
    long_runs = [name for name in LONG_RUNS if any(row["trial"] == name for row in rows)]
    for what in dict.fromkeys(row["variant"] or row["algo"] for row in rows):
        own = [row for row in rows if (row["variant"] or row["algo"]) == what]
        last = {row["trial"]: share(row["val"]) for row in own}
        cell = [what, *(last.get(name, "") for name in columns)]
        for name in long_runs:
            long = {row["step"]: row["val"] for row in own if row["trial"] == name}
            stops = [f"{n}: {share(long[n])}" for n in horizons(env, what) if n in long]
            cell.append(", ".join(stops))
        cells.append(cell)
    named = [{"long": "long run", "long_lower": "at the next lower rate"}[n] for n in long_runs]
    return markdown(" | ".join(["algorithm", *columns.values(), *named]), cells)


def trial_tables() -> str:
    """Return the trials in each environment that has any."""
    tables = [
        f"On {name}:\n\n{trials(env)}"
        for env, name in ENVIRONMENTS.items()
        if (RECORDS / f"{env}_trials.json").exists()
    ]
    return "\n\n".join(tables or ["None has been run."])


def critic_quality() -> str:
    """Return the values of docs/results/critics.json, with a column for each environment."""
    found = load("critics")
    shown = [key for key in found if not key.startswith(ONLY_IN_FINDINGS)]
    names = {key.removesuffix(f"_{w}") for key in shown for w in ENVIRONMENTS if key.endswith(w)}
    cells = []
    for name in sorted(names):
        values = [found.get(f"{name}_{env}") for env in ENVIRONMENTS]
        texts = ["" if v is None else f"{v:,.0f}" if abs(v) >= 10 else f"{v:.2f}" for v in values]
        cells.append([f"`{name}`", *map(minus, texts)])
    return markdown(" | ".join(["figure", *ENVIRONMENTS.values()]), cells)


def critics(key: str, columns: dict[str, str]) -> str:
    """Return critic metrics before and after training, as means over seeds. `key` selects runs by a
    metric, `columns` names metrics and headers."""
    environments = ENVIRONMENTS | {env: f"{name}, SmolLM2" for env, name in PRETRAINED.items()}
    found: dict[tuple[str, str], Runs] = {}
    for file in (*ENVIRONMENTS, "smollm2"):
        for row in load(f"{file}_critic"):
            if key in row:
                found.setdefault((row["env"], name_of([row])), []).append(row)
    cells = []
    for (env, name), runs in found.items():
        ends = (0, max(row["step"] for row in runs))
        by_end = [[row for row in runs if row["step"] == end] for end in ends]
        means = [[minus(f"{mean(end, c):.2f}") for end in by_end] for c in columns]
        cells.append([environments[env], name, *map(" → ".join, means)])
    return markdown(" | ".join(["environment", "algorithm", *columns.values()]), cells)


def delayed_credit(found: Row) -> str:
    """Return the episodes to the threshold for both algorithms."""
    cells = []
    for algo in dict.fromkeys(row["algo"] for row in found["runs"]):
        tried, ran = ([r for r in found[name] if r["algo"] == algo] for name in ("trials", "runs"))
        numbers = ", ".join(f"{key} {value:g}" for key, value in ran[0]["numbers"].items())
        reached = [
            ", ".join(f"{r['episodes']:,}" if r["episodes"] else "not reached" for r in rows)
            for rows in (tried, ran)
        ]
        cells.append([algo, numbers, *reached])
    return markdown("algorithm | settings of the best trial | trials | seed 0, 1, 2", cells)


def golden(found: Row) -> str:
    """Return how many recorded cases of τ-bench's retail agree, by split."""
    cells = []
    for part in ("observations", "reward", "database", "executed", "verdict"):
        keys = [f"retail_{split}_golden_{part}" for split in ("dev", "train")]
        equal = [f"{found[f'{k}_equal']:.0f} of {found[f'{k}_recorded']:.0f}" for k in keys]
        cells.append([part, *equal])
    return markdown("equal to the official code | dev | train", cells)


def differences(env: str) -> str:
    """Return the differences of all pairs of algorithms that play, row less column, the best first.
    Bold ones keep a p-value below 0.05 with the correction of Holm 1979 for all pairs."""
    found = [r for r in configurations(load(env)) if not (_studies(r[0]) or _spoils(r[0]))]
    found.sort(key=lambda runs: -mean(runs, "final"))
    names = [name_of(runs) for runs in found]
    pairs = list(combinations(range(len(found)), 2))
    finals = [by_task(runs, "final") for runs in found]
    tested = {(i, j): paired_test(finals[i], finals[j]) for i, j in pairs}
    certain: set[tuple[int, int]] = set()
    for done, pair in enumerate(sorted(pairs, key=lambda pair: tested[pair][1])):
        if tested[pair][1] * (len(pairs) - done) >= SIGNIFICANT:
            break
        certain.add(pair)
    cells = []
    for i, name in enumerate(names[:-1]):
        cell = [name, *([""] * i)]
        for j in range(i + 1, len(names)):
            text = points(tested[i, j][0])
            cell.append(f"**{text}**" if (i, j) in certain else text)
        cells.append(cell)
    return markdown(" | ".join(["points", *names[1:]]), cells)


def paired_test(
    ours: Mapping[int, seeds.Outcomes], theirs: Mapping[int, seeds.Outcomes]
) -> tuple[float, float]:
    """Return the mean difference, and its two-sided p-value by the t-test that belongs to the
    interval of `seeds.paired_difference`."""
    difference, groups = seeds.paired_errors(ours, theirs) or (0.0, [])
    error, freedom = standard_error(groups)
    t = abs(difference) / error if error else math.inf if difference else 0.0
    return difference, 2 * float(stats.t.sf(t, freedom))


# figures in sentences


@dataclass(frozen=True)
class Figures:
    """Figures of one kind by key, for `{kind[ENV NAME]}` in a template. `find` takes the
    environment and the rest of the key."""

    find: Callable[[str, str], float | str]

    def __getitem__(self, key: str) -> float | str:
        return self.find(*key.split(" ", 1))


def named(env: str, name: str, split: str = "test") -> Runs:
    """Return the runs of the configuration with this name, or `NAME of DEMONSTRATIONS`. Raises
    SystemExit if there is not exactly one."""
    rows = load("smollm2" if env in PRETRAINED else env)
    rows = [row for row in rows if env not in PRETRAINED or row["env"] == env]
    rows += [after_short_training(row) for row in rows if "short" in row]
    name, _, demos = name.partition(" of ")
    rows = [row for row in rows if not demos or str(row["demos"]) == demos]
    found = [runs for runs in configurations(rows, split) if name_of(runs) == name]
    if len(found) != 1:
        raise SystemExit(f"{env} has {len(found)} configurations {name}")
    return sorted(found[0], key=lambda row: row["seed"])


def of_seeds(key: str, split: str = "test") -> Figures:
    """Return the means of a value over seeds."""
    return Figures(lambda env, name: mean(named(env, name, split), key))


def gain(env: str, name: str) -> str:
    """Return the gain in points over the start, with its interval if tasks are recorded."""
    runs = named(env, name)
    if any("final_by_task" not in row for row in runs):
        return points(fmean(gains(runs))).replace("+", "")
    return unsigned(seeds.paired_difference(by_task(runs, "final"), by_task(runs, "base")))


def gains_by_seed(env: str, name: str) -> str:
    """Return the gain of each seed in points, such as `15.3 and 27.0`."""
    return " and ".join(map(points, gains(named(env, name)))).replace("+", "")


def difference(env: str, names: str) -> str:
    """Return the difference of `NAME less OTHER` in points with its interval."""
    sides = [by_task(named(env, name), "final") for name in names.split(" less ")]
    return unsigned(seeds.paired_difference(*sides))


def difference_on_train(env: str, names: str) -> str:
    """Return the same on train tasks."""
    return unsigned(paired_by_seed(*(named(env, name, "train") for name in names.split(" less "))))


def unsigned(found: Interval | None) -> str:
    """Return a difference in points and its interval without plus signs."""
    return with_interval(found, points).replace("+", "")


def times(env: str, names: str) -> float:
    """Return the ratio of the seconds of `NAME over OTHER`."""
    ours, theirs = (cost(named(env, name)) for name in names.split(" over "))
    return ours / theirs


def critic(env: str, what: str) -> float:
    """Return the mean of a critic's metric over the seeds, for `NAME METRIC STEP`."""
    name, metric, step = what.rsplit(" ", 2)
    rows = load(f"{'smollm2' if env in PRETRAINED else env}_critic")
    return fmean(
        row[metric] for row in rows
        if row["env"] == env and name_of([row]) == name and row["step"] == int(step)
    )  # fmt: skip


def long_run(env: str, what: str) -> float:
    """Return the success on `val` of a long run, for `NAME TRIAL STEP`."""
    name, trial, step = what.rsplit(" ", 2)
    (row,) = (
        row for row in load(f"{env}_trials")
        if (row["trial"], row["step"]) == (trial, int(step))
        and (row["variant"] or row["algo"]) == name
    )  # fmt: skip
    return row["val"]


SENTENCES = {
    "start": of_seeds("base"), "success": of_seeds("final"), "greedy": of_seeds("final_greedy"),
    "success_on_train": of_seeds("final", "train"),
    "seconds": Figures(lambda env, name: cost(named(env, name))), "times": Figures(times),
    "gain": Figures(gain), "difference": Figures(difference),
    "difference_on_train": Figures(difference_on_train),
    "mean_gain": Figures(lambda env, name: fmean(gains(named(env, name)))),
    "least_gain": Figures(lambda env, name: min(gains(named(env, name)))),
    "gains": Figures(gains_by_seed),
    "critic": Figures(critic), "long_run": Figures(long_run),
}  # fmt: skip


# pages


def page() -> str:
    """Return docs/results.md."""
    flat = ("self_ac_cost", "math_grader", "tau_exactness", "sweep", "report", "practice")
    flat += (
        "stepagent_cost",
        "real_models",
        "delayed_credit",
        "diagnostics",
        "diagnostics_smollm2",
        "export",
    )
    parts = {
        **{env: env_learning(env) for env in ENVIRONMENTS},
        "demonstrations": by_demonstrations(load("stepagent")),
        **{f"differences_{env}": differences(env) for env in REPEATED},
        "tuning": tuning(),
        "trials": trial_tables(),
        **{env: pretrained(env) for env in PRETRAINED if (RECORDS / f"{env}_trials.json").exists()},
        "written": critics("nlac/brier", WRITTEN),
        "scalar": critics("critic/brier", SCALAR),
        "critic_quality": critic_quality(),
        "delayed_credit_table": delayed_credit(load("delayed_credit")),
        "golden": golden(load("tau_exactness")),
        **{name: load(name) for name in flat},
    }
    used = {name.split("[")[0] for _, name, _, _ in Formatter().parse(text_of("results")) if name}
    if unused := parts.keys() - used:
        raise SystemExit(f"the page does not use {', '.join(unused)}")
    return filled(text_of("results"), parts)


def findings(template: str) -> str:
    """Return the text of docs/findings.md or of the findings in README.md."""
    return filled(
        text_of(template), {file.stem: load(file.stem) for file in RECORDS.glob("*.json")}
    )


class Percent(Formatter):
    """Formats as `str.format` does, percent in addition, and with typographic minus signs."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.endswith("p"):
            value, format_spec = 100 * value, f"{format_spec[:-1]}f"
        text = format(value, format_spec)
        return text if isinstance(value, str) else minus(text)


def text_of(name: str) -> str:
    """Return the template of a page."""
    return (TEXTS / f"{name}.md").read_text()


def filled(template: str, parts: Mapping[str, Any]) -> str:
    """Return a template with its tables and figures, in lines of at most WIDTH characters."""
    text = Percent().vformat(template, (), {**SENTENCES, **parts})
    return "\n\n".join(map(wrapped, text.rstrip("\n").split("\n\n"))) + "\n"


def wrapped(block: str) -> str:
    """Return a paragraph or a list in lines of at most WIDTH characters; other blocks are
    unchanged."""
    if block.startswith("- "):
        return "\n".join(map(_fill, block.replace("\n- ", "\0- ").split("\0")))
    if not block[0].isalpha() and block[0] not in "`*":
        return block
    return block if block.startswith("```") else _fill(block)


def _fill(text: str) -> str:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(
        " ".join(text.split()), WIDTH, subsequent_indent=indent, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def pages() -> dict[Path, str]:
    """Return the text of each page that this script writes."""
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text().partition(README_HEADING)
    _, heading, after = rest.partition("\n## ")
    section = f"{README_HEADING}\n\n{findings('readme')}"
    return {
        ROOT / "docs" / "results.md": page(),
        ROOT / "docs" / "findings.md": findings("findings"),
        readme: f"{before}{section}{heading}{after}",
    }


def _studies(row: Row) -> bool:
    return row["demos"] != "" or row["init"] != "base"


def _spoils(row: Row) -> bool:  # or is NLAC after as many updates
    added = {name.partition("-")[2] for name in (PLAIN_ANSWER, *FORECASTS)}
    controls = (*CONTROLS, OWN_PLAY, *EQUAL_INFORMATION, *added)
    return row["variant"] in controls or row["variant"].endswith("_updates")


SHOWN = (
    ("By play, from the base:", lambda row: not _studies(row) and not _spoils(row)),
    ("From demonstrations of the expert, and on from that SFT:", _studies),
)


def main() -> int:
    """Write the pages, or print which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if out of date")
    is_check = parser.parse_args().check
    stale = [(file, text) for file, text in pages().items() if file.read_text() != text]
    for file, text in stale:
        if is_check:
            print(f"{file.name} is out of date: make results-page")
        else:
            file.write_text(text)
    return int(is_check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
