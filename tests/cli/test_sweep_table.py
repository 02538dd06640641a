"""The table of a sweep: what it says of each point, and how a real terminal shows it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from agentrl_cli.cli.sweep_table import SweepTable
from tests.builders.report import write_run
from tests.builders.runs import SMALL, folders
from tests.builders.terminal import screen, terminal
from tests.paths import ROOT

POINTS = ("seed-0", "seed-1")


def drawn(table: SweepTable, height: int = 50) -> list[str]:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table.draw(height))
    return [line.rstrip() for line in captured.get().splitlines()]


def states(table: SweepTable) -> dict[str, str]:
    return {row["run"]: row["status"] for row in table.rows()}


def test_a_point_is_what_its_folder_its_lock_and_its_log_say(tmp_path: Path):
    for state in ("done", "stopped", "running", "failed"):
        write_run(tmp_path / f"old-{state}", status=state)
        write_run(tmp_path / f"now-{state}", status=state)
    files = [tmp_path / f"old-{state}{end}" for state in ("running", "failed")
             for end in (".lock", ".log")]  # fmt: skip
    for file in files:  # of a sweep that was killed
        file.touch()
        os.utime(file, (0, 0))
    table = SweepTable(tmp_path, ["begun", "never", "next"], began=time.time() - 60)
    for name in (
        "now-running.lock",
        "begun.lock",
        "never.log",
        "now-failed.log",
        "now-stopped.log",
    ):
        (tmp_path / name).touch()
    assert states(table) == {
        "begun": "starting", "never": "failed", "next": "waiting",
        "now-done": "done", "now-failed": "failed", "now-running": "running",
        "now-stopped": "stopped", "old-done": "done", "old-failed": "waiting",
        "old-running": "waiting", "old-stopped": "waiting",
    }  # fmt: skip
    (tmp_path / "now-running.lock").unlink()
    (tmp_path / "now-running.log").touch()  # its process died
    assert states(table)["now-running"] == "failed"


def test_rows_stand_in_the_order_of_the_grid_with_step_and_success(tmp_path: Path):
    write_run(tmp_path / "b", status="done")
    table = SweepTable(tmp_path, ["b", "a"])
    title, header, first, second = drawn(table)
    assert title.startswith("1 of 2 done, 1 waiting, 0:0")
    assert header.split() == ["run", "status", "step", "success"]
    row = next(row for row in table.rows() if row["run"] == "b")
    assert first.split() == ["b", "done", f"{row['step']}/{row['steps']}", f"{row['eval']:.3f}"]
    assert second.split() == ["a", "waiting"]


def test_a_low_terminal_shows_what_works_and_what_failed_first(tmp_path: Path):
    write_run(tmp_path / "z", status="running")
    (tmp_path / "y.log").touch()
    table = SweepTable(tmp_path, [f"a{n}" for n in range(20)], began=time.time() - 60)
    (tmp_path / "z.lock").touch()
    lines = drawn(table, height=9)
    assert len(lines) <= 9 and lines[-1] == "… 17 more"
    assert [line.split()[:2] for line in lines[2:4]] == [["z", "running"], ["y", "failed"]]


def test_a_run_whose_files_are_being_written_is_shown_all_the_same(tmp_path: Path):
    run = write_run(tmp_path / "a", status="running")
    (run / "meta.json").write_text(json.dumps({})[:1])
    (tmp_path / "a.lock").touch()
    assert states(SweepTable(tmp_path, ["a"], began=0)) == {"a": "starting"}


def sweep_in(shell_folder: Path, *more: str) -> tuple[list[str], dict[str, str]]:
    """A small sweep of two seeds as a command, and the variables that it needs."""
    small = [*SMALL, "algo=rft", "steps=1", "save_every=0", "eval_every=0", "seed=0,1", *more]
    groups = ["--config-dir", str(folders(shell_folder)), "--name", "it"]
    return [sys.executable, "-m", "agentrl_cli.cli", "sweep", *small, *groups], {
        "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.extras)])
def test_a_terminal_shows_a_table_that_fills_and_at_last_the_results(tmp_path: Path, jobs: str):
    if jobs == "2":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs joblib's launcher")
    command, variables = sweep_in(tmp_path, "--jobs", jobs)
    with terminal(command, tmp_path, variables) as shell:
        shell.rest()
    assert shell.program.returncode == 0
    counts = (0, 2) if jobs == "2" else (0, 1, 2)  # side by side they may end in the same second
    places = [shell.seen.find(f"{done} of 2 done") for done in counts]
    assert -1 not in places and places == sorted(places)
    assert "starting" in shell.seen and "\x1b[1A" in shell.seen  # drawn over the one before
    assert "train seed-0" not in shell.seen  # no lines beside the table
    lines = [line for line in screen(shell.seen) if line]
    assert lines[0].startswith("sweep runs/it: 2 runs")
    assert lines[1].split() == ["run", "status", "step", "eval"]
    assert sorted(line.split()[:2] for line in lines[2:4]) == [[name, "done"] for name in POINTS]
    assert lines[4:] == ["compare them: agentrl report runs/it"]
