"""A real vLLM server that is killed while episodes are played: `make vllm-test` runs this."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl_cli.cli.train import resume, start
from agentrl_cli.core.errors import RunAborted
from agentrl_cli.core.types import Message, Step, Task
from agentrl_cli.generators.vllm import ServedModel, ServerProcess
from agentrl_cli.runs.run import Run
from tests.builders.models import LORA, write_model
from tests.builders.runs import folders
from tests.builders.vllm import PROGRAM, real_settings, vllm_run
from tests.fakes.coin import CoinEnv

DEADLY_STEP = 20  # of 16 an update, in the middle of the second one's episodes
taken: list[str] = []  # tasks of the training steps so far


@dataclass(kw_only=True)
class KillingCoinEnv(CoinEnv):
    """Kills the processes of a group in one of its steps, as an operating system does."""

    group: int

    def reset(self, task: Task, seed: int) -> list[Message]:
        self.task = task
        return super().reset(task, seed)

    def step(self, action: str) -> Step:
        if self.task.split == "train":
            taken.append(self.task.id)
            if len(taken) == DEADLY_STEP:
                os.killpg(self.group, signal.SIGKILL)
        return super().step(action)


@contextmanager
def server(folder: Path, log: Path) -> Iterator[ServerProcess]:
    """The real one, with a model of that folder."""
    served = ServedModel(path=str(folder), dtype="float32", rank=LORA.rank, models=1)
    with real_settings() as settings:
        process = ServerProcess(settings, served, log)
        try:
            process.wait_until_ready()
            yield process
        finally:
            process.stop()


@pytest.mark.vllm
@pytest.mark.skipif(not PROGRAM.exists(), reason="vLLM is not installed: make vllm-test")
def test_run_with_killed_server_resumes(tmp_path: Path):
    taken.clear()
    folder = write_model(tmp_path / "model", width=128, head=64)
    more = ["steps=3", "eval.baseline=false", "eval_every=0", "hardware.generator.timeout=20"]
    with server(folder, tmp_path / "first.log") as first:
        world = ["env._target_=tests.training.test_lost_vllm.KillingCoinEnv"]
        world += [f"+env.group={first.process.pid}"]
        with pytest.raises(RunAborted, match=first.url) as stopped:
            given = vllm_run(first.url, folder, tmp_path, "grpo", *more, *world)
            start(given, config_dir=folders(tmp_path))
    run = Run(tmp_path / "it")
    assert str(stopped.value).endswith(f"agentrl resume {run.folder}")
    assert run.meta["status"] == "stopped" and run.latest_checkpoint().name == "last-000001"
    assert len(taken) >= DEADLY_STEP
    with server(folder, tmp_path / "second.log") as second:
        resume(str(run.folder), [f"hardware.generator.urls=[{second.url}]"])
    assert Run(run.folder).is_done and run.latest_checkpoint().name == "step-000003"
