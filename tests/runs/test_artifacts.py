"""What W&B gets of a run at its end, by the real wandb without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
import wandb

from agentrl_cli.cli.export import export
from agentrl_cli.runs.loggers import WandbLogger
from agentrl_cli.runs.run import Run
from tests.builders.runs import begun
from tests.runs.test_loggers import new_run

pytestmark = [pytest.mark.wandb, pytest.mark.slow]
FOLDERS = ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in FOLDERS:
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


def kept_for_wandb(root: Path) -> list[bytes]:
    """What W&B has taken a copy of, to be sent later."""
    files = (root / "wandb_data_dir").rglob("*")
    return [file.read_bytes() for file in files if file.is_file()]


def session_of(run: Run) -> bytes:
    """What W&B has noted of a run."""
    wandb.teardown()  # its service flushes files when it ends
    (stored,) = run.folder.glob("wandb/offline-run-*/run-*.wandb")
    return stored.read_bytes()


def logger(*artifacts: str) -> WandbLogger:
    return WandbLogger(
        project="test",
        entity=None,
        mode=None,
        rows=4,
        timeout=60,
        artifacts=list(artifacts),  # pyright: ignore[reportArgumentType]
    )


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
    assert any(b"<title>" in text and b"1 configurations" in text for text in kept)
    assert not list(run.folder.glob(".artifact-*"))


@pytest.mark.usefixtures("offline")
def test_an_artifact_that_cannot_be_written_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def on_a_full_disk(folder: Path) -> None:
        raise OSError("No space left on device")

    run, cfg = new_run(tmp_path)
    tracker = logger("model")
    tracker.writers = {"model": on_a_full_disk}
    with run.track():
        run.attach([tracker], cfg)
        with run.checkpoint(1):
            pass
    assert run.is_done
    line = "wandb does not get the model (No space left on device)"
    assert line in capsys.readouterr().err.splitlines()
