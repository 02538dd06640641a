"""Several processes that train one run, on the CPU, as a launcher would start them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from agentrl_cli.generators.base import Completion, Sampling
from agentrl_cli.generators.hf import HFGenerator
from agentrl_cli.runs.run import Run
from tests.builders.runs import Settings, folders, settings
from tests.paths import ROOT

SECONDS = 240  # after which processes that wait for each other are ended
DDP = ("hardware=ddp", "hardware.device=cpu")
FSDP = ("hardware=fsdp", "hardware.device=cpu", "hardware.mixed_precision=null")


@dataclass(frozen=True)
class Ended:
    """How a process ended and what it said."""

    code: int
    out: str
    err: str


def variables(rank: int, size: int, port: int) -> dict[str, str]:
    given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return {name: str(value) for name, value in given.items()} | place


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def launch(*commands: list[str], places: tuple[Path, ...] = ()) -> list[Ended]:
    """One process for each command of agentrl, in its place where one is given, until all have
    ended."""
    port, size = free_port(), len(commands)
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "agentrl_cli.cli", *command],
            cwd=places[rank] if places else ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables(rank, size, port)},
        )
        for rank, command in enumerate(commands)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    return [Ended(p.returncode, *texts) for p, texts in zip(started, said, strict=True)]


def started_by(launcher: Sequence[str], command: list[str]) -> Ended:
    """What a real launcher's two processes of agentrl said together, until both have ended."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-m", *launcher, "-m", "agentrl_cli.cli", *command]
    done = subprocess.run(
        program, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=SECONDS
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def train_command(root: Path, algo: str, name: str, *more: str) -> Settings:
    return ["train", *settings(root, algo, name, *more), "--config-dir", str(folders(root))]


def trained_by(size: int, root: Path, algo: str, name: str, *more: str) -> Run:
    ends = launch(*[train_command(root, algo, name, *more)] * size)
    assert [end.code for end in ends] == [0] * size, ends
    return Run(root / name)


def weights(run: Run) -> dict[str, Tensor]:
    folder = run.latest_checkpoint() / "models"
    files = sorted(folder.rglob("*.safetensors"))
    pairs = ((str(file.relative_to(folder)), load_file(file)) for file in files)
    return {f"{file}:{key}": weight for file, found in pairs for key, weight in found.items()}


def largest_gap(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return float(torch.stack([(one[key] - other[key]).abs().max() for key in one]).max())


@dataclass(kw_only=True)
class Dying(HFGenerator):
    """Ends the process of rank `rank` in its call number `at`, as an operating system does."""

    rank: int
    at: int
    calls: int = field(default=0, init=False)

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        self.calls += 1
        if self.calls == self.at and os.environ.get("RANK") == str(self.rank):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().generate(prompts, seeds, sampling, model)


def dying(rank: int, at: int) -> str:
    target = f"_target_: tests.builders.ranks.Dying, rank: {rank}, at: {at}"
    return f"hardware.generator={{{target}, max_batch: 64, cache_tokens: 10000}}"
