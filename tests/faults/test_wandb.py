"""W&B that refuses, hangs, is lost in mid-run or slow: the run goes on and is sent later."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentrl_cli.runs.run import Run
from tests.builders.runs import begun
from tests.faults.wandb_server import Server, served

pytestmark = [pytest.mark.extras, pytest.mark.wandb]
LIMIT = 6  # seconds at the start, and at the end
OFFLINE = f"wandb gave no answer within {LIMIT} s; logging offline"
ADVICE = "wandb has not got all of this run; send it with: "


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


def train(root: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> tuple[str, float]:
    """Train a small run to its end; what it said, and how many seconds it took."""
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    began = time.monotonic()
    process = begun(root, "sft", "it", "logger=wandb", f"logger.timeout={LIMIT}")
    said = process.communicate()[1]
    assert process.returncode == 0 and "Traceback" not in said, said
    run = Run(root / "it")
    assert run.is_done and [row["step"] for row in run.metrics()] == [0, 1, 2, 2, 3, 4, 4]
    return said, time.monotonic() - began


def sync(said: str, server: Server) -> None:
    """Do as the last advice says."""
    (advice,) = [line for line in said.splitlines() if line.startswith(ADVICE)]
    command = shlex.split(advice.removeprefix(ADVICE))
    assert command[:2] == ["wandb", "sync"] and Path(command[-1]).is_dir()
    environment = {**os.environ, "WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}"}
    done = subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True,
        cwd=command[-1],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert has_metrics(server), done.stdout + done.stderr


def has_metrics(server: Server) -> bool:
    streamed = [text for text in server.seen if "file_stream" in text]
    return any("reward/mean" in text for text in streamed)


def test_a_run_that_wandb_refuses_to_speak_with_is_logged_offline_and_sent_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with served() as server:
        pass
    said, _ = train(tmp_path, monkeypatch, server)
    assert OFFLINE in said.splitlines()
    with served() as server:
        sync(said, server)


def test_a_run_waits_no_longer_than_it_may_for_a_wandb_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with served(fails="hangs") as server:
        said, _ = train(tmp_path, monkeypatch, server)
    assert OFFLINE in said.splitlines() and ADVICE in said


@pytest.mark.parametrize("fails", ["is lost", "hangs later"])
def test_a_run_that_loses_wandb_goes_on_and_is_sent_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
):
    with served(fails=fails) as server:
        said, seconds = train(tmp_path, monkeypatch, server)
    assert OFFLINE not in said and not has_metrics(server)
    assert said.count("wandb failed (") == 1 and seconds < 200
    with served() as server:
        sync(said, server)


def test_a_slow_wandb_gets_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with served(delay=0.5) as server:
        said, _ = train(tmp_path, monkeypatch, server)
    assert OFFLINE not in said and has_metrics(server)
