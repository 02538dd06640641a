"""Short texts about runs for the terminal: the end of a run, `agentrl ls` and NLAC's critique."""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.statistics import Interval
from agentrl_cli.core.terminal import safe, terminal_width, wrapped
from agentrl_cli.report.records import (
    ENVIRONMENT_NODES,
    IGNORED_WHEN_COMPARING,
    Record,
    evaluated_splits,
    read_record,
    success_interval,
)
from agentrl_cli.report.seeds import Outcomes, paired_difference
from agentrl_cli.runs.checkpoints import kept_evaluation
from agentrl_cli.runs.run import Run

DASH = "–"  # a cell without a value
SHOWN = (  # metrics of a split in tables besides success
    "turns_to_success", "greedy_success", "invalid", "repeated", "pass_hat_?", "pass_at_*",
    "majority_at_*",
)  # fmt: skip
NARROW = 60  # columns of a terminal from which a table may break words, rather than be stacked
PIPE_WIDTH = 10_000  # characters of a line if the output is not a terminal
LISTED = ["run", "status", "step", "reward", "eval"]
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
    """Return the lines of a table for a narrow terminal: the first cell of a row, and below it the
    others with the names of their columns."""
    lines = [safe(title)] if title else []
    for row in cells[1:]:
        first, *rest = (safe(cell).replace("\n", " ") for cell in row)
        lines += [*wrapped(first, width), *_pairs(cells[0][1:], rest, width)]
    return lines


def _pairs(names: list[str], cells: list[str], width: int) -> list[str]:
    """Return indented lines of `name cell` pairs, which are broken only if they do not fit."""
    line, lines = "", list[str]()
    for name, text in zip(names, cells, strict=True):
        pair = f"{safe(name)} {text}".strip() if text else ""
        if line and pair and len(line) + 2 + len(pair) > width - 2:
            lines, line = [*lines, line], ""
        line = ", ".join(filter(None, (line, pair)))
    found = [part for text in [*lines, line] if text for part in wrapped(text, width, 2)]
    return [f"  {part}" for part in found]


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
    """Return the lines of a table of rows, and below it the error of each run that has one."""
    lines = table([list(columns), *([cell(row.get(name)) for name in columns] for row in rows)])
    width = terminal_width()
    for row in rows if columns is LISTED else ():
        if row["error"]:
            lines += wrapped(f"{row['run']}: {cell(row['error'])}", width)
    return lines


# the end of a run, and an evaluation


@dataclass(frozen=True)
class Result:
    """The evaluation of a run that counts: the last, or the best with save_best=true. `base` is
    that before training, or None without one. `gain` is the difference in success on the first
    split, with an interval, paired by task; None if it is unknown."""

    base: Row | None
    trained: Row
    gain: Interval | None
    record: Record


def result(run: Run) -> Result | None:
    """Return the result of a run; None without an evaluation."""
    rows = [row for row in run.metrics() if any(key.startswith("eval/") for key in row)]
    if not rows:
        return None
    record = read_record(run)
    trained = kept_evaluation(rows, bool(record.config.get("save_best")))
    base = None if rows[0]["step"] else rows[0]
    gain = None
    if base is not None and trained is not base:
        gain = gain_over_base(record, record.outcomes(trained["step"]) or {})
    return Result(base, trained, gain, record)


def gain_over_base(record: Record, outcomes: Outcomes) -> Interval | None:
    """Return the difference of success by task from the evaluation before training."""
    return paired_difference({0: outcomes}, {0: record.outcomes(0) or {}})


def final_lines(run: Run, width: int | None = None) -> list[str]:
    """Return base and trained success with their difference, what it means, the folder, and the
    commands to go on with."""
    found, at = result(run), f"run {run.folder}"
    if found is None:
        show = f"agentrl show {run.quoted_folder}"
        return ["The run has no evaluation, so its success is unknown.", at, f"next: {show}"]
    lines = [*result_table(run, width), ""]
    lines += [*wrapped(conclusion(found), width), at]
    for purpose, command in next_commands(run, found):
        lines += [*wrapped(f"next: {purpose}", width), f"  {command}"]
    return lines


def result_table(run: Run, width: int | None = None) -> list[str]:
    """Return base and trained success with their difference; no line without an evaluation."""
    found = result(run)
    if found is None:
        return []
    lines = comparison(found.base, found.trained, found.gain, width)
    if found.record.config.get("save_best"):
        lines.append(f"trained: step {found.trained['step']}, the best on val, which is kept")
    return lines


def conclusion(found: Result) -> str:
    """Return in words how success changed, and how sure that is."""
    split = evaluated_splits(found.trained)[0]
    name, gain = f"{split.capitalize()} success", found.gain
    if found.base is None:
        text = f"Whether {name.lower()} changed is unknown: nothing was evaluated before training."
    elif found.base is found.trained:
        text = "No evaluation was better on val than that before training, so those weights count."
    elif gain is None:
        text = f"The change in {name.lower()} has no interval, because episodes are missing."
    else:
        ends = f"95 % interval over tasks {share(gain.low, True)} to {share(gain.high, True)}"
        size = f"by {100 * abs(gain.mean):.1f} points ({ends})"
        if gain.low > 0:
            text = f"{name} rose {size}. This is one seed; another may differ."
        elif gain.high < 0:
            text = f"{name} fell {size}: training made the policy worse."
        else:
            text = f"{name} changed by {share(gain.mean, True)} points ({ends}). The interval"
            text += " includes 0, so this is no evidence of a change."
    if failed := found.trained.get(f"eval/{split}_failed"):
        text += f" {failed:.1%} of the episodes failed with an error and count as lost."
    return text


def next_commands(run: Run, found: Result) -> Iterator[tuple[str, str]]:
    """Yield what to do next, and the command."""
    gain, config, folder = found.gain, found.record.config, run.quoted_folder
    again = f"agentrl train --config {shlex.quote(str(run.config_file))}"
    name = f" name={config['name']}" if config.get("name") else ""
    if gain is None:
        yield "read an episode", f"agentrl show {folder}"
    elif gain.low > 0:
        yield "read an episode that training changed", f"agentrl show {folder} --changed"
        seed = found.record.seed + 1
        start, own = str(config.get("init")), f"_s{found.record.seed}"
        init = f" init={start.removesuffix(own)}_s{seed}" if start.endswith(own) else ""
        another = f"{again} seed={seed}{init}{name and f'{name}_s{seed}'}"
        yield "see whether another seed agrees", another
    else:
        yield "read a lost episode", f"agentrl show {folder} --lost"
        steps = config.get("steps")
        if gain.high < 0:
            place = "algo.ppo" if "ppo" in config.get("algo", {}) else "algo"  # of StepAgent
            lower = f"{again} {place}.optimizer.lr=LOWER{name and f'{name}_lower'}"
            yield "train with a lower learning rate", lower
        elif isinstance(steps, int):
            yield "train longer", f"agentrl resume {folder} steps={2 * steps}"


def comparison(
    base: Row | None, trained: Row, gain: Interval | None = None, width: int | None = None
) -> list[str]:
    """Return a line for each metric of each split. `base` is None without an evaluation before
    training. `gain`, paired by task, belongs to the first split."""
    cells = [["", "base", "trained", "difference"]]
    for position, split in enumerate(evaluated_splits(trained)):
        key = f"eval/{split}_success"
        change = DASH if base is None else share(trained[key] - base[key], signed=True)
        if gain is not None and not position:
            mean, low, high = (share(x, True) for x in (gain.mean, gain.low, gain.high))
            change = f"{mean} [{low}, {high}]"
        cells.append([f"{split} success", _success(base, split), _success(trained, split), change])
        for name, key in shown_keys(trained, split):
            if base is None or key in base:
                cells.append([name, *_cells(base, trained, key)])
    return aligned(cells, width)


def evaluation_lines(
    found: Row, env: str, result: Result | None = None, width: int | None = None
) -> list[str]:
    """Return the lines of `agentrl eval` in a terminal: the table of `comparison` if a `result`
    has the evaluation before training, else one column."""
    if "search/gain" in found:
        return search_lines(found, width)
    who = f"run {found['run']}, step {found['step']}" if "run" in found else f"{found['model']}"
    lines = [f"{who}, env={env}"]
    if result is not None:
        lines += comparison(result.base, found, result.gain, width)
    else:
        cells = [["", "trained" if "run" in found else "model"]]
        for split in evaluated_splits(found):
            cells.append([f"{split} success", _success(found, split)])
            cells += [[name, _cell(found, key)] for name, key in shown_keys(found, split)]
        lines += aligned(cells, width)
    counts = {split: round(found[f"eval/{split}_episodes"]) for split in evaluated_splits(found)}
    listed = ", ".join(f"{count:,} {split} episodes" for split, count in counts.items())
    lines += wrapped(f"{listed}; --json prints all numbers", width)
    usage = {key: value for key, value in found.items() if key.startswith("endpoint/")}
    lines += [f"{key.partition('/')[2].replace('_', ' ')} {v:,.6g}" for key, v in usage.items()]
    return lines


def search_lines(found: Row, width: int | None = None) -> list[str]:
    """Return the table of a search, of plain sampling and of best-of-n."""
    names = [key[7:-12] for key in found if re.fullmatch(r"search/\w+_success_low", key)]
    cells = [["", "success", "tokens", "judged"]]
    for name in names:
        ends = Interval(*(found[f"search/{name}_success{end}"] for end in ("", "_low", "_high")))
        numbers = [f"{found[f'search/{name}_{key}']:.1f}" for key in ("tokens", "judged")]
        cells.append([name.replace("_", " "), _interval(ends), *numbers])
    gain = [share(found[f"search/gain{end}"], True) for end in ("", "_low", "_high")]
    line = f"tree minus {names[-1].replace('_', ' ')}: {gain[0]} [{gain[1]}, {gain[2]}] points of"
    lines = wrapped(f"{line} success; {found['episodes']} {found['split']} episodes each", width)
    return [*aligned(cells, width), *lines]


def base_result(
    run: Run, settings: dict[str, Any], found: Row, outcomes: Outcomes
) -> Result | None:
    """Return an evaluation with these settings beside that before training. None if there is none,
    or if its settings differ in more than the number of splits."""
    own, splits = result(run), settings["eval"]["splits"]
    if own is None or own.base is None:
        return None
    known, ignored = evaluated_splits(own.base), (*IGNORED_WHEN_COMPARING, "eval.splits")
    stored, now = (
        {k: v for k, v in files.flatten(nodes).items() if k not in ignored}
        for config in (own.record.config, settings)
        if (nodes := {name: config.get(name) for name in ENVIRONMENT_NODES})
    )
    if stored != now or splits[0] != known[0] or not {*splits} <= {*known}:
        return None
    return Result(own.base, found, gain_over_base(own.record, outcomes), own.record)


def aligned(cells: Cells, width: int | None = None) -> list[str]:
    """Return lines with numbers aligned to the right, or stacked if they do not fit the width."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if width is not None and sum(widths) + 2 * len(widths) - 2 > width:
        return _stacked(cells, "", width)
    first = [f"{row[0]:<{widths[0]}}" for row in cells]
    rest = [[f"{c:>{w}}" for c, w in zip(row[1:], widths[1:], strict=True)] for row in cells]
    return ["  ".join([a, *b]).rstrip() for a, b in zip(first, rest, strict=True)]


def shown_keys(row: Row, split: str) -> Iterator[tuple[str, str]]:
    """Yield the metrics of a split that tables show besides success, with their names."""
    for shape in SHOWN:
        for key in fnmatch.filter(row, f"eval/{split}_{shape}"):
            if not key.endswith(("_low", "_high")):
                name = key.removeprefix(f"eval/{split}_").replace("_to_success", "_to_win")
                yield f"{split} {name.replace('_', ' ')}", key


def has_nothing_to_average(row: Row, key: str) -> bool:
    """Return whether a metric is a mean over won episodes, and none was won."""
    return key.endswith("turns_to_success") and not row.get(key.replace("turns_to_", ""))


def _success(row: Row | None, split: str) -> str:
    return DASH if row is None else _interval(success_interval(row, split))


def _interval(value: Interval) -> str:
    return f"{value.mean:.1%} [{100 * value.low:.1f}, {100 * value.high:.1f}]"


def _cell(row: Row | None, key: str) -> str:
    if row is None or has_nothing_to_average(row, key):
        return DASH
    return f"{row[key]:{'.1f' if key.endswith('turns_to_success') else '.1%'}}"


def _cells(base: Row | None, trained: Row, key: str) -> list[str]:
    """Return base, trained and difference of a metric."""
    texts = [_cell(row, key) for row in (base, trained)]
    if base is None or DASH in texts:
        return [*texts, DASH]
    change, is_mean = trained[key] - base[key], key.endswith("turns_to_success")
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
        weakness = {
            "metric": metric,
            **yaml.safe_load(WEAKNESSES.read_bytes())[metric],
        }
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
        title, advice = f"{title}, too few to judge; raise algo.diagnostics.num_states", ""
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
    return [title, "", *table([header, *cells]), *(["", advice] if advice else [])]
