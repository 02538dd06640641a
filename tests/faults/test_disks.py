"""A disk that is full or read-only: one sentence, nothing lost, and the run goes on afterwards."""

from __future__ import annotations

import errno
import json
import resource
import shutil
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from omegaconf import DictConfig

from agentrl_cli.core import files
from agentrl_cli.runs.run import Logger, Run
from stress.disks import refusing
from tests.builders.command_line import agentrl, refused
from tests.builders.runs import facts, folders, saved, settings, trained

GO_ON = "copy the run elsewhere and resume it there"
NO_SPACE = f"cannot be written (No space left on device); free space there or {GO_ON}"
READ_ONLY = f"cannot be written (Read-only file system); make it writable or {GO_ON}"
OFTEN = "save_interval_minutes=1e-9"


def counted(root: Path, algo: str) -> tuple[Run, int]:
    with refusing(root / "whole" / "it", errno.ENOSPC, room=10**9) as disk:
        return trained(root / "whole", algo, "it", OFTEN), len(disk.changed)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, int]:
    return counted(tmp_path_factory.mktemp("runs"), "grpo")


@pytest.fixture
def done(whole: tuple[Run, int]) -> Run:
    return whole[0]


@pytest.fixture
def run(tmp_path: Path, done: Run) -> Run:
    shutil.copytree(done.folder, tmp_path / "runs" / "it")
    copied = Run(tmp_path / "runs" / "it")
    shutil.rmtree(copied.latest_checkpoint())
    copied.set_status("stopped")
    return copied


def fill_and_resume(root: Path, algo: str, done: Run, room: int) -> None:
    """Train on a disk that is full behind `room` changes of files, then where there is space."""
    command = ["train", *settings(root / "full", algo, "it", OFTEN)]
    with refusing(root / "full" / "it", errno.ENOSPC, room=room):
        result = agentrl(*command, "--config-dir", str(folders(root)))
    run = Run(root / "full" / "it")
    last = result.stderr.strip().splitlines()[-1]
    assert result.exit_code == 2 and "Traceback" not in result.stderr
    assert last == f"'{run.folder}' {NO_SPACE}"
    run.whole_checkpoint()
    assert agentrl("resume", str(run.folder)).exit_code == 0
    assert facts(run) == facts(done) and saved(run) == saved(done)
    assert Run(run.folder).is_done


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.4, 0.97])
def test_full_disk_stops_and_resumes_equal(tmp_path: Path, whole: tuple[Run, int], share: float):
    fill_and_resume(tmp_path, "grpo", whole[0], int(share * whole[1]))


@pytest.mark.slow
def test_replay_on_full_disk_resumes_equal(tmp_path: Path):
    done, changes = counted(tmp_path, "nlac")
    for tenths in (4, 8):
        fill_and_resume(tmp_path, "nlac", done, changes * tenths // 10)
        shutil.rmtree(tmp_path / "full")


class Witness(Logger):
    """Notes how the run ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Nothing."""

    def finish(self, status: str) -> None:
        self.ended.append(status)


def test_loggers_close_on_a_full_disk(run: Run):
    witness = Witness()
    run.attach([witness], DictConfig({}))
    with ExitStack() as disk, pytest.raises(ValueError, match="the cause"), run.track():
        disk.enter_context(refusing(run.folder, errno.ENOSPC))
        raise ValueError("the cause")
    assert witness.ended == ["failed"]


def test_append_is_atomic(tmp_path: Path):
    file, limits = tmp_path / "log.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    files.append_jsonl(file, [{"result": 1}])
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            files.append_jsonl(file, [{"result": "x" * 10_000}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    files.append_jsonl(file, [{"result": 2}])
    assert files.read_jsonl(file) == [{"result": 1}, {"result": 2}]


# a folder that may only be read


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_read_only_run_is_evaluated_not_trained(run: Run):
    before, name = contents(run.folder), str(run.folder)
    with refusing(run.folder.parent, errno.EROFS):
        for verb in (["show", name], ["ls", str(run.folder.parent)]):
            result = agentrl(*verb)
            assert result.exit_code == 0 and result.stdout
        refused(agentrl("resume", name), f"'{name}' {READ_ONLY}")
        result = agentrl("eval", name, "--json")
        assert result.exit_code == 2 and "eval/test_success" in json.loads(result.stdout)
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"'{name}/evaluations.jsonl' cannot be written (Read-only file")
    assert contents(run.folder) == before


def test_writing_to_read_only_folder_is_refused(run: Run, tmp_path: Path):
    place, name = run.folder.parent, str(run.folder)
    reason = "cannot be written (Read-only file system); make it writable or"
    with refusing(place, errno.EROFS):
        new = settings(place, "grpo", "new")
        result = agentrl("train", *new, "--config-dir", str(folders(tmp_path)))
        refused(result, f"'{place}/new' {reason} choose another place with runs=")
        result = agentrl("report", str(place))
        assert result.exit_code == 2 and "coin" in result.stdout
        last = result.stderr.splitlines()[-1]
        assert last == f"'{place}/report' {reason} choose another place with --out"
        refused(agentrl("export", name, f"{place}/out"), f"'{place}/out' {reason} give another")


@pytest.mark.parametrize("arguments", [["list"], ["--help"]])
def test_lost_output_is_one_line(arguments: list[str], tmp_path: Path):
    command = [sys.executable, "-m", "agentrl_cli.cli", *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True,
            cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1


def test_run_without_output_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with Path("/dev/full").open("w", buffering=1) as full:
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, full)
        run = trained(tmp_path, "sft", "it", "steps=1", "algo.optimizer.decay_steps=1")
        monkeypatch.undo()
        assert run.is_done
        with suppress(OSError):
            full.close()
