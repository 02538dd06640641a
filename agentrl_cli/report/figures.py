"""Figures of a comparison, drawn by matplotlib: learning curves, final results, costs, metrics."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.statistics import Array
from agentrl_cli.core.terminal import safe
from agentrl_cli.report import seeds
from agentrl_cli.report.compare import SMOOTHED_UPDATES, Section
from agentrl_cli.report.records import PHASES, SHARE, Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = ("episodes", "gradient steps", "seconds")
STYLE = Path(__file__).parent / "figures.mplstyle"
POINTS = 80  # of a mean of curves without common points
MIN_RUNS_FOR_BAND = 3
MAX_MARKERS = 12  # of a line; longer lines have none
CHARACTERS_PER_INCH = 12  # of a label
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B4C9A", "#7A7A7A")
DASHES = ("-", "--", "-.", ":")
PHASE_COLOURS = ("#4C78A8", "#F2A65A", "#59A68F", "#B8B8B8")
GREY = "#8a949e"


@dataclass(frozen=True)
class Line:
    """The curve of one run."""

    xs: Array  # [points]
    ys: Array  # [points]


Curves = dict[str, list[Line]]  # the lines of the runs of each label


@dataclass(frozen=True)
class Panel:
    """One plot of a figure. A logarithmic axis starts at the first point above 0."""

    title: str
    curves: Curves
    x_label: str = ""
    y_label: str = ""
    is_logarithmic: bool = False
    is_share: bool = True  # values lie between 0 and 1
    has_points: bool = False


def figures(section: Section, **metrics: Sequence[str]) -> dict[str, str]:
    """Return the figures of a section as SVG by name: finals, curves, costs, and each of `metrics`.
    Figures without data are left out."""
    found = {"curves": svg(draw, learning_curves(section), len(AXES), (3.4, 2.5))}
    if section.rows:
        found["finals"] = svg(draw_finals, section)
        found["costs"] = svg(draw_costs, section)
    for name, keys in metrics.items():
        panels = [
            Panel(key, curves, "step", is_share=SHARE.fullmatch(key) is not None, has_points=True)
            for key in keys
            if (curves := _curves(section, lambda record, key=key: _metric(record, key)))
        ]
        found[name] = svg(draw, panels, min(4, len(panels)), (2.55, 2.1))
    return {name: text for name, text in found.items() if text}


@contextmanager
def style() -> Iterator[None]:
    """Draw in the style of reports. Raises UserError without matplotlib."""
    try:
        import matplotlib as mpl
        import matplotlib.figure
    except ImportError:
        line = "reports need matplotlib; run pip install 'agentrl-cli[report]'"
        raise UserError(line, code="missing-package") from None
    with mpl.rc_context(fname=STYLE):
        yield


def svg(draw_figure: Callable[..., Figure], *arguments: Any) -> str:
    """Return a drawn figure as SVG with text as text and coordinates in hundredths of a point.
    Equal numbers give equal bytes. Empty if nothing is drawn. Raises UserError without
    matplotlib."""
    buffer = io.StringIO()
    with style():
        if arguments[0] != []:
            draw_figure(*arguments).savefig(buffer, format="svg", metadata={"Date": None})
    text_or_number = re.compile(r"(<text\b.*?</text>)|\d+\.\d{3,}", re.DOTALL)
    return text_or_number.sub(lambda m: m[1] or f"{float(m[0]):.2f}", buffer.getvalue())


def learning_curves(section: Section) -> list[Panel]:
    """Return success against episodes, gradient steps and seconds: of evaluations in the first row,
    of training episodes (mean of five updates) in the second one."""
    panels = []
    for evaluated in (True, False):
        name = f"{section.split}, evaluated" if evaluated else "train"
        split = section.split if evaluated else None
        for axis in AXES:
            label = f"success ({name})" if axis == AXES[0] else ""
            if curves := _curves(section, lambda record, a=axis, s=split: _success(record, a, s)):
                panels.append(Panel("", curves, axis, label, has_points=evaluated))
    return panels


def draw(panels: Sequence[Panel], across: int, size: tuple[float, float]) -> Figure:
    """Draw panels in rows; each label has one colour. `size` is that of a panel in inches."""
    labels = list(dict.fromkeys(label for panel in panels for label in panel.curves))
    down = math.ceil(len(panels) / across)
    figure = _figure(max(6.0, size[0] * across), size[1] * down + 0.5)
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for axis, panel in zip(axes, panels, strict=False):
        for label, lines in panel.curves.items():
            _mean_line(axis, lines, label, labels.index(label), panel.has_points)
        axis.set_title(_plain(panel.title))
        axis.set_xlabel(panel.x_label)
        axis.set_ylabel(panel.y_label)
        if panel.is_share:
            axis.set_ylim(0, 1)
            axis.yaxis.set_major_formatter(_percent())
        if panel.is_logarithmic:
            axis.set_xscale("log")
            lines = [line for lines in panel.curves.values() for line in lines]
            axis.set_xlim(left=min(line.xs[line.xs > 0].min() for line in lines))
        elif panel.x_label:
            axis.set_xlim(left=0)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    _legend(figure, axes)
    return figure


def draw_finals(section: Section) -> Figure:
    """Draw the final success of each group with its interval, its seeds and its base."""
    rows = section.rows
    numbers = {group.label: number for number, group in enumerate(section.groups)}
    figure, axis = _bars([row.group for row in rows], 0.95 + 0.42 * len(rows))
    for number, row in enumerate(rows):
        y, colour = len(rows) - 1 - number, COLOURS[numbers[row.group] % len(COLOURS)]
        axis.plot([row.final.low, row.final.high], [y, y], color=colour, lw=6, alpha=0.28,
                  solid_capstyle="round")  # fmt: skip
        axis.scatter(row.scores, [y] * len(row.scores), s=22, color=colour, zorder=3,
                     edgecolors="white", linewidths=0.6)  # fmt: skip
        axis.plot([row.final.mean] * 2, [y - 0.22, y + 0.22], color=colour, lw=2.2, zorder=2)
        if row.base is not None:
            axis.plot([row.base.mean] * 2, [y - 0.3, y + 0.3], color=GREY, lw=1.2, ls=":")
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.set_xlabel(f"final success ({section.split}); dots: seeds, bar: 95 %, dotted: base")
    axis.set_xlim(0, 1)
    axis.xaxis.set_major_formatter(_percent())
    axis.locator_params(axis="x", nbins=7)
    return figure


def draw_costs(section: Section) -> Figure:
    """Draw the mean seconds of a run by phase."""
    rows = section.rows
    figure, axis = _bars([row.group for row in rows], 1.15 + 0.36 * len(rows))
    left, ys = np.zeros(len(rows)), np.arange(len(rows))[::-1]
    for phase, colour in zip(PHASES, PHASE_COLOURS, strict=True):
        seconds = np.array([row.cost[f"seconds_{phase}"] for row in rows])
        axis.barh(ys, seconds, left=left, height=0.62, color=colour, label=phase)
        left += seconds
    axis.set_xlabel("seconds of a run (mean over seeds)")
    _legend(figure, [axis])
    return figure


def _curves(section: Section, line_of: Callable[[Record], Line | None]) -> Curves:
    found = {
        group.label: [line for record in group.records if (line := line_of(record)) is not None]
        for group in section.groups
    }
    return found if any(found.values()) else {}


def _success(record: Record, axis: str, split: str | None) -> Line | None:
    """Return the success of each evaluation of a split, or the smoothed one of training."""
    if split is None:
        if "episodes/success" not in record.columns:
            return None
        success = list(record.column("episodes/success"))
        return Line(record.axis(axis), np.array(seeds.moving_average(success, SMOOTHED_UPDATES)))
    scores = {step: record.score(step, split) for step in sorted(record.evaluations)}
    known = {step: score for step, score in scores.items() if score is not None}
    steps, xs = (np.concatenate([[0.0], points]) for points in (record.steps, record.axis(axis)))
    line = Line(np.interp(list(known), steps, xs), np.array(list(known.values())))
    return line if known else None


def _metric(record: Record, name: str) -> Line | None:
    """Return a metric by step, from evaluations if they have it, else from updates."""
    steps = [step for step in sorted(record.evaluations) if name in record.evaluations[step]]
    if steps:
        values = [record.evaluations[step][name] for step in steps]
        return Line(np.array(steps, float), np.array(values))
    values = record.columns.get(name, np.full(len(record.steps), math.nan))
    known = ~np.isnan(values)
    return Line(record.steps[known], values[known]) if known.any() else None


def _mean_line(axis: Axes, lines: list[Line], label: str, number: int, has_points: bool) -> None:
    """Draw the runs as thin lines, their mean, and its band from three runs on."""
    if not lines:
        return
    colour = COLOURS[number % len(COLOURS)]
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    xs = lines[0].xs
    if not all(np.array_equal(line.xs, xs) for line in lines):
        first, last = max(line.xs[0] for line in lines), min(line.xs[-1] for line in lines)
        xs = np.linspace(first, last, POINTS)
    rows = np.array([np.interp(xs, line.xs, line.ys) for line in lines])  # [runs, points]
    axis.plot(xs, rows.mean(0), dash, color=colour, label=_plain(label))
    if len(lines) >= MIN_RUNS_FOR_BAND:
        low, high = seeds.band(rows)
        axis.fill_between(xs, low, high, color=colour, alpha=0.16, lw=0)
    form = "o-" if has_points and len(xs) <= MAX_MARKERS else "-"
    for line in lines:
        axis.plot(line.xs, line.ys, form, color=colour, alpha=0.45, lw=0.6, ms=2.8, mew=0)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _bars(labels: list[str], height: float) -> tuple[Figure, Axes]:
    """Return an empty figure with a row for each label."""
    figure = _figure(min(14.0, 6.6 + max(map(len, labels)) / CHARACTERS_PER_INCH), height)
    axis = figure.subplots()
    axis.set_yticks(range(len(labels)), [_plain(label) for label in reversed(labels)])
    axis.grid(axis="y", visible=False)
    return figure, axis


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Put one legend above all axes, and make the figure higher for each further row of it."""
    entries: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        entries |= {label: handle for label, handle in zip(labels, handles, strict=True)}
    room = figure.get_figwidth() * CHARACTERS_PER_INCH // (max(map(len, entries), default=0) + 6)
    columns = int(max(1, min(room, len(entries))))
    figure.legend(
        list(entries.values()), list(entries), loc="outside upper left", ncols=columns,
        frameon=False, handlelength=1.6, borderaxespad=0.2,
    )  # fmt: skip
    rows = math.ceil(len(entries) / columns)
    figure.set_figheight(figure.get_figheight() + 0.19 * max(0, rows - 1))


def _percent() -> Any:
    from matplotlib.ticker import PercentFormatter

    return PercentFormatter(1.0)


def _plain(text: str) -> str:
    """Return printable text without formulas, which a pair of dollar signs would mark."""
    return safe(text).replace("$", r"\$")
