"""Several processes at once are refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

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
def test_training_in_several_processes_is_refused_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: str
):
    launched(monkeypatch, variables)
    refused(train(tmp_path), f"{STARTED[variables]}, so several processes were started")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "verb", ["resume last", "eval env=twentyq", "sweep seed=0,1 --name it", "reproduce math_grpo"]
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
