"""Unusable runs, checkpoints and disks: one sentence each, and nothing is overwritten."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agentrl_cli.config.compose import check, compose
from agentrl_cli.report.records import read_record
from agentrl_cli.runs.run import Run
from tests.builders.command_line import agentrl, refused, train
from tests.builders.errors import user_error
from tests.builders.runs import facts, folders, saved, settings, trained

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


def test_existing_folder_is_refused_and_untouched(tmp_path: Path):
    (tmp_path / "runs" / "it").mkdir(parents=True)
    (tmp_path / "runs" / "it" / "precious").write_text("mine")
    refused(train(tmp_path), f"'{tmp_path}/runs/it'")
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
def test_damaged_checkpoint_is_refused(run: Run, part: str, damage: str):
    file = run.latest_checkpoint() / SAVED[part]
    data = DAMAGE[damage](file.read_bytes())
    file.unlink() if data is None else file.write_bytes(data)
    before = contents(run.folder)
    result = agentrl("resume", str(run.folder))
    refused(result, "'")
    assert str(run.latest_checkpoint()) in result.stderr
    assert contents(run.folder) == before


def test_resume_uses_the_previous_whole_checkpoint(run: Run, done: Run):
    shutil.copytree(done.latest_checkpoint(), run.folder / "checkpoints" / "step-000004")
    file = run.latest_checkpoint() / "optimizer/policy.safetensors"
    file.write_bytes(DAMAGE["has one bit flipped"](file.read_bytes()))
    run.set_status("stopped")
    result = agentrl("resume", str(run.folder))
    assert result.exit_code == 0
    first = result.stderr.splitlines()[0]
    assert str(file) in first and f"{run.folder}/checkpoints/step-000002" in first
    assert facts(run) == facts(done) and saved(run) == saved(done)


def test_only_files_that_are_read_must_be_whole(run: Run):
    (run.latest_checkpoint() / "optimizer/policy.safetensors").write_bytes(b"")
    assert agentrl("eval", str(run.folder)).exit_code == 0
    refused(agentrl("resume", str(run.folder)), "'")
    (run.latest_checkpoint() / WEIGHTS).write_bytes(b"")
    refused(agentrl("eval", str(run.folder)), f"'{run.latest_checkpoint() / WEIGHTS}'")


def test_unstored_result_is_still_shown(run: Run):
    (run.folder / "evaluations.jsonl").mkdir()
    result = agentrl("eval", str(run.folder), "--json")
    assert result.exit_code == 2 and "eval/test_success" in json.loads(result.stdout)
    (line,) = result.stderr.splitlines()
    assert f"'{run.folder}/evaluations.jsonl'" in line


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
def test_forged_record_is_refused(run: Run, entries: dict[str, object]):
    (run.folder.parent / "victim").write_text("precious")
    rewritten(run, **entries)
    before = contents(run.folder.parent)
    refused(agentrl("resume", str(run.folder)), "'")
    assert contents(run.folder.parent) == before


def test_old_checkpoint_is_played_but_not_resumed(run: Run):
    (run.folder.parent / "victim").write_text("precious")
    record = {"version": 1, "step": 2, "offsets": {"../victim": 0}}
    (run.latest_checkpoint() / "run.json").write_text(json.dumps(record))
    assert agentrl("eval", str(run.folder)).exit_code == 0
    refused(agentrl("resume", str(run.folder)), f"'{run.latest_checkpoint()}'")
    assert (run.folder.parent / "victim").read_text() == "precious"


@pytest.mark.parametrize("name", ["metrics.jsonl", "episodes/eval-000009.jsonl", ".lock"])
def test_link_out_of_the_run_is_refused(run: Run, name: str):
    victim = run.folder.parent / "victim"
    victim.write_text("precious")
    (run.folder / name).unlink(missing_ok=True)
    (run.folder / name).symlink_to(victim)
    refused(agentrl("resume", str(run.folder)), f"'{run.folder / name}'")
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["meta.json", "config.yaml", "metrics.jsonl"])
def test_records_are_files_of_their_run(run: Run, name: str):
    victim = run.folder.parent / "victim"
    (run.folder / name).rename(victim)
    (run.folder / name).symlink_to(victim)
    with user_error("link-out-of-run", f"'{run.folder / name}'"):
        Run(run.folder)
    (run.folder / name).unlink()
    os.mkfifo(run.folder / name)  # reading it would never end
    shown = "not found in" if name == "meta.json" else f"'{run.folder / name}'"
    refused(agentrl("show", str(run.folder)), shown)


def test_shown_episodes_are_files_of_their_run(run: Run):
    (file,) = run.episode_files("eval")[-1:]
    victim = file.rename(run.folder.parent / "victim.jsonl")
    file.symlink_to(victim)
    refused(agentrl("show", str(run.folder)), f"'{file}'")


def test_aliases_of_a_configuration_are_refused(run: Run):
    layers = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    run.config_file.write_text("\n".join(["a0: &a0 [x]", *layers]))
    refused(agentrl("eval", str(run.folder)), f"'{run.config_file}'")
    assert any("config.yaml cannot be read" in note for note in read_record(run).notes)


def test_link_of_wandb_is_accepted(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    odd = run.folder.rename(run.folder.with_name("it [copy]"))
    (odd / "wandb" / "offline-run-1" / "logs").mkdir(parents=True)
    (odd / "wandb" / "offline-run-1" / "logs" / "debug-core.log").symlink_to(tmp_path / "log")
    (odd / "wandb" / "latest").symlink_to(odd / "episodes")
    monkeypatch.chdir(odd)
    for folder in (odd, Path()):
        Run(folder).validate_links()


def test_weights_of_another_model_are_refused(run: Run, model_folder: Path):
    policy = run.latest_checkpoint() / "models" / "policy"
    shutil.copy(model_folder / "model.safetensors", policy)
    shutil.copy(model_folder / "config.json", policy)
    rewritten(run, files={})
    before = contents(run.folder)
    refused(agentrl("resume", str(run.folder)), str(policy))
    assert contents(run.folder) == before


def test_init_from_another_model_is_refused(tmp_path: Path, model_folder: Path):
    result = train(tmp_path, f"init={model_folder}")
    refused(result, str(model_folder))
    assert not (tmp_path / "runs" / "it").exists()


def test_checkpoint_of_another_algorithm_is_refused(run: Run):
    other = settings(run.folder.parent, "nlac", "other")
    cfg = check(compose(other, [folders(run.folder.parent)]))
    OmegaConf.save(cfg, run.config_file, resolve=True)
    before = contents(run.folder)
    target = run.latest_checkpoint() / "models" / "target"
    refused(agentrl("resume", str(run.folder)), f"'{target}'")
    assert contents(run.folder) == before


def test_damaged_configuration_is_refused(run: Run):
    text = run.config_file.read_text()
    run.config_file.write_text(text.replace("weight_decay: 0.0", "weight_decay: nothing"))
    for verb in ("resume", "eval"):
        refused(agentrl(verb, str(run.folder)), "algo.optimizer.weight_decay")
