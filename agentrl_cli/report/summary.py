"""Short texts about runs for the terminal: the end of a run, `agentrl ls` and NLAC's critique."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.statistics import Interval
from agentrl_cli.core.terminal import safe, wrapped
from agentrl_cli.report.records import evaluated_splits, read_record, success_interval
from agentrl_cli.report.seeds import paired_difference
from agentrl_cli.runs.checkpoints import kept_evaluation
from agentrl_cli.runs.run import Run

DASH = "–"  # a cell without a value
NARROW = 60  # columns of a terminal from which a table may break words, rather than be stacked
PIPE_WIDTH = 10_000  # characters of a line if the output is not a terminal
LISTED = ["run", "status", "step", "reward", "eval", "error"]
Cells = list[list[str]]  # a header and rows
Row = dict[str, Any]
Figures = dict[str, float]  # metrics by name


def table(cells: Cells, title: str = "", width: int | None = None) -> list[str]:
    """Return the lines of a table, by default as wide as the terminal. With a title, lines have
    styles in a terminal, and numbers are aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        title=Text(safe(title), style="bold") if title else None, title_justify="left",
        box=box.SIMPLE_HEAD if title else None, pad_edge=bool(title),
    )  # fmt: skip
    for position, name in enumerate(cells[0]):
        justify = "right" if title and position else "left"
        drawn.add_column(Text(safe(name)), justify=justify, overflow="fold")
    for row in cells[1:]:
        drawn.add_row(*(Text(safe(cell).replace("\n", " ")) for cell in row))
    plain = Console(width=PIPE_WIDTH, force_jupyter=False)  # in a notebook, too
    colours = "auto" if title else None
    console = Console(width=width, color_system=colours, force_jupyter=False)
    if width is None and not console.is_terminal:
        console = plain
    least = plain.measure(drawn).minimum  # without broken words
    if console.width < min(NARROW, least):
        return _stacked(cells, title, console.width)
    with console.capture() as captured:
        console.print(drawn)
    return [line.rstrip() for line in captured.get().rstrip("\n").split("\n")]


def _stacked(cells: Cells, title: str, width: int) -> list[str]:
    """Return the lines of a table for a narrow terminal: one line for each cell."""
    column = max(map(len, cells[0])) + 2
    lines = [safe(title)] if title else []
    for row in cells[1:]:
        lines += [""] if lines else []
        for name, cell in zip(cells[0], row, strict=True):
            first, *others = wrapped(safe(cell).replace("\n", " "), width, column)
            lines.append(f"{safe(name):<{column}}{first}".rstrip())
            lines += [f"{'':<{column}}{part}" for part in others]
    return lines


def share(value: float | None, signed: bool = False) -> str:
    """Return a share in percent with one decimal, or a dash."""
    return DASH if value is None else f"{100 * value:{'+' if signed else ''}.1f}"


def cell(value: Any) -> str:
    """Return a value as text: three decimals for floats, empty for None, the first line of text."""
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else str(value).partition("\n")[0]


# a folder of runs


def run_row(run: Run) -> Row:
    """Return the row of a run in `agentrl ls --json`. Reward and success are the last logged
    values. `lost` counts unreadable lines of metrics."""
    lines, unreadable = run.readable_metrics()

    def last(pattern: str) -> float | None:
        found = (line[key] for line in reversed(lines) for key in fnmatch.filter(line, pattern))
        return next(found, None)

    return {
        "run": run.name,
        "folder": str(run.folder),
        "status": run.status,
        "created": run.meta["created"],
        "step": max((line["step"] for line in lines), default=0),
        "reward": last("reward/mean"),
        "eval": last("eval/*_success"),
        "error": run.meta.get("error"),
        "lost": unreadable,
    }


def runs_table(rows: Sequence[Row], columns: Sequence[str] = LISTED) -> list[str]:
    """Return the lines of a table of rows."""
    return table([list(columns), *([cell(row.get(name)) for name in columns] for row in rows)])


# the end of a run


def final_table(run: Run) -> str:
    """Return base and trained success with their difference, the folder, and the next command."""
    lines = [*result_table(run), f"run {run.folder}", f"next: agentrl show {run.quoted_folder}"]
    return "\n".join(lines)


def result_table(run: Run) -> list[str]:
    """Return base and trained success with their difference; no line without an evaluation."""
    rows = [row for row in run.metrics() if any(key.startswith("eval/") for key in row)]
    if not rows:
        return []
    record = read_record(run)
    save_best = bool(record.config.get("save_best"))
    base, trained = None if rows[0]["step"] else rows[0], kept_evaluation(rows, save_best)
    gain = None
    if base is not None and trained is not base:
        before, after = record.outcomes(0) or {}, record.outcomes(trained["step"]) or {}
        gain = paired_difference({0: after}, {0: before})
    lines = comparison(base, trained, gain)
    if save_best:
        lines.append(f"trained: step {trained['step']}, the best on val, which is kept")
    return lines


def comparison(base: Row | None, trained: Row, gain: Interval | None = None) -> list[str]:
    """Return a line for each metric of each split. `base` is None without an evaluation before
    training. `gain`, paired by task, belongs to the first split."""
    lines = [["", "base", "trained", "difference"]]
    for position, split in enumerate(evaluated_splits(trained)):
        key = f"eval/{split}_success"
        known = [None if row is None else success_interval(row, split) for row in (base, trained)]
        cells = [
            f"{v.mean:.1%} [{100 * v.low:.1f}, {100 * v.high:.1f}]" if v else DASH for v in known
        ]
        change = DASH if base is None else share(trained[key] - base[key], signed=True)
        if gain is not None and not position:
            mean, low, high = (share(x, True) for x in (gain.mean, gain.low, gain.high))
            change = f"{mean} [{low}, {high}]"
        lines.append([f"{split} success", *cells, change])
        for name in ("turns_to_success", "greedy_success", "invalid", "repeated"):
            key = f"eval/{split}_{name}"
            if key in trained and (base is None or key in base):
                lines.append([f"{split} {name.replace('_', ' ')}", *_cells(base, trained, key)])
    return [f"{a:<24} {b:>18} {c:>18} {d:>20}" for a, b, c, d in lines]


def has_nothing_to_average(row: Row, key: str) -> bool:
    """Return whether a metric is a mean over won episodes, and none was won."""
    return key.endswith("turns_to_success") and not row.get(key.replace("turns_to_", ""))


def _cells(base: Row | None, trained: Row, key: str) -> list[str]:
    """Return base, trained and difference of a metric."""
    is_mean = key.endswith("turns_to_success")
    texts = [
        DASH if row is None or has_nothing_to_average(row, key)
        else f"{row[key]:{'.1f' if is_mean else '.1%'}}"
        for row in (base, trained)
    ]  # fmt: skip
    if base is None or DASH in texts:
        return [*texts, DASH]
    change = trained[key] - base[key]
    return [*texts, f"{change:+.1f}" if is_mean else share(change, signed=True)]


# accuracy of NLAC's critique and refinement; docs/metrics.md defines the metrics

CRITIQUE = ("critique/", "refinement/")  # prefixes of the metrics
MIN_RECALL = 0.5  # a coin that flags half of all actions finds as many faults
MAX_FALSE_POSITIVES = 0.3  # most first actions are sound: more would outnumber the faults found
MIN_TARGET_SHARE = 0.05  # of 192 replayed turns fewer than ten targets, lost in a step's noise
MIN_TURNS = 20  # a share of fewer turns has a standard error above 0.1
WEAKNESSES = Path(__file__).with_name("weaknesses.yaml")


def first_weakness(x: Figures) -> str | None:
    """Return the metric of the first weak part; a weak part also spoils those after it."""
    faulty, sound = turns_by_first_action(x)
    fixed, broken = x["refinement/fix_rate"] * faulty, x["refinement/break_rate"] * sound
    flags_too_many = x["critique/false_positive_rate"] > MAX_FALSE_POSITIVES
    checks = {
        "critique/recall": faulty > 0 and x["critique/recall"] < MIN_RECALL,
        "critique/false_positive_rate": sound > 0 and flags_too_many,
        "refinement/break_rate": broken > fixed,
        "refinement/target_share": x["refinement/target_share"] < MIN_TARGET_SHARE,
        "refinement/target_gain_low": x["refinement/target_gain_low"] < 0,
    }
    return next((metric for metric, is_weak in checks.items() if is_weak), None)


def turns_by_first_action(x: Figures) -> tuple[int, int]:
    """Return the numbers of turns with a faulty and with a sound first action."""
    faulty = round(x["critique/faulty"] * x["critique/turns"])
    return faulty, round(x["critique/turns"]) - faulty


def critique_accuracy(run: Run, step: int | None = None) -> Row:
    """Return the critique metrics of a step, by default the newest, and the first weak part.
    Raises UserError if there are none."""
    rows, _ = run.readable_metrics()
    measured = [row for row in rows if "critique/turns" in row and step in (None, row["step"])]
    if not measured:
        when = "" if step is None else f" at step {step}"
        line = f"run '{run.name}' has no critique metrics{when}; algo=nlac measures them at each"
        line += " evaluation if algo.diagnostics.num_states is above 0"
        raise UserError(line, code="no-critique")
    row = measured[-1]
    figures = {key: float(value) for key, value in row.items() if key.startswith(CRITIQUE)}
    weakness = None
    if metric := first_weakness(figures):
        weakness = {"metric": metric, **yaml.safe_load(WEAKNESSES.read_text())[metric]}
    return {"run": run.name, "step": row["step"], "figures": figures, "weakness": weakness}


def critique_table(accuracy: Row) -> list[str]:
    """Return the table of `critique_accuracy`, and the advice for the first weak part."""
    x: Figures = accuracy["figures"]
    turns, (faulty, sound) = round(x["critique/turns"]), turns_by_first_action(x)
    advice = "no part is weak"
    if weak := accuracy["weakness"]:
        advice = f"first weak part: {weak['part']} {weak['finding']}; {weak['remedy']}"
    title = f"{accuracy['run']}, step {accuracy['step']}: {turns} turns measured"
    if turns < MIN_TURNS:
        title += ", too few to judge; raise algo.diagnostics.num_states"
    rows = [
        ("policy", "critique/faulty", "faulty first actions", turns, ""),
        ("critique", "critique/recall", "flagged faulty actions", faulty, f"from {MIN_RECALL}"),
        ("critique", "critique/false_positive_rate", "flagged sound actions", sound,
         f"to {MAX_FALSE_POSITIVES}"),
        ("refinement", "refinement/fix_rate", "fixed faulty actions", faulty,
         "more turns than broken"),
        ("refinement", "refinement/break_rate", "broken sound actions", sound, ""),
        ("training targets", "refinement/target_share", "turns with a target", turns,
         f"from {MIN_TARGET_SHARE}"),
    ]  # fmt: skip
    cells = [[a, b, f"{x[key]:.2f}" if n else DASH, str(n), ok] for a, key, b, n, ok in rows]
    gain, low = x["refinement/target_gain"], x["refinement/target_gain_low"]
    targets, ok = round(x["refinement/target_share"] * turns), f"lower end from 0 ({low:+.2f})"
    cells.append(["training targets", "gain over play", f"{gain:+.2f}", str(targets), ok])
    header = ["part", "figure", "value", "of turns", "healthy"]
    return [title, "", *table([header, *cells]), "", advice]
