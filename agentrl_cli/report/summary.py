"""What a person reads when a run ends: base against trained, its folder, the next command."""

from __future__ import annotations

from typing import Any

from agentrl_cli.report.records import evaluated_splits, success_interval
from agentrl_cli.runs.run import Run

SHARES = ("greedy_success", "invalid", "repeated")


def final_table(run: Run) -> str:
    """Base and trained side by side, then where the run lies and what to do next."""
    rows = [row for row in run.metrics() if any(key.startswith("eval/") for key in row)]
    lines = comparison(rows[0], rows[-1]) if rows else []
    return "\n".join([*lines, f"run {run.folder}", f"next: agentrl show {run.quoted_folder}"])


def comparison(base: dict[str, Any], trained: dict[str, Any]) -> list[str]:
    """One line for each measure of each split; success with its 95 % interval clustered by task."""
    lines = [f"{'':<24} {'base':>18} {'trained':>18}"]
    for split in evaluated_splits(trained):
        values = [_interval(row, split) for row in (base, trained)]
        lines.append(f"{split + ' success':<24} {values[0]:>18} {values[1]:>18}")
        for name, form in (("turns_to_success", ".1f"), *((share, ".1%") for share in SHARES)):
            key = f"eval/{split}_{name}"
            if key in trained and key in base:
                label = f"{split} {name.replace('_', ' ')}"
                lines.append(f"{label:<24} {base[key]:>18{form}} {trained[key]:>18{form}}")
    return lines


def _interval(row: dict[str, Any], split: str) -> str:
    success = success_interval(row, split)
    return f"{success.mean:.1%} [{100 * success.low:.1f}, {100 * success.high:.1f}]"
