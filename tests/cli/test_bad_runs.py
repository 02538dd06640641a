"""Runs, checkpoints and disks that cannot be used: one sentence each, nothing overwritten."""

from __future__ import annotations

import hashlib
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
from tests.builders.runs import facts, folders, saved, settings, trained
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
SAVED = {
    "weights": WEIGHTS,
    "versions": "models/versions.json",
    "optimizer": "optimizer/policy.safetensors",
    "optimizer's steps": "optimizer/optimizers.json",
    "state": "state.json",
    "record": "run.json",
}
DAMAGE = {
    "is gone": lambda data: None,
    "is empty": lambda data: b"",
    "has one bit flipped": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "is nested": lambda data: b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("part", SAVED)
def test_a_damaged_checkpoint_is_refused_and_nothing_is_overwritten(
    run: Run, part: str, damage: str
):
    file = run.latest_checkpoint() / SAVED[part]
    data = DAMAGE[damage](file.read_bytes())
    file.unlink() if data is None else file.write_bytes(data)
    before = contents(run.folder)
    result = agentrl("resume", str(run.folder))
    refused(result, "'")
    assert str(run.latest_checkpoint()) in result.stderr
    assert contents(run.folder) == before


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(run: Run, done: Run):
    shutil.copytree(done.latest_checkpoint(), run.folder / "checkpoints" / "step-000004")
    file = run.latest_checkpoint() / "optimizer/policy.safetensors"
    file.write_bytes(DAMAGE["has one bit flipped"](file.read_bytes()))
    run.set_status("stopped")
    result = agentrl("resume", str(run.folder))
    first = result.stderr.splitlines()[0]
    assert result.exit_code == 0
    assert first == (
        f"'{file}' is not as it was saved; "
        f"checkpoint '{run.folder}/checkpoints/step-000002' is used instead"
    )
    assert facts(run) == facts(done) and saved(run) == saved(done)


def test_only_the_files_that_are_read_must_be_as_they_were_saved(run: Run):
    (run.latest_checkpoint() / "optimizer/policy.safetensors").write_bytes(b"")
    assert agentrl("eval", str(run.folder)).exit_code == 0
    refused(agentrl("resume", str(run.folder)), "'")
    (run.latest_checkpoint() / WEIGHTS).write_bytes(b"")
    refused(agentrl("eval", str(run.folder)), f"'{run.latest_checkpoint() / WEIGHTS}' is not as")


def test_a_result_that_cannot_be_stored_is_shown_first(run: Run):
    (run.folder / "evaluations.jsonl").mkdir()
    result = agentrl("eval", str(run.folder), "--json")
    assert result.exit_code == 2 and "eval/test_success" in json.loads(result.stdout)
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"'{run.folder}/evaluations.jsonl' cannot be written (Is a directory)")
    assert line.endswith("the result is shown, but not stored")


def rewritten(run: Run, **entries: object) -> None:
    """Write entries into the record of the last checkpoint as somebody who knows its form."""
    file = run.latest_checkpoint() / "run.json"
    record = {**json.loads(file.read_text()), **entries}
    del record["digest"]
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps({**record, "digest": digest}))


@pytest.mark.parametrize(
    "entries",
    [
        {"metric_lines": -1}, {"metric_lines": 1.0}, {"metric_lines": True}, {"metric_lines": 99},
        {"step": -2}, {"step": "2"}, {"files": []}, {"files": {"../../../victim": "0"}},
        {"files": {"/etc/hostname": "0"}}, {"files": {"state.json": 5}}, {"files": {"\0": "0"}},
        {"offsets": {"../victim": 0}}, {"version": 3},
    ],
)  # fmt: skip
def test_a_foreign_record_is_refused_and_nothing_is_cut(run: Run, entries: dict[str, object]):
    (run.folder.parent / "victim").write_text("precious")
    rewritten(run, **entries)
    before = contents(run.folder.parent)
    refused(agentrl("resume", str(run.folder)), "'")
    assert contents(run.folder.parent) == before


def test_a_checkpoint_of_version_1_is_played_and_not_resumed(run: Run):
    (run.folder.parent / "victim").write_text("precious")
    record = {"version": 1, "step": 2, "offsets": {"../victim": 0}}
    (run.latest_checkpoint() / "run.json").write_text(json.dumps(record))
    assert agentrl("eval", str(run.folder)).exit_code == 0
    refused(agentrl("resume", str(run.folder)), f"checkpoint '{run.latest_checkpoint()}' is of an")
    assert (run.folder.parent / "victim").read_text() == "precious"


@pytest.mark.parametrize("name", ["metrics.jsonl", "episodes/eval-000009.jsonl", ".lock"])
def test_a_link_that_leads_out_of_the_run_is_refused(run: Run, name: str):
    victim = run.folder.parent / "victim"
    victim.write_text("precious")
    (run.folder / name).unlink(missing_ok=True)
    (run.folder / name).symlink_to(victim)
    sentence = f"'{run.folder / name}' is a link that leads out of the run; put what"
    refused(agentrl("resume", str(run.folder)), sentence)
    assert victim.read_text() == "precious"


def test_wandbs_own_link_is_no_matter_wherever_the_run_is_named_from(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    odd = run.folder.rename(run.folder.with_name("it [copy]"))
    (odd / "wandb" / "offline-run-1" / "logs").mkdir(parents=True)
    (odd / "wandb" / "offline-run-1" / "logs" / "debug-core.log").symlink_to(tmp_path / "log")
    monkeypatch.chdir(odd)
    for folder in (odd, Path()):
        Run(folder).refuse_links()


def test_a_link_within_the_run_is_no_matter(run: Run):
    (run.folder / "wandb").mkdir()
    (run.folder / "wandb" / "latest").symlink_to(run.folder / "episodes")
    with run.lock():
        pass


def test_weights_of_another_model_are_refused(run: Run, model_folder: Path):
    policy = run.latest_checkpoint() / "models" / "policy"
    shutil.copy(model_folder / "model.safetensors", policy)
    shutil.copy(model_folder / "config.json", policy)
    rewritten(run, files={})
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
    wrong = "algo.optimizer.weight_decay must be ... 'nothing'"
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


@pytest.mark.slow
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
