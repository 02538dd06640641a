"""A repeated run is the same bit for bit; a resumed one equals one that was never interrupted."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl_cli.cli.train import resume, start
from agentrl_cli.config.compose import load
from agentrl_cli.core.errors import UserError
from agentrl_cli.runs.run import Run
from agentrl_cli.training.loop import interruptible
from tests.builders.errors import user_error
from tests.builders.runs import (
    DEMOS,
    GUARDED,
    SPEAKER,
    facts,
    folders,
    interrupted,
    saved,
    settings,
    trained,
)

NLRL = ["algo._target_=agentrl_cli.algos.NLRL", "+algo.rollouts=2"]
SELF_DISTILLATION = ["algo._target_=agentrl_cli.algos.NLACSelfDistillation", "+algo.rollouts=2"]
CASES = {
    "sft": ("sft", []),
    "rft": ("rft", []),
    "grpo": ("grpo", []),
    "ppo": ("ppo", []),
    "archer": ("archer", []),
    "archer_small": ("archer_small", []),
    "dpo": ("dpo", []),
    "stepagent_implicit": ("stepagent_implicit", ["algo.reference=iteration"]),
    "stepagent_inverse": ("stepagent_inverse", []),
    "stepagent_inverse, environment": ("stepagent_inverse", ["algo.rollout=environment"]),
    "self_ac": ("self_ac", []),
    "nlac": ("nlac", []),
    "nlac, all phases": ("nlac", [SPEAKER]),
    "nlac, guarded": ("nlac", [SPEAKER, *GUARDED]),
    "nlac_role_sft": ("nlac_role_sft", [SPEAKER, "algo.turns_per_update=8", DEMOS]),
    "nlac, nlrl": ("nlac", [SPEAKER, *NLRL]),
    "nlac, self_distillation": ("nlac", [SPEAKER, *SELF_DISTILLATION]),
}
EVERY_TIME = ("grpo", "nlac, guarded")  # among the fast tests
MARKED = [
    pytest.param(*case, id=name, marks=[] if name in EVERY_TIME else pytest.mark.slow)
    for name, case in CASES.items()
]

NOWHERE_ELSE = (  # are two whole runs compared
    "rft", "ppo", "dpo", "archer_small", "stepagent_implicit", "stepagent_inverse, environment",
    "nlac_role_sft",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "more"), [CASES[name] for name in NOWHERE_ELSE])
def test_repeated_run_is_bit_identical(tmp_path: Path, algo: str, more: list[str]):
    first, again = (trained(tmp_path, algo, name, *more) for name in ("first", "again"))
    assert facts(first) == facts(again)


@pytest.mark.slow
def test_another_seed_is_another_run(tmp_path: Path):
    first, other = (facts(trained(tmp_path, "sft", f"s{i}", f"seed={i}")) for i in range(2))
    assert first["metrics"] != other["metrics"] and first["weights"] != other["weights"]


@pytest.mark.parametrize(("algo", "more"), MARKED)
def test_resume_equals_the_uninterrupted_run(tmp_path: Path, algo: str, more: list[str]):
    run = trained(tmp_path, algo, "whole", *more)
    whole, checkpoints = facts(run), saved(run)
    assert list(checkpoints) == ["step-000002", "step-000004"]
    shutil.rmtree(run.latest_checkpoint())  # as if it had died before its last save
    assert facts(run)["weights"] != whole["weights"]
    resume(str(run.folder))
    assert facts(run) == whole and saved(run) == checkpoints
    assert Run(run.folder).meta["status"] == "done"


@pytest.mark.slow
def test_guarded_case_has_measured(tmp_path: Path):
    state = facts(trained(tmp_path, "nlac", "it", SPEAKER, *GUARDED))
    assert len(state["state"]["algo"]["guard"]) == 3 and any(state["state"]["algo"]["guard"])
    assert {"improvement_check/gain", "improvement_check/open"} <= state["metrics"][-2].keys()
    rows = [row for row in state["metrics"] if "improvement_check/episodes" in row]
    played = {row["episodes/count"] - row["improvement_check/episodes"] for row in rows}
    assert len(played) == 1 and played.pop() > 0 < rows[-1]["improvement_check/episodes"]


@pytest.mark.slow
def test_nlac_case_uses_all_state(tmp_path: Path):
    state = facts(trained(tmp_path, "nlac", "it", SPEAKER))
    rows = state["metrics"]
    assert any(row.get("successor/samples") for row in rows)
    assert any(row.get("policy/samples") for row in rows)
    assert len({p for turns in state["state"]["buffer"]["priorities"] for p in turns}) > 2
    assert len(state["buffer"]) == 32 > len(state["state"]["buffer"]["priorities"]) == 20
    models = ("policy", "target", "reference")
    assert len({state["weights"][f"models/{name}/model.safetensors"] for name in models}) == 3
    assert "optimizer/policy.safetensors" in state["weights"]


@pytest.fixture
def hang_up_counts() -> Iterator[None]:
    """SIGHUP is not ignored, as it is where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
@pytest.mark.usefixtures("hang_up_counts")
@pytest.mark.parametrize(("at", "by"), [(1, "SIGINT"), (5, "SIGTERM"), (12, "SIGHUP")])
def test_interrupted_run_resumes_equal(
    tmp_path: Path, at: int, by: str, capsys: pytest.CaptureFixture[str]
):
    usual = "hardware.generator={max_batch: 64, cache_tokens: 10000}"
    done = trained(tmp_path, "grpo", "whole", "save_every=0", usual)
    overrides = settings(tmp_path, "grpo", "cut", "save_every=0", interrupted(tmp_path, at, by))
    with pytest.raises(KeyboardInterrupt):
        start(overrides, config_dirs=[folders(tmp_path)])
    run = Run(tmp_path / "cut")
    said = capsys.readouterr().err
    assert "interrupted: finishing this step, then saving" in said
    assert f"saved; go on with: agentrl resume {run.folder}" in said
    assert run.meta["status"] == "stopped" and len(run.checkpoints()) == 1
    resume(str(run.folder))
    assert facts(run) == facts(done) and saved(run) == saved(done)


def test_run_that_died_at_the_end_finishes(tmp_path: Path):
    run = trained(tmp_path, "grpo", "it", "steps=1")
    whole, checkpoints = facts(run), saved(run)
    run.set_status("running")
    resume(str(run.folder))
    assert Run(run.folder).meta["status"] == "done"
    assert facts(run) == whole and saved(run) == checkpoints
    with pytest.raises(UserError, match="step 1 of 1"):
        resume(str(run.folder))


@pytest.mark.slow
def test_run_shortened_to_its_step_is_evaluated(tmp_path: Path):
    done = trained(tmp_path, "nlac", "whole", "steps=2", "eval_every=0")
    run = trained(tmp_path, "nlac", "cut", "eval_every=0")
    shutil.rmtree(run.latest_checkpoint())
    run.set_status("stopped")
    resume(str(run.folder), ["steps=2"])
    assert Run(run.folder).meta["status"] == "done"
    ours, theirs = facts(run), facts(done)
    assert ours["metrics"] == theirs["metrics"] and saved(run) == saved(done)
    assert ours["episodes"]["eval-000002.jsonl"] == theirs["episodes"]["eval-000002.jsonl"]


def test_a_hang_up_stays_ignored_where_it_is(tmp_path: Path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible() as interrupted:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupted.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_up_counts")
def test_only_ctrl_c_stops_saving():
    with pytest.raises(KeyboardInterrupt), interruptible() as interrupted:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert interrupted.is_set()
        os.kill(os.getpid(), signal.SIGINT)


def test_an_interruption_of_the_last_step_changes_nothing(tmp_path: Path):
    trained(tmp_path, "sft", "cut", "steps=1", "eval.baseline=false", interrupted(tmp_path, 1))
    assert (tmp_path / "pressed").exists()
    assert Run(tmp_path / "cut").meta["status"] == "done"


@pytest.mark.slow
def test_further_training_equals_longer_plan(tmp_path: Path):
    whole = facts(trained(tmp_path, "grpo", "whole", "steps=4", "eval_every=2"))
    run = trained(tmp_path, "grpo", "further", "steps=2", "eval_every=2")
    resume(str(run.folder), ["steps=4"])
    assert facts(run) == whole
    (resumed,) = Run(run.folder).meta["resumed"]
    assert (resumed["step"], resumed["steps"]) == (2, 4)
    with pytest.raises(UserError, match="step 4 of 4"):
        resume(str(run.folder))


def test_resume_on_another_machine_stays_in_float32(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """Optimizers in bfloat16 have masters, which a checkpoint in float32 lacks."""
    has_bfloat16 = "agentrl_cli.models.load.cpu_has_bfloat16"
    model = ["model=hf", f"model.path={model_folder}", "model.lora=null"]
    monkeypatch.setattr(has_bfloat16, lambda: False)
    run = trained(tmp_path, "sft", "it", "steps=1", DEMOS, *model)
    assert run.meta["dtype"] == "float32"
    monkeypatch.setattr(has_bfloat16, lambda: True)
    resume(str(run.folder), ["steps=2"])
    assert Run(run.folder).meta["dtype"] == "float32"
    assert load(run.config_file, []).model.dtype == "auto"


def test_only_steps_can_change(tmp_path: Path):
    run = trained(tmp_path, "sft", "it", "steps=1")
    before, stored = facts(run), run.config_file.read_text()
    for name, change in (
        ("algo.optimizer.lr", "algo.optimizer.lr=1"), ("steps", "steps=x"), ("steps", "+steps=9"),
        ("algo", "algo=sft"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=name):
            resume(str(run.folder), [change])
        assert facts(run) == before and run.config_file.read_text() == stored


def test_a_run_without_a_checkpoint_is_not_resumed(tmp_path: Path):
    run = trained(tmp_path, "sft", "it", "steps=1")
    shutil.rmtree(run.latest_checkpoint())
    with user_error("no-checkpoint", "it"):
        resume(str(run.folder))


def test_damaged_checkpoint_leaves_logs_unchanged(tmp_path: Path):
    run = trained(tmp_path, "sft", "it")
    shutil.rmtree(run.latest_checkpoint())
    (run.latest_checkpoint() / "models" / "policy" / "model.safetensors").write_bytes(b"no")
    before = (run.folder / "metrics.jsonl").read_bytes()
    with user_error("changed-checkpoint", "model.safetensors"):
        resume(str(run.folder))
    assert (run.folder / "metrics.jsonl").read_bytes() == before
