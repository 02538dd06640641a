"""What leaves the run: console lines, and the real trackers without a network."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import wandb
import yaml
from omegaconf import DictConfig

from agentrl_cli.cli.export import export
from agentrl_cli.config.compose import build, compose
from agentrl_cli.core import activity, files
from agentrl_cli.core.activity import Activity
from agentrl_cli.core.types import Episode, Message, Task, Turn
from agentrl_cli.runs.loggers import (
    Console,
    TrackerLogger,
    WandbLogger,
    stored_rows,
    turn_rows,
)
from agentrl_cli.runs.run import Run
from tests.builders.errors import user_error
from tests.builders.runs import begun
from tests.runs import test_run
from tests.runs.test_run import episode


def new_run(root: Path, name: str | None = None) -> tuple[Run, DictConfig]:
    cfg = test_run.settings(root)
    cfg.steps, cfg.name = 20, name
    return Run.create(cfg, command="agentrl train", overrides=[]), cfg


class Gone:
    """A stream whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    def flush(self) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    def isatty(self) -> bool:
        return False


def test_closed_terminal_does_not_stop_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run, cfg = new_run(tmp_path)
    console = Console()
    console.start(run, cfg)
    monkeypatch.setattr(sys, "stderr", Gone())
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # what `tell` replaces is put back, too
    console.log(1, {"reward/mean": 0.5})
    console.log(2, {"reward/mean": 0.5})
    assert len((run.folder / "log.txt").read_text().splitlines()) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_terminal_gets_a_bar_below_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        run, cfg = new_run(tmp_path)
        work = Activity("play", 3, 8)
        with run.track():
            run.attach([Console(activity=work)], cfg)
            run.log(1, {"reward/mean": 1.0})
            time.sleep(0.6)  # the line is drawn anew four times a second
        written = os.read(master, 100_000).decode()
    os.close(master)
    assert f"step  1/{cfg.steps}  reward/mean 1" in written and f"0/{cfg.steps}" in written
    assert "play 3/8, " in written and "s left" in written


def test_pipe_gets_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(activity, "MINUTE", 0.05)
    with activity.Display(Activity("play", 3, 8)):
        time.sleep(0.3)
    printed = capsys.readouterr()
    assert printed.err.count("play 3/8, ") >= 2 and printed.out == ""
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_share_of_work_counts_parts_of_items():
    work = Activity("play")
    assert work.share == 0
    work.advance(2, 8, partial=1.0, next=2.0)
    work.answered = 0.5
    assert work.share == 0.5
    work.advance(8, 8, partial=1.0)
    assert work.share == 1


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


def wandb_logger(*artifacts: Any) -> WandbLogger:
    return WandbLogger(
        project="test", entity=None, mode=None, rows=4, timeout=60, artifacts=list(artifacts)
    )


@pytest.mark.wandb
@pytest.mark.usefixtures("offline")
def test_wandb_offline_stores_metrics_configuration_and_episodes(tmp_path: Path):
    run, cfg = new_run(tmp_path, "x" * 130)
    with run.track():
        run.attach([logger := wandb_logger()], cfg)
        assert logger.client.name == "x" * 128  # W&B refuses a longer one
        run.log(1, {"reward/mean": 0.25})
        run.write_episodes("train", 1, [episode()])
    wandb.teardown()  # its service flushes files when it ends
    (stored,) = run.folder.glob("wandb/offline-run-*/run-*.wandb")
    content = stored.read_bytes()
    for word in (b"reward/mean", b"episodes/train", b"steps"):
        assert word in content
    (file,) = run.folder.glob("wandb/offline-run-*/files/media/table/episodes/train*.json")
    table = json.loads(file.read_text())
    (row,) = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert (row["observation"], row["action"], row["turn"]) == ("user: hi", "ask", 1)
    for word in (b"twentyq", b"nlac", b"train"):
        assert word in content


def test_table_has_a_row_per_turn():
    info = {"value": 0.5, "advantage": -0.25, "critic": {"critique": "it repeats"}}
    first = Turn([Message("system", "play"), Message("user", "hi")], "a", [1], [2], [-0.5])
    last = Turn([Message("user", "no")], "b", [3], [4], [-0.1], 1.0, True, info=info)
    rows = turn_rows(7, Episode("e1", Task("cat", "train", {}), "g", 7, [first, last], stop="done"))
    assert [row[:6] for row in rows] == [[7, "e1", "cat", False, "done", n] for n in (1, 2)]
    assert rows[0][6:] == ["system: play\nuser: hi", "a", 0.0, None, None, None]
    assert rows[1][6:] == ["user: no", "b", 1.0, 0.5, -0.25, "it repeats"]


@pytest.mark.wandb
@pytest.mark.usefixtures("offline")
def test_wandb_gets_every_row_once_over_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"TAGS": "a,b", "RUN_GROUP": "seeds", "NOTES": "why"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    run, cfg = new_run(tmp_path)
    sessions: list[list[dict[str, Any]]] = []
    for checkpoint, steps in ((0, (1, 2, 3, 4)), (4, (5, 6, 7)), (5, (6, 7, 8))):
        files.truncate(run.metrics_file, checkpoint)
        run, before = Run(run.folder), wandb_files(run)
        logger = wandb_logger()
        logger.tags = ["mine"]
        with run.track():
            run.attach([logger], cfg)
            for step in steps:
                run.log(step, {"reward/mean": step / 4, "policy/kl": float("nan")})
                run.write_episodes("train", step, [episode()])
        wandb.teardown()
        (stored,) = wandb_files(run) - before
        if not sessions:  # a killed process loses the last rows, and may cut a record
            content = stored.read_bytes()
            assert all(word in content for word in (b"seeds", b"why", b"mine", b"nlac"))
            stored.write_bytes(content[: content.rindex(b"reward/mean") + 4])
        sessions.append(list(stored_rows(stored)))
    found = [row for rows in sessions for row in rows]
    metrics = [row for row in found if "reward/mean" in row]
    assert [row["step"] for row in metrics] == list(range(1, 9))
    assert [row["reward/mean"] for row in metrics] == [r["reward/mean"] for r in run.metrics()]
    assert [len(rows) for rows in sessions] == [6, 7, 2]
    numbers = [row["_step"] for row in found]
    assert numbers == sorted({*numbers})
    assert all(run.meta["wandb_id"] in file.name for file in wandb_files(run))


def wandb_files(run: Run) -> set[Path]:
    return set(run.folder.glob("wandb/offline-run-*/*.wandb"))


def configured(name: str) -> TrackerLogger:
    return build(compose([f"logger={name}"]).logger)


def log_in_two_parts(run: Run, cfg: DictConfig, logger: str) -> Run:
    """Steps 1 and 2, then step 3 of the resumed run, which goes on to more steps than planned."""
    with run.track():
        run.attach([configured(logger)], cfg)
        run.log(1, {"reward/mean": 0.25})
        run.log(2, {"reward/mean": 0.5, "policy/loss": float("nan")})
    again = Run(run.folder)
    cfg.steps = 30
    again.record_resume(cfg, 2)
    with again.track():
        again.attach([configured(logger)], cfg)
        again.log(3, {"reward/mean": 0.75})
    return again


@pytest.mark.extras
def test_tensorboard_stores_metrics_by_step_and_the_configuration(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # pyright: ignore

    run, cfg = new_run(tmp_path)
    log_in_two_parts(run, cfg, "tensorboard")
    stored = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    scalars = [(event.step, event.value) for event in stored.Scalars("reward/mean")]
    assert scalars == [(1, 0.25), (2, 0.5), (3, 0.75)]
    (settings_file,) = run.folder.glob("tensorboard/*/hparams.yml")
    settings = yaml.safe_load(settings_file.read_text())
    assert (settings["choices.algo"], settings["steps"], settings["name"]) == ("nlac", 20, "None")


@pytest.mark.extras
def test_mlflow_continues_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    import mlflow  # pyright: ignore[reportMissingImports]

    run, cfg = new_run(tmp_path)
    run = log_in_two_parts(run, cfg, "mlflow")
    client = mlflow.MlflowClient()
    (experiment,) = client.search_experiments(filter_string="name = 'agentrl'")
    (stored,) = client.search_runs([experiment.experiment_id])
    assert (stored.info.run_id, stored.info.run_name) == (run.meta["mlflow_id"], run.name)
    assert (stored.data.params["choices.algo"], stored.data.params["steps"]) == ("nlac", "20")
    history = client.get_metric_history(stored.info.run_id, "reward/mean")
    assert [(row.step, row.value) for row in history] == [(1, 0.25), (2, 0.5), (3, 0.75)]


class LostServer:
    """A tracker whose server has gone."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        raise ConnectionError("no answer")

    def finish(self) -> None:
        raise ConnectionError("no answer")


def test_failing_tracker_does_not_stop_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run, _ = new_run(tmp_path)
    logger = TrackerLogger(tracker="mlflow", options={})
    logger.client = LostServer()
    with run.track():
        run.loggers.append(logger)
        run.log(1, {"reward/mean": 0.25})
        run.log(2, {"reward/mean": 0.5})
    assert run.meta["status"] == "done" and len(run.metrics()) == 2
    assert capsys.readouterr().err.count("mlflow failed (no answer); the run goes on") == 1


@pytest.mark.parametrize(
    ("tracker", "package"),
    [
        ("tensorboard", "agentrl-cli[tensorboard]"),
        ("mlflow", "agentrl-cli[mlflow]"),
        ("aim", "aim"),
    ],
)  # fmt: skip
def test_missing_tracker_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str, package: str
):
    monkeypatch.setattr("accelerate.tracking._available_trackers", [])  # as where none is there
    run, cfg = new_run(tmp_path)
    with user_error("missing-package", package):
        run.attach([TrackerLogger(tracker=tracker, options={})], cfg)


@pytest.mark.extras
def test_tracker_with_wrong_options_is_refused(tmp_path: Path):
    run, cfg = new_run(tmp_path)
    logger = TrackerLogger(tracker="mlflow", options={"wrong": 1})
    with user_error("tracker-refused", "mlflow", "wrong"):
        run.attach([logger], cfg)


@pytest.mark.wandb
@pytest.mark.usefixtures("offline")
def test_values_that_wandb_refuses_are_user_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run, cfg = new_run(tmp_path)
    monkeypatch.setenv("WANDB_TAGS", f"a,{'b' * 65}")
    with user_error("invalid-tag", "65"):
        wandb_logger().check()  # before a run begins
    monkeypatch.delenv("WANDB_TAGS")
    with user_error("tracker-refused", "a/b"):
        replace(wandb_logger(), project="a/b").check()
    cfg.choices.algo = "c" * 65  # it becomes a tag, too
    with user_error("tracker-refused", "65"):
        run.attach([wandb_logger()], cfg)


# artifacts


def kept_for_wandb(root: Path) -> list[bytes]:
    files = (root / "wandb_data_dir").rglob("*")
    return [file.read_bytes() for file in files if file.is_file()]


def session_of(run: Run) -> bytes:
    wandb.teardown()  # its service flushes files when it ends
    (stored,) = run.folder.glob("wandb/offline-run-*/run-*.wandb")
    return stored.read_bytes()


@pytest.mark.wandb
@pytest.mark.slow
@pytest.mark.usefixtures("offline")
def test_completed_run_uploads_model_and_report(tmp_path: Path):
    asked = ["logger=wandb", "logger.artifacts=[model,report]"]
    process = begun(tmp_path / "runs", "grpo", "it", *asked)
    said = process.communicate()[1]
    assert process.returncode == 0 and "does not get" not in said, said
    run = Run(tmp_path / "runs" / "it")
    noted, identity = session_of(run), run.meta["wandb_id"]
    for word in (f"model-{identity}", f"report-{identity}", "latest", "step-4", "report.html"):
        assert word.encode() in noted
    export(str(run.folder), tmp_path / "exported")
    kept = kept_for_wandb(tmp_path)
    assert (tmp_path / "exported" / "model.safetensors").read_bytes() in kept
    assert any(b"<title>" in text and b"1 configuration<" in text for text in kept)
    assert not list(run.folder.glob(".artifact-*"))


@pytest.mark.wandb
@pytest.mark.slow
@pytest.mark.usefixtures("offline")
def test_an_artifact_that_cannot_be_written_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def on_a_full_disk(folder: Path) -> None:
        raise OSError("No space left on device")

    run, cfg = new_run(tmp_path)
    tracker = wandb_logger("model")
    tracker.writers = {"model": on_a_full_disk}
    with run.track():
        run.attach([tracker], cfg)
        with run.checkpoint(1):
            pass
    assert run.is_done
    line = "wandb does not get the model (No space left on device)"
    assert line in capsys.readouterr().err.splitlines()
