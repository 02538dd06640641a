"""The table that a terminal shows while a sweep runs: drawn in place, anew each second, from what
the folders of the runs say, wherever a launcher has put the runs."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_cli.cli.sweep_worker import HAS_TABLE
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import safe
from agentrl_cli.report.summary import cell, run_row
from agentrl_cli.runs.run import Run

if TYPE_CHECKING:
    from rich.console import Group

ORDER = ("running", "starting", "failed", "stopped", "done", "waiting")  # who is shown first
STYLES = {"running": "bold", "starting": "bold", "failed": "red", "done": "green", "waiting": "dim"}
AROUND = 4  # lines of a terminal that are not rows: counts, header, what is left out, the cursor


@dataclass
class SweepTable:
    """The runs of a sweep in `folder` that begins now; `names` are its points, or none where a
    sweeper chooses them."""

    folder: Path
    names: Sequence[str] = ()
    began: float = field(default_factory=time.time)

    def rows(self) -> list[dict[str, Any]]:
        """Run, status, step and evaluated success of each point, in the order of the grid."""
        files = [*self.folder.glob("*/meta.json"), *self.folder.glob("*.log")]
        found = sorted(f.parent.name if f.suffix == ".json" else f.stem for f in files)
        return [self._row(name) for name in dict.fromkeys([*self.names, *found])]

    def _row(self, name: str) -> dict[str, Any]:
        run = _read(self.folder / name) or {}
        return {**run, "run": name, "status": self._status(name, run.get("status"))}

    def _status(self, name: str, recorded: str | None) -> str:
        """What a point is at: its lock is touched when its turn comes and goes when that is over;
        until its turn comes, what an earlier sweep has left of it is no news."""
        if recorded == "done":
            return "done"
        is_at_work = recorded in ("started", "running")
        if self._is_of_now(f"{name}.lock"):
            return "running" if is_at_work else "starting"
        if not self._is_of_now(f"{name}.log"):
            return "waiting"
        return "stopped" if recorded == "stopped" else "failed"

    def _is_of_now(self, name: str) -> bool:
        try:
            return (self.folder / name).stat().st_mtime >= self.began
        except OSError:
            return False

    def draw(self, height: int) -> Group:
        """Counts and the table in so many lines; of more rows those of most interest."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        rows = self.rows()
        counts = Counter(row["status"] for row in rows)
        total = f"{counts['done']} of {len(rows)} done"
        others = [f"{counts[name]} {name}" for name in ORDER if counts[name] and name != "done"]
        minutes, seconds = divmod(int(time.time() - self.began), 60)
        title = ", ".join([total, *others, f"{minutes}:{seconds:02} min"])
        table = Table(box=None, pad_edge=False)
        for name in ("run", "status", "step", "success"):
            right = name in ("step", "success")
            table.add_column(name, justify="right" if right else "left", no_wrap=True)
        shown = _fitting(rows, max(height - AROUND, 1))
        for row in shown:
            table.add_row(*_cells(row), style=STYLES.get(row["status"], ""))
        if len(shown) < len(rows):
            table.add_row(f"… {len(rows) - len(shown)} more")
        return Group(Text(title), table)


@contextmanager
def shown_table(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Inside, a table on stderr that is drawn anew each second, where that is a terminal, and no
    line from the points; it is taken away at the end. Nothing where stderr is none."""
    from rich.console import Console
    from rich.live import Live

    terminal, table = Console(stderr=True), SweepTable(folder, names)
    if not (sys.stderr.isatty() and terminal.is_interactive):
        yield
        return
    os.environ[HAS_TABLE] = "1"
    live = Live(
        get_renderable=lambda: table.draw(terminal.height), console=terminal, transient=True,
        refresh_per_second=1, redirect_stdout=False,
    )  # fmt: skip
    try:
        with live:
            yield
    finally:
        del os.environ[HAS_TABLE]


def _fitting(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """All rows, or where there are more than fit those at work, that failed, and so on."""
    if len(rows) <= count:
        return rows
    return sorted(rows, key=lambda row: ORDER.index(row["status"]))[:count]


def _cells(row: dict[str, Any]) -> list[str]:
    step, planned = row.get("step"), row.get("steps")
    done = "" if step is None else f"{step}/{planned}" if planned else str(step)
    return [safe(row["run"]), row["status"], done, cell(row.get("eval"))]


def _read(folder: Path) -> dict[str, Any] | None:
    """A run's row; None where there is no run, or none that can be read at this moment."""
    try:
        files = [folder / "meta.json", folder / "metrics.jsonl"]
        stamps = tuple(file.stat().st_mtime_ns for file in files if file.exists())
        return _read_once(folder, stamps) if stamps else None
    except (OSError, UserError):
        return None


@lru_cache(maxsize=1000)
def _read_once(folder: Path, stamps: tuple[int, ...]) -> dict[str, Any]:
    """Not read again before a file of it has changed."""
    config = (folder / "config.yaml").read_text(encoding="utf-8")
    steps = re.search(r"^steps: (\d+)$", config, re.MULTILINE)
    return {**run_row(Run(folder)), "steps": steps and int(steps[1])}
