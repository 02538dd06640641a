"""Processes that were not asked for, or are missing, are refused before anything is written."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch

from tests.builders.command_line import agentrl, refused, train
from tests.builders.runs import DEMOS, folders, settings, trained

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
def test_training_in_several_processes_is_refused_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: str
):
    launched(monkeypatch, variables)
    found = train(tmp_path)
    refused(found, f"{STARTED[variables]}, so several processes were started")
    assert "give hardware=ddp, or hardware=fsdp for full weights" in found.stderr
    assert not (tmp_path / "runs").exists()


def test_a_run_of_one_process_is_not_resumed_by_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = trained(tmp_path, "sft", "it", "steps=1", DEMOS)
    launched(monkeypatch, "WORLD_SIZE=2")
    refused(agentrl("resume", str(run.folder), "steps=2"), "WORLD_SIZE is 2, so several processes")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_strategy_without_a_launcher_is_refused(tmp_path: Path, strategy: str):
    found = train(tmp_path, f"hardware={strategy}", "hardware.device=cpu")
    refused(found, f"hardware.strategy is {strategy}, but no launcher has set RANK")
    assert "accelerate launch" in found.stderr and not (tmp_path / "runs").exists()


def test_another_number_of_processes_than_was_asked_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    launched(monkeypatch, "WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=1")
    found = train(tmp_path, "hardware=ddp", "hardware.device=cpu", "hardware.processes=8")
    refused(found, "hardware.processes is 8, but the launcher has started 2")


def test_devices_that_are_missing_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    launched(monkeypatch, "WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused(train(tmp_path, "hardware=ddp"), "hardware 'ddp' needs CUDA devices and none was found")


def test_an_engine_of_the_launcher_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    launched(monkeypatch, "WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=1")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    refused(train(tmp_path, "hardware=ddp"), "accelerate launch brings an engine of its own")


def test_a_place_of_meeting_that_is_taken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        address, port = place.split(":")
        rest = f"MASTER_ADDR={address} MASTER_PORT={port}"
        launched(monkeypatch, f"WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 {rest}")
        found = train(tmp_path, "hardware=ddp", "hardware.device=cpu")
    refused(found, f"the processes of this run do not find each other at {place}")


def test_a_dry_run_needs_no_launcher(tmp_path: Path):
    found = train(tmp_path, "hardware=ddp", "hardware.device=cpu", "--dry")
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize(
    "verb", ["eval env=twentyq", "sweep seed=0,1 --name it", "reproduce math_grpo"]
)
def test_every_verb_that_computes_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
):
    launched(monkeypatch, "WORLD_SIZE=2")
    monkeypatch.chdir(tmp_path)
    refused(agentrl(*verb.split()), "WORLD_SIZE is 2, so several processes were started")
    assert not list(tmp_path.iterdir())


def test_one_process_of_a_launcher_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    launched(monkeypatch, ONE)
    groups = ["--config-dir", str(folders(tmp_path)), "--dry"]
    assert agentrl("train", *settings(tmp_path / "runs", "grpo", "it"), *groups).exit_code == 0
