"""Missing or unexpected processes of a launcher are refused before anything is written."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch
from typer.testing import Result

from tests.builders.command_line import agentrl, train
from tests.builders.runs import DEMOS, folders, settings, trained

STARTED = [  # by torchrun or accelerate launch, mpirun, srun
    "WORLD_SIZE=2 RANK=0 LOCAL_RANK=0", "LOCAL_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "PMI_SIZE=4",
    "SLURM_STEP_NUM_TASKS=8",
]  # fmt: skip
ONE = "WORLD_SIZE=1 RANK=0 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=1 PMI_SIZE=1"
RANK0 = "WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=1"
DDP = ("hardware=ddp", "hardware.device=cpu")


def launched(monkeypatch: pytest.MonkeyPatch, variables: str) -> None:
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))


def refused(result: Result, shown: str) -> None:
    assert result.exit_code == 2 and result.stdout == "", result.output
    (line,) = result.stderr.strip().splitlines()
    assert shown in line and "; " in line, line


@pytest.mark.parametrize("variables", STARTED)
def test_several_processes_without_strategy_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: str
):
    launched(monkeypatch, variables)
    name, value = variables.split()[0].split("=")
    refused(train(tmp_path), f"{name} is {value}")
    assert not (tmp_path / "runs").exists()


def test_resume_by_several_processes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = trained(tmp_path, "sft", "it", "steps=1", DEMOS)
    launched(monkeypatch, "WORLD_SIZE=2")
    refused(agentrl("resume", str(run.folder), "steps=2"), "WORLD_SIZE is 2")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_strategy_without_launcher_is_refused(tmp_path: Path, strategy: str):
    found = train(tmp_path, f"hardware={strategy}", "hardware.device=cpu")
    refused(found, f"hardware.strategy is {strategy}")
    assert "accelerate launch" in found.stderr and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("variables", "overrides", "shown"),
    [
        ("", [*DDP, "hardware.processes=8"], "hardware.processes is 8"),
        ("", ["hardware=ddp"], "CUDA"),
        ("ACCELERATE_USE_FSDP=true", ["hardware=ddp"], "ACCELERATE_USE_FSDP"),
    ],
)
def test_unusable_launches_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: str,
    overrides: list[str],
    shown: str,
):
    launched(monkeypatch, f"{RANK0} {variables}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused(train(tmp_path, *overrides), shown)


def test_used_rendezvous_port_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        launched(monkeypatch, f"{RANK0} MASTER_ADDR=127.0.0.1 MASTER_PORT={port}")
        refused(train(tmp_path, *DDP), f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    "verb", ["eval env=twentyq", "sweep seed=0,1 --name it", "reproduce math_grpo"]
)
def test_computing_commands_refuse_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
):
    launched(monkeypatch, "WORLD_SIZE=2")
    monkeypatch.chdir(tmp_path)
    refused(agentrl(*verb.split()), "WORLD_SIZE is 2")
    assert not list(tmp_path.iterdir())


def test_dry_runs_and_single_processes_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert train(tmp_path, *DDP, "--dry").exit_code == 0
    launched(monkeypatch, ONE)
    groups = ["--config-dir", str(folders(tmp_path)), "--dry"]
    assert agentrl("train", *settings(tmp_path / "runs", "grpo", "it"), *groups).exit_code == 0
