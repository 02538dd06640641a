"""Draw the figures in docs/images/ from the records in docs/results (`make pictures`).

`success` shows the test success of each method, `curves_ENV` success against episodes and seconds,
`smollm2` the success of each run of SmolLM2 before and after training, `trl_learning` the mean
reward of GRPO in TRL and here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.core.statistics import Interval
from agentrl_cli.report.figures import GREY, Line, Panel, draw, svg
from agentrl_cli.report.seeds import mean_success, moving_average
from bench.results import PLAYERS
from tools.results_page import (
    ENVIRONMENTS,
    MIN_TASKS,
    PRETRAINED,
    Row,
    by_task,
    configurations,
    load,
    mean,
    over_seeds,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PALE, GOOD, CRITIC = "#6b7780", "#00795a", "#0060a0"
METHODS = {  # algorithm and variant: label and colour, from bottom to top
    ("nlac", "nlac_paper"): ("NLAC, paper's rule", PALE),
    ("archer_small", ""): ("ArCHer, small", PALE),
    ("grpo", ""): ("GRPO", PALE),
    ("ppo", ""): ("PPO", PALE),
    ("rft", ""): ("RFT", PALE),
    ("self_ac", ""): ("Self-AC", GOOD),
    ("nlac", ""): ("NLAC", CRITIC),
}
STUDENTS = {  # of demonstrations
    ("sft", ""): ("SFT", PALE),
    ("stepagent_inverse", ""): ("StepAgent, inverse", GOOD),
    ("stepagent_implicit", ""): ("StepAgent, implicit", GOOD),
}


def panel(rows: Sequence[Row], axis: str) -> Panel:
    """Return the training success of every seed of each algorithm against `axis`."""
    curves = {
        algo: [
            Line(np.array(row[axis], float), np.array(row["success"]))
            for row in rows
            if row["algo"] == algo
        ]
        for algo in PLAYERS
    }
    label = f"{axis} of play and training"
    return Panel("", curves, label, "success, train tasks", axis == "seconds")


def figures() -> dict[str, str]:
    """Return the figures as SVG by name."""
    curves = {
        f"curves_{env}": [panel(load(f"{env}_curves"), axis) for axis in ("episodes", "seconds")]
        for env in ENVIRONMENTS
    }
    drawn = {name: svg(draw, panels, 2, (3.6, 2.6)) for name, panels in curves.items()}
    learning = {name: load(env) for env, name in ENVIRONMENTS.items()}
    drawn["trl_learning"] = svg(draw, [same_task()], 1, (6.0, 2.6))
    pretrained = {
        title: [row for row in load("smollm2") if row["env"] == env and row["split"] == "test"]
        for env, title in PRETRAINED.items()
    }
    drawn["smollm2"] = svg(draw_runs, {title: rows for title, rows in pretrained.items() if rows})
    return drawn | {"success": svg(draw_success, learning)}


def same_task() -> Panel:
    """Return the mean reward of each update and the three before it against the update, for every
    seed, learned with TRL and here."""
    curves = {
        {"trl": "TRL", "agentrl": "agentrl"}[side]: [
            Line(np.arange(4, len(run["rewards"]) + 1), np.array(averages(run["rewards"])))
            for run in runs.values()
        ]
        for side, runs in load("trl_learning").items()
    }
    return Panel("", curves, "update", "mean reward of 4 updates")


def averages(rewards: Sequence[float]) -> list[float]:
    """Return the mean of every four rewards in a row."""
    return moving_average(rewards, 4)[3:]


def draw_success(environments: dict[str, list[Row]]) -> Figure:
    """Draw the mean success of each method on test tasks with its 95 % interval. A line shows the
    success of the initial model; methods that learn from demonstrations stand below the others."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 6.0), layout="constrained")
    axes = list(figure.subplots(-(-len(environments) // 2), 2, sharex=True).flat)
    for axis, (title, rows) in zip(axes, environments.items(), strict=True):
        found = {(runs[0]["algo"], runs[0]["variant"]): runs for runs in configurations(rows)}
        methods = {key: shown for key, shown in (STUDENTS | METHODS).items() if key in found}
        for y, (method, (_, colour)) in enumerate(methods.items()):
            shown = success_of(found[method])
            ends = [[100 * (shown.mean - shown.low)], [100 * (shown.high - shown.mean)]]
            axis.errorbar(100 * shown.mean, y, xerr=ends, fmt="o", ms=4.5, color=colour, lw=1.6)
        students = sum(key in found for key in STUDENTS)
        axis.axhline(students - 0.5, color=GREY, lw=0.6, ls=":")
        axis.axvline(100 * mean(found[("grpo", "")], "base"), color=GREY, lw=0.8)
        axis.set_yticks(range(len(methods)), [label for label, _ in methods.values()])
        axis.set_title(title, loc="left", fontweight="bold")
        axis.spines["left"].set_visible(False)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="y", visible=False)
    for axis in axes[-2:]:
        axis.set_xlabel("success on test tasks, %")
    return figure


def success_of(runs: list[Row]) -> Interval:
    """Return the mean success of runs with its interval over seeds and tasks, or over seeds alone
    if the success of each task is not stored."""
    if all("final_by_task" in row for row in runs):
        return mean_success([*by_task(runs, "final").values()])
    return over_seeds([row["final"] for row in runs], 0.0)


def draw_runs(environments: dict[str, list[Row]]) -> Figure:
    """Draw the success of each run on test tasks: grey before training, then with its 95 % interval
    over tasks if these are not few."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2, 2.8 * len(environments)), layout="constrained")
    axes = figure.subplots(len(environments), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (title, rows) in zip(axes, environments.items(), strict=True):
        known = {(row["algo"], row["variant"]) for row in rows if row["init"] != "base"}
        methods = {key: shown for key, shown in (STUDENTS | METHODS).items() if key in known}
        for y, (method, (_, colour)) in enumerate(methods.items()):
            runs = [row for row in rows if (row["algo"], row["variant"]) == method]
            for place, run in enumerate(runs):
                at = y + 0.15 * (place - (len(runs) - 1) / 2)
                ends = [[run["final"] - run["low"]], [run["high"] - run["final"]]]
                shown = [[100 * value for value in end] for end in ends]
                error = shown if run["tasks"] >= MIN_TASKS else None
                axis.plot(100 * run["base"], at, "o", ms=4, color=GREY)
                axis.errorbar(100 * run["final"], at, xerr=error, fmt="o", ms=4, color=colour)
        axis.set_yticks(range(len(methods)), [label for label, _ in methods.values()])
        axis.set_title(title, loc="left", fontweight="bold")
        axis.grid(axis="y", visible=False)
    axes[-1].set_xlabel("success on test tasks, %, each seed\n(grey: before training)")
    return figure


def main() -> None:
    """Draw the figures."""
    drawn = figures()
    for name, text in drawn.items():
        (IMAGES / f"{name}.svg").write_text(text)
    print("docs/images:", ", ".join(drawn))


if __name__ == "__main__":
    main()
