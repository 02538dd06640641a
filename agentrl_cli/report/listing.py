"""The runs of a folder as rows: what each is, how far it came and how well it does."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

from agentrl_cli.report.text import table
from agentrl_cli.runs.run import Run

HEADER = ["run", "status", "step", "reward", "eval", "error"]


def row(run: Run) -> dict[str, Any]:
    """One run; reward and evaluated success are the last logged, None before the first; `lost` are
    the lines of its metrics that cannot be read."""
    logged, lost = run.readable_metrics()
    return {
        "run": run.name,
        "folder": str(run.folder),
        "status": run.meta["status"],
        "created": run.meta["created"],
        "step": max((line["step"] for line in logged), default=0),
        "reward": _last(logged, "reward/mean"),
        "eval": _last(logged, "eval/*_success"),
        "error": run.meta.get("error"),
        "lost": lost,
    }


def render(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as a table."""
    return table(HEADER, [[_cell(row[name]) for name in HEADER] for row in rows])


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """A sentence for each run whose metrics are damaged."""
    return [
        f"run '{one['run']}': unreadable lines of metrics.jsonl left out: {one['lost']}"
        for one in rows
        if one["lost"]
    ]


def render_folders(folders: dict[Path, int]) -> list[str]:
    """The folders that hold runs themselves."""
    return table(["folder", "runs"], [[str(folder), str(n)] for folder, n in folders.items()])


def _last(logged: list[dict[str, Any]], shape: str) -> float | None:
    found = (line[key] for line in reversed(logged) for key in fnmatch.filter(line, shape))
    return next(found, None)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else str(value).partition("\n")[0]
