"""Runs, checkpoints and disks that cannot be used: one sentence each, nothing overwritten."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agentrl_cli.config.compose import check, compose
from agentrl_cli.runs.run import Run
from tests.builders.command_line import agentrl, refused, train
from tests.builders.runs import folders, settings, trained
from tests.paths import ROOT

# runs and checkpoints


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("runs"), "sft", "it")


@pytest.fixture
def run(tmp_path: Path, done: Run) -> Run:
    """A copy of a run whose last checkpoint was lost, so that it can be resumed."""
    shutil.copytree(done.folder, tmp_path / "copy")
    copied = Run(tmp_path / "copy")
    shutil.rmtree(copied.latest_checkpoint())
    return copied


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_run_folder_that_exists_is_refused_and_untouched(tmp_path: Path):
    (tmp_path / "runs" / "it").mkdir(parents=True)
    (tmp_path / "runs" / "it" / "precious").write_text("mine")
    refused(train(tmp_path), f"run folder '{tmp_path}/runs/it' exists; choose another name=")
    assert [file.name for file in (tmp_path / "runs" / "it").iterdir()] == ["precious"]


WEIGHTS = "models/policy/model.safetensors"
DAMAGE = {
    "weights are cut": (WEIGHTS, b"\x00" * 20, "cannot read weights from"),
    "weights are gone": (WEIGHTS, None, "cannot read weights from"),
    "versions are gone": ("models/versions.json", None, "'"),
    "optimizer is cut": ("optimizer/policy.safetensors", b"{}", "cannot read the optimizers in"),
    "optimizer is gone": ("optimizer/optimizers.json", None, "cannot read the optimizers in"),
    "state is no JSON": ("state.json", b"{", "'"),
    "state is foreign": ("state.json", b'{"algo": {}}', "'"),
    "mark is foreign": ("run.json", b'{"step": 1}', "'"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_an_unreadable_checkpoint_is_refused_and_nothing_is_overwritten(run: Run, case: str):
    name, text, sentence = DAMAGE[case]
    file = run.latest_checkpoint() / name
    file.unlink() if text is None else file.write_bytes(text)
    before = contents(run.folder)
    result = agentrl("resume", str(run.folder))
    refused(result, sentence)
    assert str(run.latest_checkpoint()) in result.stderr
    assert contents(run.folder) == before


def test_weights_of_another_model_are_refused(run: Run, model_folder: Path):
    policy = run.latest_checkpoint() / "models" / "policy"
    shutil.copy(model_folder / "model.safetensors", policy)
    shutil.copy(model_folder / "config.json", policy)
    before = contents(run.folder)
    refused(agentrl("resume", str(run.folder)), f"the weights in {policy} are of another model")
    assert contents(run.folder) == before


def test_init_from_weights_of_another_model_is_refused(tmp_path: Path, model_folder: Path):
    result = train(tmp_path, f"init={model_folder}")
    refused(result, f"the weights in {model_folder} are of another model")
    assert not (tmp_path / "runs" / "it").exists()


def test_a_checkpoint_of_another_algorithm_is_refused(run: Run):
    other = settings(run.folder.parent, "nlac", "other")
    cfg = check(compose(other, folders(run.folder.parent)))
    OmegaConf.save(cfg, run.config_file, resolve=True)
    before = contents(run.folder)
    target = run.latest_checkpoint() / "models" / "target"
    missing = f"'{target}' does not exist; give a checkpoint that has a 'target'"
    refused(agentrl("resume", str(run.folder)), missing)
    assert contents(run.folder) == before


def test_a_configuration_that_was_spoiled_is_refused(run: Run):
    text = run.config_file.read_text()
    run.config_file.write_text(text.replace("weight_decay: 0.0", "weight_decay: nothing"))
    wrong = "algo.optimizer.weight_decay must be a float, not 'nothing'"
    refused(agentrl("resume", str(run.folder)), wrong)
    refused(agentrl("eval", str(run.folder)), wrong)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path):
    (tmp_path / "meta.json").write_text("[]")
    refused(agentrl("resume", str(tmp_path)), f"'{tmp_path}/meta.json' is not a JSON object")
    refused(agentrl("eval", str(tmp_path)), f"'{tmp_path}/meta.json' is not a JSON object")


# the disk


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path):
    (tmp_path / "runs").write_text("a file")
    refused(train(tmp_path), f"'{tmp_path}/runs/it' cannot be written")


@pytest.mark.parametrize("limit", [2**10, 2**16])
def test_no_space_is_one_sentence_and_no_checkpoint_is_half_written(tmp_path: Path, limit: int):
    """A file may grow to `limit` bytes: too few for meta.json, for the weights."""
    command = [sys.executable, "-m", "agentrl_cli.cli", "train", *settings(tmp_path, "sft", "it")]
    result = subprocess.run(
        [*command, "--config-dir", str(folders(tmp_path))], capture_output=True, text=True,
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    last = result.stderr.strip().splitlines()[-1]
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert last.startswith(f"'{tmp_path}/it") and "cannot be written" in last
    assert not list(tmp_path.glob("it/checkpoints/*")) and not list(tmp_path.rglob("*partial*"))
    assert (tmp_path / "it").exists() is (limit > 2**10)
    if limit > 2**10:
        assert json.loads((tmp_path / "it" / "meta.json").read_text())["status"] == "failed"
