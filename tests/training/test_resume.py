"""A repeated run is the same bit for bit; a resumed one equals one that was never interrupted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_cli.cli.train import resume, start
from agentrl_cli.core.errors import UserError
from agentrl_cli.runs.run import Run
from tests.builders.runs import GUARDED, SPEAKER, facts, folders, interrupted, settings, trained
from tests.paths import ROOT

CASES = {
    "sft": ("sft", []),
    "grpo": ("grpo", []),
    "ppo": ("ppo", []),
    "archer": ("archer", []),
    "dpo": ("dpo", []),
    "stepagent_implicit": ("stepagent_implicit", ["algo.reference=iteration"]),
    "stepagent_inverse": ("stepagent_inverse", []),
    "stepagent_inverse, environment": ("stepagent_inverse", ["algo.rollout=environment"]),
    "self_ac": ("self_ac", []),
    "nlac": ("nlac", []),
    "nlac, all phases": ("nlac", [SPEAKER]),
    "nlac, guarded": ("nlac", [SPEAKER, *GUARDED]),
}


@pytest.mark.parametrize(("algo", "more"), CASES.values(), ids=CASES)
def test_a_repeated_run_is_the_same_bit_for_bit(tmp_path: Path, algo: str, more: list[str]):
    first, again = (trained(tmp_path, algo, name, *more) for name in ("first", "again"))
    assert facts(first) == facts(again)


def test_another_seed_is_another_run(tmp_path: Path):
    first, other = (facts(trained(tmp_path, "sft", f"s{i}", f"seed={i}")) for i in range(2))
    assert first["metrics"] != other["metrics"] and first["weights"] != other["weights"]


@pytest.mark.parametrize(("algo", "more"), CASES.values(), ids=CASES)
def test_resume_equals_the_uninterrupted_run(tmp_path: Path, algo: str, more: list[str]):
    run = trained(tmp_path, algo, "whole", *more)
    whole = facts(run)
    assert [folder.name for folder in run.checkpoints()] == ["step-000002", "step-000004"]
    shutil.rmtree(run.latest_checkpoint())  # as if it had died before its last save
    assert facts(run)["weights"] != whole["weights"]
    resume(str(run.folder))
    assert facts(run) == whole
    assert Run(run.folder).meta["status"] == "done"


def test_the_guard_of_the_guarded_case_has_measured_before_it_is_resumed(tmp_path: Path):
    state = facts(trained(tmp_path, "nlac", "it", SPEAKER, *GUARDED))
    assert len(state["state"]["algo"]["guard"]) == 3 and any(state["state"]["algo"]["guard"])
    assert {"guard/gain", "guard/open"} <= state["metrics"][-2].keys()
    rows = [row for row in state["metrics"] if "guard/episodes" in row]
    played = {row["episodes/count"] - row["guard/episodes"] for row in rows}
    assert len(played) == 1 and played.pop() > 0 < rows[-1]["guard/episodes"]


def test_the_parts_of_the_nlac_case_that_resume_must_restore_are_in_use(tmp_path: Path):
    state = facts(trained(tmp_path, "nlac", "it", SPEAKER))
    rows = state["metrics"]
    assert any(row.get("successor/samples") for row in rows)
    assert any(row.get("policy/samples") for row in rows)
    assert len({p for turns in state["state"]["buffer"]["priorities"] for p in turns}) > 2
    assert len(state["buffer"]) == 32 > len(state["state"]["buffer"]["priorities"]) == 20
    models = ("policy", "target", "reference")
    assert len({state["weights"][f"models/{name}/model.safetensors"] for name in models}) == 3
    assert "optimizer/policy.safetensors" in state["weights"]


@pytest.mark.parametrize("at", [1, 5, 12])
def test_an_interrupted_run_is_saved_and_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, at: int, capsys: pytest.CaptureFixture[str]
):
    usual = "hardware.generator={max_batch: 64, cache_tokens: 10000}"
    whole = facts(trained(tmp_path, "grpo", "whole", "save_every=0", usual))
    overrides = settings(tmp_path, "grpo", "cut", "save_every=0", interrupted(tmp_path, at))
    with pytest.raises(KeyboardInterrupt):
        start(overrides, config_dir=folders(tmp_path))
    run = Run(tmp_path / "cut")
    said = capsys.readouterr().err
    assert "interrupted: finishing this step, then saving" in said
    assert f"saved; go on with: agentrl resume {run.folder}" in said
    assert run.meta["status"] == "stopped" and len(run.checkpoints()) == 1
    resume(str(run.folder))
    assert facts(run) == whole


def test_an_interruption_of_the_last_step_changes_nothing(tmp_path: Path):
    trained(tmp_path, "sft", "cut", "steps=1", "eval.baseline=false", interrupted(tmp_path, 1))
    assert (tmp_path / "pressed").exists()
    assert Run(tmp_path / "cut").meta["status"] == "done"


def test_ctrl_c_exits_with_130_and_says_how_to_go_on(tmp_path: Path):
    more = ["--config-dir", str(folders(tmp_path)), interrupted(tmp_path, 5)]
    command = [sys.executable, "-m", "agentrl_cli.cli", "train", *settings(tmp_path, "sft", "cut")]
    done = subprocess.run(
        [*command, *more], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 130 and "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert lines[0] == f"run {tmp_path / 'cut'}"
    assert lines[-1] == f"saved; go on with: agentrl resume {tmp_path / 'cut'}"
    assert Run(tmp_path / "cut").meta["status"] == "stopped"


def test_a_finished_run_is_not_resumed(tmp_path: Path):
    run = trained(tmp_path, "sft", "it", "steps=1")
    before = facts(run)
    with pytest.raises(UserError, match="is at step 1 of 1: nothing is left to do"):
        resume(str(run.folder))
    assert facts(run) == before and Run(run.folder).meta == run.meta


def test_a_finished_run_trained_further_equals_one_that_was_planned_longer(tmp_path: Path):
    whole = facts(trained(tmp_path, "grpo", "whole", "steps=4", "eval_every=2"))
    run = trained(tmp_path, "grpo", "further", "steps=2", "eval_every=2")
    resume(str(run.folder), ["steps=4"])
    assert facts(run) == whole
    (resumed,) = Run(run.folder).meta["resumed"]
    assert (resumed["step"], resumed["steps"]) == (2, 4)
    with pytest.raises(UserError, match="is at step 4 of 4"):
        resume(str(run.folder))


@pytest.mark.parametrize("change", ["algo.optimizer.lr=1", "steps=x", "+steps=9", "algo=sft"])
def test_only_the_number_of_steps_changes_in_a_run(tmp_path: Path, change: str):
    run = trained(tmp_path, "sft", "it", "steps=1")
    before, stored = facts(run), run.config_file.read_text()
    with pytest.raises(UserError):
        resume(str(run.folder), [change])
    assert facts(run) == before and run.config_file.read_text() == stored


def test_a_run_without_a_checkpoint_is_not_resumed(tmp_path: Path):
    run = trained(tmp_path, "sft", "it", "steps=1")
    shutil.rmtree(run.latest_checkpoint())
    with pytest.raises(UserError, match="no checkpoint; repeat it with agentrl train --config"):
        resume(str(run.folder))


def test_a_checkpoint_that_cannot_be_read_leaves_the_logs_alone(tmp_path: Path):
    run = trained(tmp_path, "sft", "it")
    shutil.rmtree(run.latest_checkpoint())
    (run.latest_checkpoint() / "models" / "policy" / "model.safetensors").write_bytes(b"no")
    before = (run.folder / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="cannot read weights"):
        resume(str(run.folder))
    assert (run.folder / "metrics.jsonl").read_bytes() == before
