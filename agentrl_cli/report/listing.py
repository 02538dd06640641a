"""The runs of a folder as rows: what each is, how far it came and how well it does. The keys of a
row are those of `agentrl ls --json`."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

from agentrl_cli.report.text import table
from agentrl_cli.runs.run import Run

HEADER = ["run", "status", "step", "reward", "eval", "error"]


def run_row(run: Run) -> dict[str, Any]:
    """One run; reward and evaluated success are the last logged, None before the first; `lost` is
    the number of lines of its metrics that cannot be read."""
    lines, unreadable = run.readable_metrics()
    return {
        "run": run.name,
        "folder": str(run.folder),
        "status": run.status,
        "created": run.meta["created"],
        "step": max((line["step"] for line in lines), default=0),
        "reward": _last(lines, "reward/mean"),
        "eval": _last(lines, "eval/*_success"),
        "error": run.meta.get("error"),
        "lost": unreadable,
    }


def render(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as a table."""
    return table(HEADER, [[cell(row[name]) for name in HEADER] for row in rows])


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """A sentence for each run whose metrics are damaged."""
    return [
        f"run '{row['run']}': unreadable lines of metrics.jsonl left out: {row['lost']}"
        for row in rows
        if row["lost"]
    ]


def render_folders(folders: dict[Path, int]) -> list[str]:
    """The folders that hold runs themselves."""
    return table(["folder", "runs"], [[str(path), str(count)] for path, count in folders.items()])


def _last(lines: list[dict[str, Any]], pattern: str) -> float | None:
    values = (line[key] for line in reversed(lines) for key in fnmatch.filter(line, pattern))
    return next(values, None)


def cell(value: Any) -> str:
    """A value of a row as text: three decimals, nothing for None, the first line of a text."""
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else str(value).partition("\n")[0]
