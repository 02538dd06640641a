"""A repeated run is the same bit for bit; a resumed one equals one that was never interrupted."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl_cli.cli.train import resume, start
from agentrl_cli.core.errors import UserError
from agentrl_cli.runs.run import Run
from agentrl_cli.train import echo_err, interruptible
from tests.builders.runs import (
    GUARDED,
    SPEAKER,
    begun,
    facts,
    folders,
    interrupted,
    saved,
    settings,
    trained,
)

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
EVERY_TIME = ("grpo", "nlac, guarded")  # among the fast tests
MARKED = [
    pytest.param(*case, id=name, marks=[] if name in EVERY_TIME else pytest.mark.slow)
    for name, case in CASES.items()
]


@pytest.mark.parametrize(("algo", "more"), MARKED)
def test_a_repeated_run_is_the_same_bit_for_bit(tmp_path: Path, algo: str, more: list[str]):
    first, again = (trained(tmp_path, algo, name, *more) for name in ("first", "again"))
    assert facts(first) == facts(again)


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


def test_the_guard_of_the_guarded_case_has_measured_before_it_is_resumed(tmp_path: Path):
    state = facts(trained(tmp_path, "nlac", "it", SPEAKER, *GUARDED))
    assert len(state["state"]["algo"]["guard"]) == 3 and any(state["state"]["algo"]["guard"])
    assert {"improvement_check/gain", "improvement_check/open"} <= state["metrics"][-2].keys()
    rows = [row for row in state["metrics"] if "improvement_check/episodes" in row]
    played = {row["episodes/count"] - row["improvement_check/episodes"] for row in rows}
    assert len(played) == 1 and played.pop() > 0 < rows[-1]["improvement_check/episodes"]


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


@pytest.fixture
def hang_up_counts() -> Iterator[None]:
    """SIGHUP is not ignored, as it is where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_up_counts")
@pytest.mark.parametrize(
    ("at", "by"),
    [
        (1, "SIGINT"),
        pytest.param(5, "SIGTERM", marks=pytest.mark.slow),
        pytest.param(12, "SIGHUP", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_run_is_saved_and_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, at: int, by: str, capsys: pytest.CaptureFixture[str]
):
    usual = "hardware.generator={max_batch: 64, cache_tokens: 10000}"
    done = trained(tmp_path, "grpo", "whole", "save_every=0", usual)
    overrides = settings(tmp_path, "grpo", "cut", "save_every=0", interrupted(tmp_path, at, by))
    with pytest.raises(KeyboardInterrupt):
        start(overrides, config_dir=folders(tmp_path))
    run = Run(tmp_path / "cut")
    said = capsys.readouterr().err
    assert "interrupted: finishing this step, then saving" in said
    assert f"saved; go on with: agentrl resume {run.folder}" in said
    assert run.meta["status"] == "stopped" and len(run.checkpoints()) == 1
    resume(str(run.folder))
    assert facts(run) == facts(done) and saved(run) == saved(done)


@pytest.mark.slow
def test_an_interruption_before_the_first_step_is_saved_and_the_advice_works(tmp_path: Path):
    whole = facts(trained(tmp_path, "sft", "whole"))
    process = begun(tmp_path, "sft", "cut")
    assert process.stderr is not None
    assert process.stderr.readline() == f"run {tmp_path / 'cut'}\n"
    process.send_signal(signal.SIGINT)
    last = process.stderr.read().strip().splitlines()[-1]
    assert process.wait() == 130
    advice = last.removeprefix("saved; go on with: ")
    assert shlex.split(advice)[:2] == ["agentrl", "resume"]
    resume(shlex.split(advice)[2])
    assert facts(Run(tmp_path / "cut")) == whole


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "at"), [("grpo", 14), ("nlac", 30)])  # calls in step 2 or 3
def test_a_run_that_is_killed_goes_on_from_what_was_saved_by_time(
    tmp_path: Path, algo: str, at: int
):
    usual = "hardware.generator={max_batch: 64, cache_tokens: 10000}"
    done = trained(tmp_path, algo, "whole", "save_every=3", "save_interval_minutes=0", usual)
    often, kill = "save_interval_minutes=1e-9", interrupted(tmp_path, at, "SIGKILL")
    assert begun(tmp_path, algo, "cut", "save_every=3", often, kill).wait() == -signal.SIGKILL
    run = Run(tmp_path / "cut")
    assert run.latest_checkpoint().name in ("last-000001", "last-000002")
    resume(str(run.folder))
    assert facts(run) == facts(done) and saved(run) == saved(done)


def test_a_run_that_died_behind_its_last_checkpoint_is_finished(tmp_path: Path):
    run = trained(tmp_path, "grpo", "it", "steps=1")
    whole, checkpoints = facts(run), saved(run)
    run.set_status("running")
    resume(str(run.folder))
    assert Run(run.folder).meta["status"] == "done"
    assert facts(run) == whole and saved(run) == checkpoints
    with pytest.raises(UserError, match="is at step 1 of 1: nothing is left to do"):
        resume(str(run.folder))


@pytest.mark.slow
def test_a_run_that_is_to_end_where_it_stopped_is_evaluated_there(tmp_path: Path):
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
def test_only_a_ctrl_c_stops_a_run_that_is_being_saved():
    with pytest.raises(KeyboardInterrupt), interruptible() as interrupted:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert interrupted.is_set()
        os.kill(os.getpid(), signal.SIGINT)


def test_a_terminal_that_is_gone_stops_nothing(monkeypatch: pytest.MonkeyPatch):
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", os.fdopen(writer, "w", buffering=1))
    echo_err("nobody reads this")
    print("nor this", file=sys.stderr, flush=True)


def test_an_interruption_of_the_last_step_changes_nothing(tmp_path: Path):
    trained(tmp_path, "sft", "cut", "steps=1", "eval.baseline=false", interrupted(tmp_path, 1))
    assert (tmp_path / "pressed").exists()
    assert Run(tmp_path / "cut").meta["status"] == "done"


@pytest.mark.slow
def test_ctrl_c_exits_with_130_and_says_how_to_go_on(tmp_path: Path):
    process = begun(tmp_path, "sft", "cut", interrupted(tmp_path, 5))
    said = process.communicate()[1]
    assert process.returncode == 130 and "Traceback" not in said
    lines = said.strip().splitlines()
    assert lines[0] == f"run {tmp_path / 'cut'}"
    assert lines[-1] == f"saved; go on with: agentrl resume {tmp_path / 'cut'}"
    assert Run(tmp_path / "cut").meta["status"] == "stopped"


def test_a_finished_run_is_not_resumed(tmp_path: Path):
    run = trained(tmp_path, "sft", "it", "steps=1")
    before = facts(run)
    with pytest.raises(UserError, match="is at step 1 of 1: nothing is left to do"):
        resume(str(run.folder))
    assert facts(run) == before and Run(run.folder).meta == run.meta


@pytest.mark.slow
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
    with pytest.raises(UserError, match="is not as it was saved; restore it"):
        resume(str(run.folder))
    assert (run.folder / "metrics.jsonl").read_bytes() == before
