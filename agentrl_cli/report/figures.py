"""Pictures of a comparison, drawn by matplotlib: learning curves, finals, cost, the critic. Each
function gives a figure, `svg` its text to embed. What the numbers are is decided elsewhere."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.statistics import Array
from agentrl_cli.report import seeds
from agentrl_cli.report.compare import PHASES, SMOOTHED_UPDATES, Comparison, Figures, World
from agentrl_cli.report.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = ("episodes", "gradient steps", "seconds")
POINTS = 80  # of a mean of curves that have no points in common
LETTERS_PER_INCH = 12  # of a label
MIN_RUNS_FOR_BAND = 3
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


@dataclass(frozen=True)
class Line:
    """The curve of one run."""

    xs: Array  # [points]
    ys: Array  # [points]


@dataclass(frozen=True)
class Panel:
    """One of the pictures beside each other: the curves of the runs by label, and what they are
    drawn against; on a logarithmic axis from the first point above 0."""

    title: str
    axis: str
    curves: dict[str, list[Line]]
    is_logarithmic: bool = False

    def axes(self) -> list[Array]:
        """Where the points of each run stand."""
        return [line.xs for lines in self.curves.values() for line in lines]


def curves(world: World) -> Figure | None:
    """Success against episodes, gradient steps and seconds: evaluations above, fresh training
    episodes below (mean of five updates); thick lines are means over seeds, bands their 95 %
    intervals, thin lines single runs. None where nothing was logged."""
    records = [record for group in world.groups for record in group.records]
    rows = []
    if any(record.evaluations for record in records):
        rows.append((_evaluated, f"{world.split}, evaluated"))
    if any("episodes/success" in record.columns for record in records):
        rows.append((_trained, "train, as played"))
    if not rows:
        return None
    figure, grid = _grid(len(rows), len(AXES), width=10.2, height=2.5 * len(rows) + 0.55)
    for axes, (read, title) in zip(grid, rows, strict=True):
        for axis, name in zip(axes, AXES, strict=True):
            _success_curves(axis, world, name, read)
            axis.set_xlabel(name if axes is grid[-1] else "")
        axes[0].set_ylabel(f"success ({title})")
    _legend(figure, grid[0][0])
    return figure


def learning_curves(panels: Sequence[Panel], across: int, success: str) -> Figure:
    """Success in each of the panels, `across` of them in a row; a label has one colour in all.
    `success` says whose it is."""
    labels = list(dict.fromkeys(label for panel in panels for label in panel.curves))
    down = math.ceil(len(panels) / across)
    figure, grid = _grid(down, across, width=3.6 * across, height=2.6 * down + 0.4)
    axes = [axis for row in grid for axis in row]
    for axis, panel in zip(axes, panels, strict=False):
        for label, lines in panel.curves.items():
            _mean_line(axis, lines, label, labels.index(label), points=False)
        axis.set_title(panel.title)
        axis.set_xlabel(panel.axis)
        _show_shares(axis)
        if panel.is_logarithmic:
            axis.set_xscale("log")
            axis.set_xlim(left=min(xs[xs > 0].min() for xs in panel.axes()))
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    for row in grid:
        row[0].set_ylabel(success)
    _legend(figure, *axes)
    return figure


def finals(world: World, comparison: Comparison) -> Figure | None:
    """Final success of each group with its interval, a dot for every seed, the base as a bar; each
    group has the colour of its curves."""
    rows = comparison.rows
    numbers = {group.label: number for number, group in enumerate(world.groups)}
    if not rows:
        return None
    figure, axis = _bars(rows, height=0.95 + 0.42 * len(rows))
    for number, row in enumerate(rows):
        y, colour = len(rows) - 1 - number, COLOURS[numbers[row.group] % len(COLOURS)]
        axis.plot([row.final.low, row.final.high], [y, y], color=colour, lw=6, alpha=0.28,
                  solid_capstyle="round")  # fmt: skip
        axis.scatter(row.scores, [y] * len(row.scores), s=22, color=colour, zorder=3,
                     edgecolors="white", linewidths=0.6)  # fmt: skip
        axis.plot([row.final.mean] * 2, [y - 0.22, y + 0.22], color=colour, lw=2.2, zorder=2)
        if row.base is not None:
            axis.plot([row.base.mean] * 2, [y - 0.3, y + 0.3], color="#8a949e", lw=1.2, ls=":")
    axis.set_yticks(range(len(rows)), [_plain(row.group) for row in reversed(rows)])
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.set_xlabel(f"final success ({comparison.split}); dots: seeds, bar: 95 %, dotted: base")
    axis.set_xlim(0, 1)
    axis.xaxis.set_major_formatter(_percent())
    axis.locator_params(axis="x", nbins=7)
    return figure


def costs(comparison: Comparison) -> Figure | None:
    """Mean seconds of a run, by phase."""
    rows = comparison.rows
    if not rows:
        return None
    figure, axis = _bars(rows, height=1.15 + 0.36 * len(rows))
    left, ys = np.zeros(len(rows)), np.arange(len(rows))[::-1]
    for phase, colour in zip(PHASES, PHASE_COLOURS, strict=True):
        seconds = np.array([row.cost[f"seconds_{phase}"] for row in rows])
        axis.barh(ys, seconds, left=left, height=0.62, color=colour, label=phase)
        left += seconds
    axis.set_yticks(ys, [_plain(row.group) for row in rows])
    axis.set_xlabel("seconds of a run (mean over seeds)")
    _legend(figure, axis)
    return figure


def trends(world: World, metrics: Sequence[str]) -> Figure | None:
    """Each metric against updates, a panel each: mean over the seeds of a group, with its band."""
    records = [record for group in world.groups for record in group.records]
    shown = [name for name in metrics if any(_metric(record, name) for record in records)]
    if not shown:
        return None
    across = min(4, len(shown))
    down = math.ceil(len(shown) / across)
    figure, axes = _grid(down, across, width=2.55 * across + 0.3, height=2.1 * down + 0.55)
    panels = [axis for row in axes for axis in row]
    for axis, name in zip(panels, shown, strict=False):
        for number, group in enumerate(world.groups):
            lines = [line for record in group.records if (line := _metric(record, name))]
            _mean_line(axis, lines, group.label, number, points=len(lines) < 3)
        axis.set_title(_plain(name))
        if is_share(name):
            axis.set_ylim(0, 1)
    for axis in panels[len(shown) :]:
        axis.set_axis_off()
    _legend(figure, *panels)
    return figure


def is_share(metric: str) -> bool:
    """Whether a metric lies within 0 and 1, so that its axis shows all of that."""
    name = metric.rpartition("/")[2]
    shares = ("brier", "hits", "false_alarms", "faulty", "mended", "spoiled", "valid_forecasts")
    return name in shares or name.endswith(("_share", "_optimal")) or name.startswith("auc_")


def svg(figure: Figure) -> str:
    """The picture as SVG, the same bytes for the same numbers."""
    buffer = io.StringIO()
    with _style():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _success_curves(axis: Axes, world: World, name: str, read: Callable[..., Line | None]) -> None:
    """Every group's runs against the axis of that name, by a reader of lines."""
    for number, group in enumerate(world.groups):
        lines = [line for record in group.records if (line := read(record, name, world.split))]
        _mean_line(axis, lines, group.label, number, points=read is _evaluated)
    _show_shares(axis)


def _plain(text: str) -> str:
    """The text with no formula in it, which a pair of dollar signs would begin and end."""
    return text.replace("$", r"\$")


def _show_shares(axis: Axes) -> None:
    """From the start on, and shares from 0 to 1 in per cent."""
    axis.set_xlim(left=0)
    axis.set_ylim(0, 1)
    axis.yaxis.set_major_formatter(_percent())


def _mean_line(axis: Axes, lines: list[Line], label: str, number: int, points: bool) -> None:
    """Every run as a thin line (and its points), their mean as far as all of them came, and from
    three runs on the mean's band."""
    if not lines:
        return
    colour = COLOURS[number % len(COLOURS)]
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    grid = _common_axis([line.xs for line in lines])
    rows = np.array([np.interp(grid, line.xs, line.ys) for line in lines])  # [runs, points]
    axis.plot(grid, rows.mean(0), dash, color=colour, label=_plain(label))
    if len(lines) >= MIN_RUNS_FOR_BAND:
        low, high = seeds.bootstrap_band(rows)
        axis.fill_between(grid, low, high, color=colour, alpha=0.16, lw=0)
    form = "o-" if points else "-"
    for line in lines:
        axis.plot(line.xs, line.ys, form, color=colour, alpha=0.45, lw=0.6, ms=2.8, mew=0)


def _common_axis(axes: list[Array]) -> Array:
    """The points of all runs where these are the same, else POINTS of them, from where the last
    begins to where the first ends."""
    if all(np.array_equal(xs, axes[0]) for xs in axes):
        return axes[0]
    return np.linspace(max(xs[0] for xs in axes), min(xs[-1] for xs in axes), POINTS)


def _evaluated(record: Record, axis: str, split: str) -> Line | None:
    """Evaluated success where it was measured, against an axis."""
    scores = {step: record.score(step, split) for step in sorted(record.evaluations)}
    known = {step: score for step, score in scores.items() if score is not None}
    if not known:
        return None
    steps = np.concatenate([[0.0], record.steps])
    xs = np.concatenate([[0.0], record.axis(axis)])
    return Line(np.interp(list(known), steps, xs), np.array(list(known.values())))


def _trained(record: Record, axis: str, split: str) -> Line | None:
    """Success of fresh episodes, smoothed, against an axis."""
    if "episodes/success" not in record.columns:
        return None
    success = list(record.column("episodes/success"))
    return Line(record.axis(axis), np.array(seeds.moving_average(success, SMOOTHED_UPDATES)))


def _metric(record: Record, name: str) -> Line | None:
    """A metric against updates, from the evaluations where these log it, else from the updates."""
    steps = [step for step in sorted(record.evaluations) if name in record.evaluations[step]]
    if steps:
        values = [record.evaluations[step][name] for step in steps]
        return Line(np.array(steps, float), np.array(values))
    if name not in record.columns:
        return None
    known = ~np.isnan(record.columns[name])
    return Line(record.steps[known], record.columns[name][known]) if known.any() else None


def _grid(down: int, across: int, width: float, height: float) -> tuple[Figure, list[list[Axes]]]:
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


def _percent() -> Any:
    from matplotlib.ticker import PercentFormatter

    return PercentFormatter(1.0)


def _legend(figure: Figure, *axes: Axes) -> None:
    entries: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        entries |= {label: handle for label, handle in zip(labels, handles, strict=True)}
    room = figure.get_figwidth() * LETTERS_PER_INCH // (max(map(len, entries), default=0) + 6)
    columns = int(max(1, min(room, len(entries))))
    figure.legend(
        list(entries.values()), list(entries), loc="outside upper left", ncols=columns,
        frameon=False, handlelength=1.6, borderaxespad=0.2,
    )  # fmt: skip
    rows = math.ceil(len(entries) / columns)
    figure.set_figheight(figure.get_figheight() + 0.19 * max(0, rows - 1))


def _bars(rows: list[Figures], height: float) -> tuple[Figure, Axes]:
    """An empty picture, wide enough for the labels of these rows, with no grid between them."""
    width = min(14.0, 6.6 + max(len(row.group) for row in rows) / LETTERS_PER_INCH)
    figure, ((axis,),) = _grid(1, 1, width, height)
    axis.grid(axis="y", visible=False)
    return figure, axis
