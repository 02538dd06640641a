"""The runs of a folder as rows: what each is, how far it came and how well it does."""

from __future__ import annotations

import fnmatch
from typing import Any

from agentrl_cli.report.text import table
from agentrl_cli.run import Run

HEADER = ["run", "status", "step", "reward", "eval", "error"]


def row(run: Run) -> dict[str, Any]:
    """One run; reward and evaluated success are the last logged, None before the first."""
    logged = run.metrics() if run.has_metrics else []
    return {
        "run": run.name,
        "folder": str(run.folder),
        "status": run.meta["status"],
        "created": run.meta["created"],
        "step": max((line["step"] for line in logged), default=0),
        "reward": _last(logged, "reward/mean"),
        "eval": _last(logged, "eval/*_success"),
        "error": run.meta["error"],
    }


def render(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as a table."""
    return table(HEADER, [[_cell(row[name]) for name in HEADER] for row in rows])


def _last(logged: list[dict[str, Any]], shape: str) -> float | None:
    found = (line[key] for line in reversed(logged) for key in fnmatch.filter(line, shape))
    return next(found, None)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else str(value).partition("\n")[0]
