"""W&B that refuses, hangs, is lost in mid-run or slow: the run goes on and is sent later."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl_cli.runs.run import Run
from stress.wandb_server import Server, served
from tests.builders.runs import begun

pytestmark = [pytest.mark.extras, pytest.mark.wandb]
LIMIT = 10  # seconds at the start, and at the end
FAILURES = ("refuses", "hangs", "is lost", "hangs later")
OFFLINE = f"wandb gave no answer within {LIMIT} s; logging offline"
ADVICE = "wandb has not got all of this run; send it with: "


@dataclass
class Trained:
    """How a small run ended before a server that fails: what it said, in how many seconds, and
    what the server saw."""

    said: str
    seconds: float
    server: Server


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    folder = tmp_path_factory.mktemp("wandb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", "0" * 40)
        patch.delenv("WANDB_MODE", raising=False)
        for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
            patch.setenv(name, str(folder / name.lower()))
        yield patch


@pytest.fixture(scope="module")
def failed(
    account: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Trained]:
    """The runs by how their server fails, side by side, since they mostly wait."""
    with ThreadPoolExecutor(len(FAILURES)) as pool:
        folders = [tmp_path_factory.mktemp("runs") for _ in FAILURES]
        return dict(zip(FAILURES, pool.map(train, folders, FAILURES), strict=True))


def train(root: Path, fails: str, delay: float = 0.0) -> Trained:
    began = time.monotonic()
    with served(fails=fails, delay=delay) as server:
        if fails == "refuses":
            server.server_close()
        process = begun(
            root, "sft", "it", "logger=wandb", f"logger.timeout={LIMIT}",
            "logger.artifacts=[model,report]",
            WANDB_BASE_URL=f"http://127.0.0.1:{server.server_port}",
        )  # fmt: skip
        said = process.communicate()[1]
    assert process.returncode == 0 and "Traceback" not in said, said
    run = Run(root / "it")
    assert run.is_done and [row["step"] for row in run.metrics()] == [0, 1, 2, 2, 3, 4, 4]
    return Trained(said, time.monotonic() - began, server)


def sync(said: str, server: Server) -> None:
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


def test_a_slow_wandb_gets_the_run(tmp_path: Path, account: pytest.MonkeyPatch):
    slow = train(tmp_path, "", delay=0.5)
    assert OFFLINE not in slow.said and has_metrics(slow.server)


def test_refused_run_is_logged_offline_and_sent(failed: dict[str, Trained]):
    said = failed["refuses"].said
    assert OFFLINE in said.splitlines()
    with served() as server:
        sync(said, server)


def test_hanging_wandb_costs_at_most_the_timeout(failed: dict[str, Trained]):
    said = failed["hangs"].said
    assert OFFLINE in said.splitlines() and ADVICE in said


@pytest.mark.parametrize("fails", ["is lost", "hangs later"])
def test_run_that_loses_wandb_is_sent_later(failed: dict[str, Trained], fails: str):
    lost = failed[fails]
    assert OFFLINE not in lost.said and not has_metrics(lost.server)
    assert lost.said.count("wandb failed (") == 1 and lost.seconds < 200
    with served() as server:
        sync(lost.said, server)
