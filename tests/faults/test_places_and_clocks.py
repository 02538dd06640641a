"""Runs whose folder was moved or is reached through a link; clocks that jump while one trains."""

from __future__ import annotations

import errno
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agentrl_cli.runs.run import Run
from stress.disks import refusing
from tests.builders.command_line import agentrl, refused
from tests.builders.runs import facts, saved, trained

DAY = 86_400.0


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


def test_a_moved_run_goes_on_to_the_same_bytes_without_what_it_began_from(here: Path):
    (here.parent / "store").rename("elsewhere")
    shutil.rmtree("elsewhere/base")
    for verb in (["eval", "elsewhere/it"], ["play", "--run", "elsewhere/it"]):
        result = agentrl(*verb)
        assert result.exit_code == 0, result.output
    result = agentrl("resume", "elsewhere/it")
    assert result.exit_code == 0, result.output
    assert is_same_as_whole(Run(Path("elsewhere/it")))


def test_runs_behind_a_link_are_found_listed_and_resumed(here: Path):
    Path("runs").symlink_to(here.parent / "store")
    assert agentrl("show", "last").exit_code == 0
    assert "it " in agentrl("ls").stdout
    assert agentrl("resume", "it").exit_code == 0
    assert is_same_as_whole(Run(Path("runs/it")))


def test_a_run_is_resumed_through_a_link_to_it_and_locked_by_every_name(here: Path):
    Path("link").symlink_to(here.parent / "store" / "it")
    assert Run(Path("link")).name == "it"
    with Run(here.parent / "store" / "it").lock():
        refused(agentrl("resume", "link"), "run 'it' is still training in another process")
    assert agentrl("resume", "link").exit_code == 0
    assert is_same_as_whole(Run(Path("link")))


# clocks


class JumpingClock:
    """Wall clock that goes ten days forward and twenty back in turn, at every look."""

    def __init__(self) -> None:
        self.looks, self.real = 0, time.time

    def time(self) -> float:
        self.looks += 1
        return self.real() + DAY * (10 if self.looks % 2 else -20)

    def now(self, zone: object = None) -> datetime:
        return datetime.fromtimestamp(self.time(), UTC)


@pytest.mark.slow
def test_a_clock_that_jumps_changes_no_training_no_save_and_no_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    done, clock = trained(tmp_path, "nlac", "whole"), JumpingClock()
    monkeypatch.setattr("time.time", clock.time)
    for module in ("meta", "run"):
        monkeypatch.setattr(f"agentrl_cli.runs.{module}.datetime", clock)
    began = time.monotonic()
    with refusing(tmp_path / "it", errno.ENOSPC, room=10**9) as disk:
        run = trained(tmp_path, "nlac", "it", "save_interval_minutes=60")
    took = time.monotonic() - began
    assert clock.looks > 10 and facts(run) == facts(done) and saved(run) == saved(done)
    assert disk.changed and not any("last-" in path for path in disk.changed)
    seconds = [e.seconds for e in run.read_episodes("train", 4)]
    seconds += [v for row in run.metrics() for name, v in row.items() if is_duration(name)]
    assert all(0 <= value <= took for value in seconds) and sum(seconds) > 0
    for verb in (["ls", str(tmp_path)], ["show", str(run.folder)], ["report", str(tmp_path)]):
        assert agentrl(*verb).exit_code == 0, verb


def is_duration(name: str) -> bool:
    return name.startswith("time/") and name != "time/timestamp"


def test_a_clock_that_stands_still_hinders_no_save_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("time.time", lambda: 0.0)
    with refusing(tmp_path / "it", errno.ENOSPC, room=10**9) as disk:
        trained(tmp_path, "sft", "it", "save_interval_minutes=1e-9", "save_every=0", "steps=2")
    assert any("last-000001" in path for path in disk.changed)
