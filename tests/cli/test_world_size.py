"""Unexpected or missing processes are refused before anything is written."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch

from tests.builders.command_line import agentrl, refused, train
from tests.builders.runs import folders, settings

STARTED = {  # by what a launcher says
    "WORLD_SIZE=2 RANK=0 LOCAL_RANK=0": "WORLD_SIZE is 2",  # torchrun, accelerate launch
    "LOCAL_RANK=1": "LOCAL_RANK is 1",
    "OMPI_COMM_WORLD_SIZE=4": "OMPI_COMM_WORLD_SIZE is 4",
    "PMI_SIZE=4": "PMI_SIZE is 4",
    "SLURM_STEP_NUM_TASKS=8": "SLURM_STEP_NUM_TASKS is 8",  # srun
}
ONE = "WORLD_SIZE=1 RANK=0 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=1 PMI_SIZE=1"


def launched(monkeypatch: pytest.MonkeyPatch, variables: str) -> None:
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))


@pytest.mark.parametrize("variables", STARTED)
def test_several_processes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: str
):
    launched(monkeypatch, variables)
    found = train(tmp_path)
    refused(found, STARTED[variables])
    assert not (tmp_path / "runs").exists()


LAUNCHED = "WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=1"


@pytest.mark.parametrize(
    ("variables", "overrides", "value"),
    [
        ("", ["hardware=ddp", "hardware.device=cpu"], "hardware.strategy is ddp"),
        ("", ["hardware=fsdp", "hardware.device=cpu"], "hardware.strategy is fsdp"),
        (LAUNCHED, ["hardware=ddp", "hardware.device=cpu", "hardware.processes=8"],
         "hardware.processes is 8"),
        (LAUNCHED, ["hardware=ddp"], "CUDA"),
        (f"{LAUNCHED} ACCELERATE_USE_FSDP=true", ["hardware=ddp"], "accelerate launch"),
    ],
)  # fmt: skip
def test_impossible_launch_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: str,
    overrides: list[str],
    value: str,
):
    launched(monkeypatch, variables)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused(train(tmp_path, *overrides), value)
    assert not (tmp_path / "runs").exists()


def test_taken_port_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        address, port = place.split(":")
        rest = f"MASTER_ADDR={address} MASTER_PORT={port}"
        launched(monkeypatch, f"WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 {rest}")
        found = train(tmp_path, "hardware=ddp", "hardware.device=cpu")
    refused(found, place)


def test_dry_run_needs_no_launcher(tmp_path: Path):
    found = train(tmp_path, "hardware=ddp", "hardware.device=cpu", "--dry")
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize(
    "verb", ["eval env=twentyq", "sweep seed=0,1 --name it", "reproduce math_grpo"]
)
def test_every_training_verb_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str):
    launched(monkeypatch, "WORLD_SIZE=2")
    monkeypatch.chdir(tmp_path)
    refused(agentrl(*verb.split()), "WORLD_SIZE is 2")
    assert not list(tmp_path.iterdir())


def test_single_launched_process_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    launched(monkeypatch, ONE)
    groups = ["--config-dir", str(folders(tmp_path)), "--dry"]
    assert agentrl("train", *settings(tmp_path / "runs", "grpo", "it"), *groups).exit_code == 0
