"""A comparison as cells of text, for the terminal and for the page; shares are given in percent."""

from __future__ import annotations

from collections.abc import Callable

from agentrl_cli.core.statistics import Interval
from agentrl_cli.core.terminal import safe
from agentrl_cli.report.compare import Comparison, Figures

MIN_RUNS_FOR_IQM = 4  # with fewer it is the mean
Cells = list[list[str]]
Columns = dict[str, Callable[[Figures], str]]  # headers, each with what its cells show of a row


def results(comparison: Comparison) -> Cells:
    """Header and rows: base, final, all seeds, gain, IQM, the difference from the reference."""
    rows, reference = comparison.rows, comparison.reference
    columns: Columns = {
        "group": lambda row: row.group,
        "seeds": lambda row: " ".join(map(str, row.seeds)),
        "base": lambda row: share(row.base and row.base.mean),
        "final [95 %]": lambda row: interval(row.final),
        "each seed": lambda row: " ".join(map(share, row.scores)),
        "gain [95 %]": lambda row: interval(row.gain, signed=True),
    }
    if any(len(row.scores) >= MIN_RUNS_FOR_IQM for row in rows):
        columns["IQM [95 %]"] = lambda row: interval(row.iqm)
    if reference is not None:
        columns[f"less {reference} [95 %]"] = lambda row: interval(row.difference, signed=True)
        columns[f"P(above {reference})"] = lambda row: probability(row.improvement)
    return _cells(columns, rows)


def costs(comparison: Comparison) -> Cells:
    """Header and rows: what a run cost, and what it took to reach the threshold."""
    rows = comparison.rows
    threshold = next((row.efficiency.threshold for row in rows if row.efficiency), None)
    columns: Columns = {
        "group": lambda row: row.group,
        "episodes": lambda row: count(row.cost["episodes"]),
        "tokens played": lambda row: count(row.cost["tokens_played"]),
        "tokens read": lambda row: count(row.cost["tokens_read"]),
        "seconds": lambda row: count(row.cost["seconds"]),
        "+ evaluation": lambda row: count(row.cost["seconds_eval"]),
    }
    if threshold is not None:
        to = f"to {share(threshold)} %"
        columns[f"episodes {to}"] = lambda row: count(row.efficiency and row.efficiency.episodes)
        columns[f"seconds {to}"] = lambda row: count(row.efficiency and row.efficiency.seconds)
        columns["reached by"] = _reached
    return _cells(columns, rows)


def passes(comparison: Comparison) -> Cells:
    """Header and rows: pass@k and pass^k; the header alone where tasks were played once."""
    names = list(dict.fromkeys(name for row in comparison.rows for name in row.passes))
    columns: Columns = {"group": lambda row: row.group}
    for name in sorted(names, key=lambda name: (name[:5], int(name[5:]))):  # by kind, then k
        columns[name] = lambda row, name=name: interval(row.passes.get(name))
    return _cells(columns, comparison.rows if names else [])


def remarks(comparison: Comparison) -> list[str]:
    """How the numbers are meant, and the noise they must exceed."""
    lines = [
        f"Success on {comparison.split} in %. Intervals resample tasks, and seeds where there are"
        " several; with two or three seeds they are too narrow for a new seed."
    ]
    if (noise := comparison.noise) is None:
        lines.append("Noise between seeds: unknown, no configuration has two finished runs.")
    else:
        lines.append(
            f"Noise between seeds: {share(noise.deviation)} points (pooled standard deviation,"
            f" {noise.freedom} degrees of freedom); two single runs differ by more than"
            f" {share(noise.least_difference)} points only once in twenty."
        )
    if broken := [f"{row.group} ({share(row.failed)} %)" for row in comparison.rows if row.failed]:
        lines.append(f"Episodes that broke count as lost: {', '.join(broken)}.")
    if few := [row.group for row in comparison.rows if len(row.scores) < 3]:
        lines.append(f"Fewer than three seeds, leads and no results: {', '.join(few)}.")
    return lines


def markdown(comparison: Comparison) -> list[str]:
    """The lines of a Markdown table: every finished group with each seed's final and its interval,
    the mean gain and seconds. A group of other seeds than the most names its own."""
    usual = max((row.seeds for row in comparison.rows), key=len, default=[])
    columns: Columns = {
        "algorithm": lambda row: row.group + ("" if row.seeds == usual else _seeds(row.seeds)),
        "base, %": lambda row: share(row.base and row.base.mean),
        f"final, %, seeds {_listed(usual)}": lambda row: ", ".join(map(interval, row.intervals)),
        "gain, points": lambda row: share(row.gain and row.gain.mean, signed=True),
        "training seconds": lambda row: count(row.cost["seconds"]),
    }
    header, *rows = _cells(columns, comparison.rows)
    return [_markdown_row(header), "|" + "---|" * len(header), *map(_markdown_row, rows)]


def draw(cells: Cells, title: str, width: int | None = None) -> str:
    """The cells as a table for a terminal; what runs are called cannot move the cursor."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(safe(title), style="bold"), box=box.SIMPLE_HEAD, title_justify="left")
    for name in cells[0]:
        justify = "right" if table.columns else "left"
        table.add_column(Text(safe(name)), justify=justify, overflow="fold")
    for row in cells[1:]:
        table.add_row(*(Text(safe(cell)) for cell in row))
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip("\n")


def markdown_cell(text: str) -> str:
    """A text as one cell of a Markdown table."""
    return safe(text).replace("\n", " ").replace("|", "\\|")


def interval(value: Interval | None, signed: bool = False) -> str:
    """`40.8 [33.8, 47.8]`, or a dash."""
    if value is None:
        return "–"
    mean, low, high = (share(x, signed) for x in (value.mean, value.low, value.high))
    return f"{mean} [{low}, {high}]"


def share(value: float | None, signed: bool = False) -> str:
    """A share in percent with one decimal, or a dash."""
    return "–" if value is None else f"{100 * value:{'+' if signed else ''}.1f}"


def probability(value: Interval | None) -> str:
    """`0.75 [0.00, 1.00]`, or a dash."""
    return "–" if value is None else f"{value.mean:.2f} [{value.low:.2f}, {value.high:.2f}]"


def count(value: float | None) -> str:
    """A whole number with thousands apart, or a dash."""
    return "–" if value is None else f"{value:,.0f}"


def _markdown_row(row: list[str]) -> str:
    return f"| {' | '.join(map(markdown_cell, row))} |"


def _seeds(seeds: list[int]) -> str:
    return f" (seed{'s' if len(seeds) > 1 else ''} {_listed(seeds)})"


def _listed(seeds: list[int]) -> str:
    return ", ".join(map(str, seeds))


def _reached(row: Figures) -> str:
    return f"{row.efficiency.reached} of {row.efficiency.runs}" if row.efficiency else "–"


def _cells(columns: Columns, rows: list[Figures]) -> Cells:
    return [list(columns), *([cell(row) for cell in columns.values()] for row in rows)]
