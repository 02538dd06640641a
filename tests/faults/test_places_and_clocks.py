"""Runs whose folder was moved or is reached through a link; clocks that jump while one trains."""

from __future__ import annotations

import errno
import shutil
import time
from itertools import cycle
from pathlib import Path

import pytest

from agentrl_cli.runs.run import Run
from stress.disks import refusing
from tests.builders.command_line import agentrl, refused
from tests.builders.runs import facts, saved, trained


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: `it`, which was stopped before its last checkpoint, and `whole`."""
    root = tmp_path_factory.mktemp("original")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        trained(Path("runs"), "sft", "base", "steps=1", "eval.baseline=false")
        trained(Path("runs"), "grpo", "whole", "init=base")
    shutil.copytree(root / "runs" / "whole", root / "runs" / "it")
    run = Run(root / "runs" / "it")
    shutil.rmtree(run.latest_checkpoint())
    run.set_status("stopped")
    return root / "runs"


@pytest.fixture
def here(tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder beside which a copy of those runs lies; processes begin here."""
    shutil.copytree(original, tmp_path / "store")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def is_same_as_whole(run: Run) -> bool:
    whole = Run(run.folder.resolve().parent / "whole")
    return run.is_done and facts(run) == facts(whole) and saved(run) == saved(whole)


@pytest.mark.slow
def test_moved_run_resumes_to_the_same_bytes(here: Path):
    (here.parent / "store").rename("elsewhere")
    shutil.rmtree("elsewhere/base")
    for verb in (["eval", "elsewhere/it"], ["play", "--run", "elsewhere/it"]):
        result = agentrl(*verb)
        assert result.exit_code == 0, result.output
    result = agentrl("resume", "elsewhere/it")
    assert result.exit_code == 0, result.output
    assert is_same_as_whole(Run(Path("elsewhere/it")))


def test_linked_folder_of_runs_works(here: Path):
    Path("runs").symlink_to(here.parent / "store")
    assert agentrl("show", "last").exit_code == 0
    assert "it " in agentrl("ls").stdout
    assert agentrl("resume", "it").exit_code == 0
    assert is_same_as_whole(Run(Path("runs/it")))


def test_linked_run_is_locked_by_every_name(here: Path):
    Path("link").symlink_to(here.parent / "store" / "it")
    assert Run(Path("link")).name == "it"
    with Run(here.parent / "store" / "it").lock():
        refused(agentrl("resume", "link"), "run 'it' is still training in another process")
    assert agentrl("resume", "link").exit_code == 0
    assert is_same_as_whole(Run(Path("link")))


# clocks


def test_stopped_clock_does_not_prevent_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("time.time", lambda: 0.0)
    with refusing(tmp_path / "it", errno.ENOSPC, room=10**9) as disk:
        trained(tmp_path, "sft", "it", "save_interval_minutes=1e-9", "save_every=0", "steps=2")
    assert any("last-000001" in path for path in disk.changed)


def test_jumping_clock_changes_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = trained(tmp_path, "sft", "whole", "steps=2")
    now, days = time.time, cycle((86_400, -86_400, 0))
    with monkeypatch.context() as jumping:
        jumping.setattr("time.time", lambda: now() + next(days))
        run = trained(tmp_path, "sft", "it", "steps=2")
    assert facts(run) == facts(whole)
    timed = [item for row in run.metrics() for item in row.items() if item[0].startswith("time/")]
    seconds = [value for name, value in timed if name != "time/timestamp"]
    assert seconds and all(0 <= value < 60 for value in seconds)
