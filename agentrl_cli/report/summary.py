"""What a person reads when a run ends: base against trained, its folder, the next command."""

from __future__ import annotations

from typing import Any

from agentrl_cli.core.statistics import Interval
from agentrl_cli.report.records import evaluated_splits, read_record, success_interval
from agentrl_cli.report.seeds import paired_difference
from agentrl_cli.runs.best import kept_evaluation
from agentrl_cli.runs.run import Run

SHARES = ("greedy_success", "invalid", "repeated")
MEANS_OF_WINS = "turns_to_success"  # nothing to average where no episode was won
NONE = "–"  # of a cell without a figure
Row = dict[str, Any]


def final_table(run: Run) -> str:
    """Base and trained side by side with their difference, then where the run lies and what to do
    next."""
    rows = [row for row in run.metrics() if any(key.startswith("eval/") for key in row)]
    lines: list[str] = []
    if rows:
        keep = read_record(run).config.get("keep")
        base, trained = None if rows[0]["step"] else rows[0], kept_evaluation(rows, keep)
        lines = comparison(base, trained, paired_gain(run, base, trained) if base else None)
        if keep == "best":
            lines.append(f"trained is step {trained['step']}, which won most of val and is kept")
    return "\n".join([*lines, f"run {run.folder}", f"next: agentrl show {run.quoted_folder}"])


def paired_gain(run: Run, base: Row, trained: Row) -> Interval | None:
    """The gain in success of the split whose episodes are kept, task by task, from one line of
    evaluation to another; None where they are the same, or episodes are missing."""
    record, steps = read_record(run), [row["step"] for row in (base, trained)]
    before, after = (record.outcomes(step) for step in steps)
    if steps[0] == steps[1] or before is None or after is None or not before.keys() & after.keys():
        return None
    return paired_difference({0: after}, {0: before})


def comparison(base: Row | None, trained: Row, gain: Interval | None = None) -> list[str]:
    """One line for each measure of each split; success with its 95 % interval clustered by task.
    Without `base` (eval.baseline=false) its cells are dashes. `gain` is the first split's
    difference with its interval, where that is known."""
    lines = [f"{'':<24} {'base':>18} {'trained':>18} {'difference':>20}"]
    for position, split in enumerate(evaluated_splits(trained)):
        known = gain if position == 0 else None
        lines.append(_line(f"{split} success", *_success(base, trained, split, known)))
        for name in (MEANS_OF_WINS, *SHARES):
            key = f"eval/{split}_{name}"
            if key in trained and (base is None or key in base):
                label = f"{split} {name.replace('_', ' ')}"
                lines.append(_line(label, *_cells(base, trained, split, name)))
    return lines


def has_nothing_to_average(row: Row, key: str) -> bool:
    """Whether a metric is a mean over wins of a split that has none."""
    return key.endswith(MEANS_OF_WINS) and not row.get(key.removesuffix(MEANS_OF_WINS) + "success")


def _success(base: Row | None, trained: Row, split: str, gain: Interval | None) -> list[str]:
    """Success of both lines, and by how much it has changed."""
    after = success_interval(trained, split)
    if base is None:
        return [NONE, _share(after), NONE]
    before = success_interval(base, split)
    return [_share(before), _share(after), _gain(before.mean, after.mean, gain)]


def _cells(base: Row | None, trained: Row, split: str, name: str) -> list[str]:
    """What both lines hold of one measure, and by how much it has changed."""
    key, is_share = f"eval/{split}_{name}", name in SHARES
    form, change = (".1%", _points) if is_share else (".1f", "{:+.1f}".format)
    texts = [
        NONE if row is None or has_nothing_to_average(row, key) else f"{row[key]:{form}}"
        for row in (base, trained)
    ]
    return [*texts, NONE if base is None or NONE in texts else change(trained[key] - base[key])]


def _line(label: str, base: str, trained: str, difference: str) -> str:
    return f"{label:<24} {base:>18} {trained:>18} {difference:>20}"


def _share(success: Interval) -> str:
    return f"{success.mean:.1%} [{100 * success.low:.1f}, {100 * success.high:.1f}]"


def _gain(before: float, after: float, gain: Interval | None) -> str:
    if gain is None:
        return _points(after - before)
    return f"{_points(gain.mean)} [{_points(gain.low)}, {_points(gain.high)}]"


def _points(value: float) -> str:
    """A difference of shares in points."""
    return f"{100 * value:+.1f}"
