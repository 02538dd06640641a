"""A run folder: the truth at every moment, nothing half-written, logs put back on resume."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from agentrl_cli.cli.train import resume
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Message, Task, Turn
from agentrl_cli.runs import checkpoints
from agentrl_cli.runs.find import find_run, list_runs
from agentrl_cli.runs.run import Logger, Run
from tests.builders.errors import user_error
from tests.paths import ROOT


def settings(root: Path, name: str | None = None) -> DictConfig:
    choices = {"env": "twentyq", "algo": "nlac", "model": "tiny"}
    return OmegaConf.create({"runs": str(root), "name": name, "seed": 3, "choices": choices})


def new_run(root: Path, name: str | None = None) -> Run:
    return Run.create(settings(root, name), command="agentrl train", overrides=["seed=3"])


def episode(name: str = "e1") -> Episode:
    turn = Turn([Message("user", "hi")], "ask", [1, 2], [3], [-0.5], info={"success": True})
    return Episode(name, Task("cat", "train", {"object": "cat"}), "g", 7, [turn])


def test_new_run_says_started_and_what_made_it(tmp_path: Path):
    meta = json.loads((new_run(tmp_path).folder / "meta.json").read_text())
    assert (meta["status"], meta["seed"], meta["overrides"]) == ("started", 3, ["seed=3"])
    assert meta["packages"]["torch"] and meta["machine"]["cpus"]
    assert meta["git"] is None or len(meta["git"]["commit"]) == 40


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", *who, "-C", str(folder), *arguments], check=True, capture_output=True)


def test_run_records_code_of_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    assert new_run(tmp_path).meta["working_folder"] == {"folder": str(work), "git": None}
    git(work, "init")
    (work / "mine.py").write_text("one = 1\n")
    git(work, "add", "mine.py")
    git(work, "commit", "-m", "mine")
    clean = new_run(tmp_path).meta["working_folder"]["git"]
    assert len(clean["commit"]) == 40 and (clean["dirty"], clean["files"]) == (False, {})
    (work / "mine.py").write_text("one = 2\n")
    (work / "new.yaml").write_text("a: 1\n")
    (work / "notes.txt").write_text("no code\n")
    changed = new_run(tmp_path).meta["working_folder"]["git"]
    assert changed["commit"] == clean["commit"] and changed["dirty"]
    assert sorted(changed["files"]) == ["mine.py", "new.yaml"]
    (work / "new.yaml").write_text("a: 2\n")
    again = new_run(tmp_path).meta["working_folder"]["git"]
    assert again["files"]["mine.py"] == changed["files"]["mine.py"]
    assert again["files"]["new.yaml"] != changed["files"]["new.yaml"]


def test_a_repository_starts_no_program_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    git(tmp_path, "init")
    program = tmp_path / "watch"
    program.write_text(f"#!/bin/sh\ntouch '{tmp_path}/started'\n")
    program.chmod(0o755)
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    (tmp_path / "mine.py").write_text("one = 1\n")
    (tmp_path / ".gitattributes").write_text("*.py filter=a=b\n*.yaml filter=c\n")
    (tmp_path / "mine.yaml").write_text("a: 1\n")
    git(tmp_path, "add", "mine.py", "mine.yaml")
    git(tmp_path, "commit", "-m", "first")
    (tmp_path / "mine.py").write_text("one = 2\n")
    (tmp_path / "mine.yaml").write_text("a: 2\n")
    for name in ("core.fsmonitor", "filter.a=b.clean", "filter.c.process"):
        git(tmp_path, "config", name, str(program))
    git(tmp_path, "config", "filter.c.required", "true")
    shutil.copy(program, tmp_path / ".git" / "hooks" / "post-index-change")
    monkeypatch.chdir(tmp_path)
    found = new_run(tmp_path / "runs").meta["working_folder"]["git"]
    assert found["dirty"] and {"mine.py", "mine.yaml"} <= set(found["files"])
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("name", ["a/b", "..", ".", "a b", "a" * 201])
def test_name_that_is_no_folder_name_is_refused(tmp_path: Path, name: str):
    with user_error("invalid-name", name):
        new_run(tmp_path / "runs", name)


def test_status_follows_the_work(tmp_path: Path):
    run = new_run(tmp_path)
    with run.track():
        assert Run(run.folder).meta["status"] == "running"
    assert Run(run.folder).meta["status"] == "done"
    assert [change["status"] for change in run.meta["history"]] == ["started", "running", "done"]


HOLDER = """
import sys
from pathlib import Path
from agentrl_cli.runs.run import Run
with Run(Path(sys.argv[1])).track():
    print("training", flush=True)
    sys.stdin.read()
"""


def test_training_run_is_locked(tmp_path: Path):
    run = new_run(tmp_path, "it")
    run.log(1, {"loss": 1.0})
    with run.checkpoint(1):
        pass
    run.log(2, {"loss": 2.0})
    command = [sys.executable, "-c", HOLDER, str(run.folder)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert holder.stdout is not None and holder.stdout.readline() == b"training\n"
    before = {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()}
    for attempt in (lambda: resume(str(run.folder)), lambda: Run(run.folder).track().__enter__()):
        with user_error("run-locked", "it"):
            attempt()
    assert {file: file.read_bytes() for file in before} == before
    shutil.copytree(run.folder, tmp_path / "copy")
    with Run(tmp_path / "copy").lock():  # nobody trains the copy
        pass
    holder.kill()
    holder.wait()
    again = Run(run.folder)
    with again.lock(), again.track():  # who holds it may go on to train
        pass
    assert Run(run.folder).meta["status"] == "done"


@pytest.mark.skipif(sys.platform == "win32", reason="has no flock")
@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
):
    def flock(fd: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", flock)
    run = new_run(tmp_path)
    for _ in range(2):
        with run.track():
            pass
    assert Run(run.folder).meta["status"] == "done"


def test_failure_is_recorded_with_its_reason_and_raised(tmp_path: Path):
    run = new_run(tmp_path)
    with pytest.raises(ValueError, match="broken"), run.track():
        raise ValueError("broken")
    assert (run.meta["status"], run.meta["error"]) == ("failed", "ValueError: broken")
    assert "Traceback" in (run.folder / "log.txt").read_text()


class Broken(Logger):
    """Has a mistake."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        raise ValueError(f"no column {min(metrics)}")


class Kept(Logger):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.seen.append((step, metrics))

    def finish(self, status: str) -> None:
        self.seen.append(status)


def test_characters_that_cannot_be_written_hide_no_failure(tmp_path: Path):
    run = new_run(tmp_path)
    with pytest.raises(ValueError, match="half"), run.track():
        raise ValueError("half \ud800")
    assert Run(run.folder).meta["status"] == "failed"
    assert "half \\ud800" in (run.folder / "log.txt").read_text()


def test_interrupted_creation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    for place in ("agentrl_cli.runs.run.facts", "agentrl_cli.core.files.write_json"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(place, interrupt)
            new_run(tmp_path, "mine")
    assert new_run(tmp_path, "mine").name == "mine"


def test_a_logger_that_raises_is_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run, kept = new_run(tmp_path), Kept()
    run.attach([Broken(), kept], DictConfig({}))
    with run.track():
        run.log(1, {"loss": 0.5})
        run.log(2, {"loss": 0.25})
    assert kept.seen == [(1, {"loss": 0.5}), (2, {"loss": 0.25}), "done"]
    line = "the logger Broken failed (ValueError: no column loss); the run goes on without it"
    assert capsys.readouterr().err.count(line) == 1
    assert "Traceback" in (run.folder / "log.txt").read_text()


def test_unplanned_checkpoint_lasts_until_the_next(tmp_path: Path):
    run = new_run(tmp_path)
    kept = []
    for step, planned in ((2, True), (3, False), (4, True), (5, False), (6, False), (8, True)):
        with run.checkpoint(step, planned=planned):
            pass
        kept.append([folder.name.replace("-00000", "-") for folder in run.checkpoints()])
    assert kept == [
        ["step-2"], ["step-2", "last-3"], ["step-2", "step-4"], ["step-2", "step-4", "last-5"],
        ["step-2", "step-4", "last-6"], ["step-4", "step-8"],
    ]  # fmt: skip


def test_leftovers_of_a_killed_save_are_removed(tmp_path: Path):
    run = new_run(tmp_path)
    for name in (".step-000001.partial", ".last-000001.old"):
        (run.folder / "checkpoints" / name).mkdir()
    with run.checkpoint(2):
        pass
    assert [path.name for path in (run.folder / "checkpoints").iterdir()] == ["step-000002"]


def test_logs_and_episodes_go_back_to_the_checkpoint(tmp_path: Path):
    run = new_run(tmp_path)
    run.log(1, {"loss": 1.0})
    run.write_episodes("train", 1, [episode()])
    with run.checkpoint(1):
        pass
    before = (run.folder / "metrics.jsonl").read_bytes()
    run.log(2, {"loss": 2.0})
    run.write_episodes("train", 2, [episode()])
    run.truncate_logs(run.whole_checkpoint())
    assert (run.folder / "metrics.jsonl").read_bytes() == before
    assert [file.name for file in run.episode_files()] == ["train-000001.jsonl"]


def test_log_shorter_than_its_checkpoint_is_refused(tmp_path: Path):
    run = new_run(tmp_path)
    run.log(1, {"loss": 1.0})
    with run.checkpoint(1):
        pass
    (run.folder / "metrics.jsonl").write_text("")
    with user_error("log-too-short"):
        run.truncate_logs(run.whole_checkpoint())


def test_run_is_found_by_every_reference(tmp_path: Path):
    first, second = new_run(tmp_path, "2026-01_a_s0_abcd"), new_run(tmp_path, "2026-02_b_s0_efgh")
    for ref in (str(first.folder), "2026-01", "abcd", first.name):
        assert find_run(ref, tmp_path).folder == first.folder
    assert find_run("last", tmp_path).folder == second.folder
    assert [run.name for run in list_runs(tmp_path)] == [first.name, second.name]


def test_status_of_a_dead_process_is_killed(tmp_path: Path):
    run = new_run(tmp_path, "it")
    seen = [Run(run.folder).status]
    run.set_status("running")
    seen.append(Run(run.folder).status)  # of a run that never locked, as of other versions
    with run.lock():
        seen.append(Run(run.folder).status)
    seen.append(Run(run.folder).status)
    assert seen == ["started", "running", "running", "killed"]
    assert Run(run.folder).meta["status"] == "running"


def test_link_is_another_name_of_a_run(tmp_path: Path):
    run = new_run(tmp_path, "trial1")
    (tmp_path / "best").symlink_to("trial1")
    assert [found.name for found in list_runs(tmp_path)] == ["trial1"]
    for ref in ("best", "trial1", "tria", "last"):
        assert find_run(ref, tmp_path).folder.resolve() == run.folder.resolve()


@pytest.mark.parametrize(
    ("ref", "code", "value"),
    [
        ("tria", "ambiguous-run", "trial2"),
        ("triel1", "unknown-run", "trial1"),
        ("zzz", "unknown-run", "zzz"),
    ],
)
def test_unclear_reference_is_refused(tmp_path: Path, ref: str, code: str, value: str):
    new_run(tmp_path, "trial1")
    new_run(tmp_path, "trial2")
    with user_error(code, value):
        find_run(ref, tmp_path)


def test_resume_command_has_path_of_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run, program = new_run(tmp_path, "it"), tmp_path / "my bin" / "agentrl"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setattr("sys.argv", [str(program), "train"])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert run.resume_command == f"'{program}' resume {run.folder}"
    monkeypatch.setenv("PATH", str(program.parent))
    assert run.resume_command == f"agentrl resume {run.folder}"


def test_interrupted_checkpoint_leaves_nothing(tmp_path: Path):
    run = new_run(tmp_path)
    with pytest.raises(KeyboardInterrupt), run.checkpoint(5) as folder:
        (folder / "weights").write_text("half")
        raise KeyboardInterrupt
    assert list((run.folder / "checkpoints").iterdir()) == []


FOREIGN = ["", "[]", "{}", '{"version": 9, "step": 1, "offsets": {}}', "[" * 100_000, "\xff"]


@pytest.mark.parametrize("text", FOREIGN)
def test_foreign_checkpoint_is_refused(tmp_path: Path, text: str):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UserError):
        checkpoints.read(tmp_path)


def test_metrics_skip_an_incomplete_line(tmp_path: Path):
    run = new_run(tmp_path)
    run.log(1, {"loss": 0.5})
    run.log(2, {"loss": float("nan")})
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    assert [(row["step"], row["loss"]) for row in run.metrics()] == [(1, 0.5), (2, None)]
