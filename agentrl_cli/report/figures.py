"""Pictures of a comparison, drawn by matplotlib: learning curves, finals, cost, the critic.

Each function gives a figure; `save` writes it as SVG and PNG, `svg` as text to embed. What the
numbers are is decided elsewhere.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.statistics import Array
from agentrl_cli.report import seeds
from agentrl_cli.report.compare import PHASES, SMOOTH, Comparison, Group, World
from agentrl_cli.report.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = ("episodes", "gradient steps", "seconds")
POINTS = 80  # of a curve
LETTERS = 12  # of a label in an inch
BANDED = 3  # runs from which a band is drawn
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B4C9A", "#7A7A7A")
DASHES = ("-", "--", "-.", ":")
PHASE_COLOURS = ("#4C78A8", "#F2A65A", "#59A68F", "#B8B8B8")
INK, PALE = "#22303c", "#d9dee3"
STYLE: Any = {
    "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "legend.fontsize": 8.5,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#8a949e",
    "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.grid": True, "grid.color": PALE, "grid.linewidth": 0.6, "axes.axisbelow": True,
    "figure.facecolor": "white", "svg.hashsalt": "agentrl", "svg.fonttype": "path",
    "font.family": "DejaVu Sans", "lines.linewidth": 1.7,
    "axes.formatter.limits": (-4, 6), "axes.formatter.use_mathtext": True,
}  # fmt: skip


def curves(world: World) -> Figure | None:
    """Success against episodes, gradient steps and seconds: evaluations above, fresh training
    episodes below (mean of five updates); thick lines are means over seeds, bands their 95 %
    intervals, thin lines single runs. None where nothing was logged."""
    rows = [name for name in ("evaluation", "training") if any(_drawn(world, name))]
    if not rows:
        return None
    figure, axes = _grid(len(rows), len(AXES), width=10.2, height=2.5 * len(rows) + 0.55)
    for row, what in enumerate(rows):
        for column, name in enumerate(AXES):
            for number, group in enumerate(world.groups):
                _curve(axes[row][column], group, what, name, world.split, number)
            axes[row][column].set_xlabel(name if row == len(rows) - 1 else "")
            axes[row][column].set_xlim(left=0)
            _share(axes[row][column])
        split = f"{world.split}, evaluated" if what == "evaluation" else "train, as played"
        axes[row][0].set_ylabel(f"success ({split})")
    _legend(figure, axes[0][0])
    return figure


def learning_curve(world: World) -> Figure:
    """Evaluated success against episodes alone, drawn as in `curves`."""
    figure, ((axis,),) = _grid(1, 1, width=7.2, height=3.4)
    for number, group in enumerate(world.groups):
        _curve(axis, group, "evaluation", AXES[0], world.split, number)
    axis.set_xlabel(f"training {AXES[0]}")
    axis.set_ylabel(f"success ({world.split})")
    axis.set_xlim(left=0)
    _share(axis)
    _legend(figure, axis)
    return figure


def finals(world: World, comparison: Comparison) -> Figure | None:
    """Final success of each group with its interval, a dot for every seed, the base as a bar; each
    group has the colour of its curves."""
    rows = comparison.rows
    numbers = {group.label: number for number, group in enumerate(world.groups)}
    if not rows:
        return None
    width = _beside([row.group for row in rows])
    figure, ((axis,),) = _grid(1, 1, width=width, height=0.95 + 0.42 * len(rows))
    for number, row in enumerate(rows):
        y, colour = len(rows) - 1 - number, COLOURS[numbers[row.group] % len(COLOURS)]
        axis.plot([row.final.low, row.final.high], [y, y], color=colour, lw=6, alpha=0.28,
                  solid_capstyle="round")  # fmt: skip
        axis.scatter(row.scores, [y] * len(row.scores), s=22, color=colour, zorder=3,
                     edgecolors="white", linewidths=0.6)  # fmt: skip
        axis.plot([row.final.mean] * 2, [y - 0.22, y + 0.22], color=colour, lw=2.2, zorder=2)
        if row.base is not None:
            axis.plot([row.base.mean] * 2, [y - 0.3, y + 0.3], color="#8a949e", lw=1.2, ls=":")
    axis.set_yticks(range(len(rows)), [row.group for row in reversed(rows)])
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel(f"final success ({comparison.split}); dots: seeds, bar: 95 %, dotted: base")
    axis.xaxis.set_major_formatter(_percent())
    axis.locator_params(axis="x", nbins=7)
    return figure


def costs(comparison: Comparison) -> Figure | None:
    """Mean seconds of a run, by phase."""
    rows = comparison.rows
    if not rows:
        return None
    width = _beside([row.group for row in rows])
    figure, ((axis,),) = _grid(1, 1, width=width, height=1.15 + 0.36 * len(rows))
    left = np.zeros(len(rows))
    places = np.arange(len(rows))[::-1]
    for phase, colour in zip(PHASES, PHASE_COLOURS, strict=True):
        spent = np.array([row.cost[f"seconds_{phase}"] for row in rows])
        axis.barh(places, spent, left=left, height=0.62, color=colour, label=phase)
        left += spent
    axis.set_yticks(places, [row.group for row in rows])
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("seconds of a run (mean over seeds)")
    _legend(figure, axis)
    return figure


def trends(world: World, metrics: Sequence[str]) -> Figure | None:
    """Each metric against updates, a panel each: mean over the seeds of a group, with its band."""
    shown = [
        name for name in metrics if any(_series(r, name) for g in world.groups for r in g.records)
    ]
    if not shown:
        return None
    across = min(4, len(shown))
    down = math.ceil(len(shown) / across)
    figure, axes = _grid(down, across, width=2.55 * across + 0.3, height=2.1 * down + 0.55)
    flat = [axis for row in axes for axis in row]
    for axis, name in zip(flat, shown, strict=False):
        for number, group in enumerate(world.groups):
            lines = [found for record in group.records if (found := _series(record, name))]
            _mean_line(axis, lines, group.label, number, points=len(lines) < 3)
        axis.set_title(name)
    for axis in flat[len(shown) :]:
        axis.set_axis_off()
    _legend(figure, *flat)
    return figure


def svg(figure: Figure) -> str:
    """The picture as SVG, the same bytes for the same numbers."""
    buffer = io.StringIO()
    with _style():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def save(figure: Figure, file: Path) -> None:
    """Write FILE.svg and FILE.png."""
    file.with_suffix(".svg").write_text(svg(figure))
    with _style():
        figure.savefig(file.with_suffix(".png"), dpi=160, metadata={"Software": None})


def _drawn(world: World, what: str) -> list[bool]:
    key = "episodes/success"
    return [
        bool(record.evaluations) if what == "evaluation" else key in record.columns
        for group in world.groups
        for record in group.records
    ]


def _curve(axis: Axes, group: Group, what: str, x: str, split: str, number: int) -> None:
    read = _evaluated if what == "evaluation" else _trained
    lines = [line for record in group.records if (line := read(record, x, split)) is not None]
    _mean_line(axis, lines, group.label, number, points=what == "evaluation")


def _mean_line(
    axis: Axes, lines: Sequence[tuple[Array, Array]], label: str, number: int, points: bool
) -> None:
    """Every run as a thin line (and its points), their mean as far as all of them came, and from
    three runs on the mean's band."""
    if not lines:
        return
    colour = COLOURS[number % len(COLOURS)]
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    grid = np.linspace(max(xs[0] for xs, _ in lines), min(xs[-1] for xs, _ in lines), POINTS)
    rows = np.array([np.interp(grid, xs, ys) for xs, ys in lines])
    axis.plot(grid, rows.mean(0), dash, color=colour, label=label)
    if len(lines) >= BANDED:
        low, high = seeds.band(rows)
        axis.fill_between(grid, low, high, color=colour, alpha=0.16, lw=0)
    for xs, ys in lines:
        axis.plot(xs, ys, "o-" if points else "-", color=colour, alpha=0.45, lw=0.6, ms=2.8, mew=0)


def _evaluated(record: Record, x: str, split: str) -> tuple[Array, Array] | None:
    """Evaluated success where it was measured, against x."""
    points = sorted((s, record.score(s, split)) for s in record.evaluations)
    known = [(step, score) for step, score in points if score is not None]
    if not known:
        return None
    steps = np.concatenate([[0.0], record.steps])
    spent = np.concatenate([[0.0], record.axis(x)])
    return np.interp([s for s, _ in known], steps, spent), np.array([y for _, y in known])


def _trained(record: Record, x: str, split: str) -> tuple[Array, Array] | None:
    """Success of fresh episodes, smoothed, against x."""
    if "episodes/success" not in record.columns:
        return None
    return record.axis(x), np.array(seeds.trailing(list(record.total("episodes/success")), SMOOTH))


def _series(record: Record, name: str) -> tuple[Array, Array] | None:
    """A metric against updates, from the evaluations where these log it, else from the updates."""
    measured = sorted((s, row[name]) for s, row in record.evaluations.items() if name in row)
    if measured:
        return np.array([s for s, _ in measured], float), np.array([y for _, y in measured])
    if name not in record.columns:
        return None
    known = ~np.isnan(record.columns[name])
    return (record.steps[known], record.columns[name][known]) if known.any() else None


def _grid(
    down: int, across: int, *, width: float, height: float
) -> tuple[Figure, list[list[Axes]]]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(
            "a report draws with matplotlib; pip install 'agentrl-cli[report]'"
        ) from None
    with _style():
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, [list(row) for row in figure.subplots(down, across, squeeze=False)]


def _style() -> Any:
    import matplotlib as mpl

    return mpl.rc_context(STYLE)


def _share(axis: Axes) -> None:
    axis.yaxis.set_major_formatter(_percent())


def _percent() -> Any:
    from matplotlib.ticker import PercentFormatter

    return PercentFormatter(1.0)


def _legend(figure: Figure, *axes: Axes) -> None:
    found: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        found |= {label: handle for label, handle in zip(labels, handles, strict=True)}
    room = figure.get_figwidth() * LETTERS // (max(map(len, found), default=0) + 6)
    columns = int(max(1, min(room, len(found))))
    figure.legend(
        list(found.values()), list(found), loc="outside upper left", ncols=columns,
        frameon=False, handlelength=1.6, borderaxespad=0.2,
    )  # fmt: skip
    rows = math.ceil(len(found) / columns)
    figure.set_figheight(figure.get_figheight() + 0.19 * max(0, rows - 1))


def _beside(labels: list[str]) -> float:
    """The width of a picture whose rows have these labels, in inches."""
    return min(14.0, 6.6 + max(map(len, labels)) / LETTERS)
