"""The loop: what a run writes, when it evaluates and saves, and what it leaves when it fails."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agentrl_cli.cli.evaluate import evaluate_command
from agentrl_cli.cli.train import resume, start
from agentrl_cli.config.compose import check, compose
from agentrl_cli.core.errors import FAILURE_KINDS, RunAborted, SimulatorError, UserError
from agentrl_cli.core.types import Episode, Step, Task
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.rollout.demos import fingerprint
from agentrl_cli.runs import checkpoints
from agentrl_cli.runs.run import Run
from agentrl_cli.training import loop
from agentrl_cli.training.build import (
    Parts,
    available_cores,
    build_parts,
    busy_machine,
    set_threads,
    slow_dtype,
    unfiltered_imitation,
)
from agentrl_cli.training.learner import NonFiniteError
from agentrl_cli.training.loop import due, rollout_metrics
from tests.builders.nlac import LOST, WON
from tests.builders.runs import (
    ALGORITHMS,
    DEMOS,
    GUARDED,
    SPEAKER,
    facts,
    folders,
    settings,
    trained,
)
from tests.fakes.coin import CoinEnv

TWENTYQ = ["env=twentyq", "env.max_turns=3", "eval.splits=[test,train]"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An NLAC run of four steps on Twenty Questions with a random model."""
    return trained(tmp_path_factory.mktemp("runs"), "nlac", "it", *TWENTYQ)


def test_run_stores_configuration_and_history(run: Run):
    assert run.meta["status"] == "done" and run.meta["threads"] == 1
    assert [change["status"] for change in run.meta["history"]] == ["started", "running", "done"]
    text = run.config_file.read_text()
    assert "Forecast this turn." in text and "${" not in text
    assert run.meta["choices"]["algo"] == "nlac" and "steps=4" in run.meta["overrides"]


def test_steps_and_evaluations_are_metrics_rows(run: Run):
    rows = run.metrics()
    played = [row["step"] for row in rows if "reward/mean" in row]
    evaluated = [row["step"] for row in rows if "eval/test_success" in row]
    assert (played, evaluated) == ([1, 2, 3, 4], [0, 2, 4])
    for row in rows:
        assert all(value is not None for value in row.values())
    assert {"eval/train_success", "eval/test_greedy_success", "nlac/auc_within"} <= rows[-1].keys()


def test_step_metrics_and_logprob_difference(run: Run):
    for row in run.metrics():
        if "reward/mean" in row:
            assert row["episodes/count"] == 8 and row["episodes/turns"] == 3
            assert row["episodes/error_rate"] == 0 and row["sampling/logp_diff_max"] < 1e-4
            assert {"time/rollout", "time/train", "time/algorithm"} <= row.keys()


def test_evaluations_write_episodes(run: Run):
    names = [file.name for file in run.episode_files()]
    assert names == [
        "eval-000000.jsonl", "eval-000002.jsonl", "train-000002.jsonl",
        "eval-000004.jsonl", "train-000004.jsonl",
    ]  # fmt: skip
    test = run.read_episodes("eval", 4)
    assert len(test) == 4 and {e.task.split for e in test} == {"test"}
    assert {e.task.split for e in run.read_episodes("train", 4)} == {"train"}
    assert all(turn.action_ids and turn.logprobs for e in test for turn in e.turns)


def test_episodes_name_their_policy_version(run: Run):
    last, before = (
        json.loads((folder / "models" / "versions.json").read_text())["policy"]
        for folder in reversed(run.checkpoints())
    )
    assert last > before > 0
    assert {e.policy_version for e in run.read_episodes("eval", 0)} == {0}
    assert {e.policy_version for e in run.read_episodes("eval", 2)} == {before}
    assert {e.policy_version for e in run.read_episodes("eval", 4)} == {last}
    assert {e.policy_version for e in run.read_episodes("train", 4)} <= set(range(before, last))


def test_buffer_file_holds_every_episode(run: Run):
    lines = (run.folder / "buffer.jsonl").read_text().splitlines()
    ids = [Episode.from_json(json.loads(line)).id for line in lines]
    assert len(ids) == len(set(ids)) == 32
    assert ids[0].startswith("s000000") and ids[-1].startswith("s000003")


def test_checkpoints_are_complete_without_pickles(run: Run):
    assert [checkpoints.read(folder).step for folder in run.checkpoints()] == [2, 4]
    files = [file for file in run.latest_checkpoint().rglob("*") if file.is_file()]
    assert {file.suffix for file in files} <= {".safetensors", ".json", ".jinja"}
    names = {str(file.relative_to(run.latest_checkpoint())) for file in files}
    weights = {f"models/{name}/model.safetensors" for name in ("policy", "target", "reference")}
    assert weights | {"optimizer/policy.safetensors", "state.json", "run.json"} <= names
    assert not list(run.folder.rglob("*partial*"))


@pytest.mark.slow
def test_stored_configuration_repeats_the_run(tmp_path: Path, run: Run):
    start([f"runs={tmp_path}", "name=again"], file=run.config_file)
    again = Run(tmp_path / "again").metrics()
    for row, other in zip(run.metrics(), again, strict=True):
        assert {k: v for k, v in row.items() if not k.startswith("time/")} == {
            k: v for k, v in other.items() if not k.startswith("time/")
        }


@pytest.mark.parametrize(
    ("most", "context", "replies", "episodes"),
    [
        (6, 512, "8 of 8 replies reach rollout.max_new_tokens 6: raise it", "0 of 4 episodes"),
        (300, 301, "0 of 0 replies", "4 of 4 episodes reach rollout.max_seq_len 301: raise it"),
        (40, 90, "replies", "4 of 4 episodes reach rollout.max_seq_len 90: raise it"),
    ],
)
def test_dry_run_reports_truncation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], most: int, context: int, replies, episodes
):
    sizes = [f"rollout.max_new_tokens={most}", f"rollout.max_seq_len={context}"]
    start(settings(tmp_path, "grpo", "it", *sizes), config_dirs=[folders(tmp_path)], dry=True)
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert replies in rows["truncated"] and episodes in rows["truncated"]


def test_intervals_of_zero_leave_the_end(tmp_path: Path):
    more = ["eval.baseline=false", "eval_every=0", "save_every=0"]
    run = trained(tmp_path, "sft", "it", *more)
    assert [row["step"] for row in run.metrics() if "eval/test_success" in row] == [4]
    assert [folder.name for folder in run.checkpoints()] == ["step-000004"]


@pytest.mark.parametrize(
    ("step", "every", "happens"),
    [(3, 3, True), (4, 3, False), (10, 3, True), (10, 0, True), (9, 0, False)],
)
def test_due_steps(step: int, every: int, happens: bool):
    assert due(step, every, steps=10) is happens


@pytest.mark.slow
def test_init_uses_weights_of_a_run(tmp_path: Path):
    first = trained(tmp_path, "sft", "first", "algo.optimizer.lr=1e-2")
    frozen = ["algo.optimizer.lr=0", "steps=1", f"init={first.folder}"]
    second = trained(tmp_path, "nlac", "second", *frozen)
    last = first.metrics()[-1]
    assert second.metrics()[0]["eval/test_greedy_success"] == last["eval/test_greedy_success"]
    ours, theirs = (
        folder.latest_checkpoint() / "models" / "policy" / "model.safetensors"
        for folder in (first, second)
    )
    assert ours.read_bytes() == theirs.read_bytes()
    reference = second.latest_checkpoint() / "models" / "reference" / "model.safetensors"
    assert reference.read_bytes() == theirs.read_bytes()


@pytest.fixture(scope="module")
def imitated(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An SFT on demonstrations, from which others start."""
    root = tmp_path_factory.mktemp("runs")
    return trained(root, "sft", "it", DEMOS, "steps=1", "eval.baseline=false")


@pytest.mark.parametrize(
    "algo",
    [
        algo
        if algo in ("archer", "nlac", "self_ac")
        else pytest.param(algo, marks=pytest.mark.slow)
        for algo in sorted(ALGORITHMS)
    ],
)
def test_every_algorithm_starts_from_an_sft(tmp_path: Path, imitated: Run, algo: str):
    more = settings(tmp_path, algo, "it", f"init={imitated.folder}")
    parts = build_parts(check(compose(more, [folders(tmp_path)])), None)
    begun = load_file(imitated.latest_checkpoint() / "models" / "policy" / "model.safetensors")
    specs = parts.algo.models().items()
    behind = {n for n, s in specs if s.kind != "trained" and s.follows == "policy"}
    begun_alike = {n for n, s in specs if s.begins_as == "policy"}
    expected = {"archer": {"critic"}, "archer_small": {"critic"}}
    expected["stepagent_inverse"] = {"discriminator"}
    assert begun_alike == expected.get(algo, set())
    for name in {"policy", *behind, *begun_alike}:
        own = dict(parts.models.module(name).named_parameters())
        assert all(own[key].equal(weight) for key, weight in begun.items()), name
    bundled = build_parts(
        check(compose(settings(tmp_path, "sft", "it"), [folders(tmp_path)])), None
    )
    fresh = dict(bundled.models.module("policy").named_parameters())
    assert any(not fresh[key].equal(weight) for key, weight in begun.items())


def test_sft_on_demonstrations_plays_nothing(imitated: Run):
    (row, evaluation) = imitated.metrics()
    assert "reward/mean" not in row and row["sft/samples"] == 4 and row["sft/kept_episodes"] == 1
    assert evaluation["step"] == 1 and "eval/test_success" in evaluation
    assert imitated.meta["demos"] == fingerprint(DEMOS.removeprefix("data.demos="))
    assert len(imitated.meta["demos"]) == 16


@pytest.mark.slow
def test_changed_demonstrations_refuse_resume_not_evaluation(
    tmp_path: Path,
):
    copied = tmp_path / "demos.jsonl"
    shutil.copy(DEMOS.removeprefix("data.demos="), copied)
    run = trained(tmp_path, "sft", "it", f"data.demos={copied}")
    shutil.rmtree(run.latest_checkpoint())
    copied.write_text(copied.read_text() + "\n")
    with pytest.raises(UserError, match="learned from demonstrations other than"):
        resume(str(run.folder))
    copied.unlink()
    assert "eval/test_success" in evaluate_command(str(run.folder), [])


def test_non_finite_batch_is_written(tmp_path: Path):
    wild = [
        "algo.optimizer.weight_decay=1e37",
        "algo.optimizer.max_grad_norm=0",
        "algo.minibatch_tokens=1",
    ]
    with pytest.raises(NonFiniteError, match=r"is not finite; .*'.*failed-batch.json'"):
        trained(tmp_path, "sft", "it", *wild)
    run = Run(tmp_path / "it")
    assert run.meta["status"] == "failed" and "NonFiniteError" in run.meta["error"]
    kept = json.loads((run.folder / "failed-batch.json").read_text())
    assert kept["phase"] == "sft" and kept["term"]
    (sample,) = kept["samples"]
    assert len(sample["ids"]) == len(sample["mask"]) and any(sample["mask"])
    assert "failed-batch.json" in (run.folder / "log.txt").read_text()
    assert [folder.name for folder in run.checkpoints()] == ["last-000000"]
    with pytest.raises(UserError, match="before its first update"):
        checkpoints.played_checkpoint(run)


def test_run_with_broken_environment_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    step_of_world, calls = CoinEnv.step, []

    def step(world: CoinEnv, action: str) -> Step:
        calls.append(action)
        if len(calls) > 1:
            raise SimulatorError("nobody answers")
        return step_of_world(world, action)

    unseen = ["eval.baseline=false", "eval_every=0"]
    with monkeypatch.context() as broken, pytest.raises(RunAborted) as stopped:
        broken.setattr(CoinEnv, "step", step)
        trained(tmp_path, "grpo", "it", *unseen)
    assert stopped.value.exit_code == 1 and "episodes failed" in str(stopped.value)
    assert "SimulatorError: nobody answers" in str(stopped.value)
    run = Run(tmp_path / "it")
    assert str(stopped.value).endswith(f"saved; go on with: agentrl resume {run.folder}")
    assert run.meta["status"] == "stopped" and run.meta["error"] == str(stopped.value)
    assert run.latest_checkpoint().name == "last-000000"
    resume(str(run.folder))
    rows = [row for row in run.metrics() if "reward/mean" in row]
    assert len(rows) == 4
    assert {row[f"episodes/failed_{kind}"] for row in rows for kind in FAILURE_KINDS} == {0.0}


def test_evaluation_that_stopped_a_run_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    evaluate = loop.evaluate

    def evaluated(parts: Parts, *args: Any) -> dict[str, float]:
        if parts.step == 2:
            raise RunAborted("the server is gone", code="endpoint-lost")
        return evaluate(parts, *args)

    planned = ["eval_every=2", "save_every=2"]
    with monkeypatch.context() as broken, pytest.raises(RunAborted):
        broken.setattr(loop, "evaluate", evaluated)
        trained(tmp_path, "grpo", "it", *planned)
    run = Run(tmp_path / "it")
    assert not run.is_evaluated(2)
    resume(str(run.folder))
    again = trained(tmp_path, "grpo", "whole", *planned)
    rows, whole = (
        [{k: v for k, v in row.items() if not k.startswith("time/")} for row in one.metrics()]
        for one in (run, again)
    )
    assert rows == whole and (run.folder / "checkpoints" / "step-000002").exists()


def test_failed_episodes_are_counted_by_kind():
    kinds = ["simulator", None, "timeout", "simulator"]
    task = Task("t", "train", {})
    episodes = [
        Episode(f"{i}", task, "g", 0, [], error=kind, error_kind=kind)
        for i, kind in enumerate(kinds)
    ]
    metrics = rollout_metrics(episodes)
    shares = [metrics[f"episodes/failed_{kind}"] for kind in FAILURE_KINDS]
    assert (FAILURE_KINDS, shares) == (
        ("crash", "contract", "simulator", "timeout", "generator", "actor"),
        [0, 0, 0.5, 0.25, 0, 0],
    )  # fmt: skip
    assert metrics["episodes/error_rate"] == 0.75


def test_metrics_of_a_rollout_by_hand():
    cut_off = replace(deepcopy(LOST), stop="context", env_seconds=0.5)
    cut_off.turns[0].finish_reason = "length"
    found = rollout_metrics([WON, cut_off])
    assert found["episodes/context_overflow"] == 0.5 and found["time/env"] == 0.5
    assert found["episodes/cut_turns"] == 1 / (len(WON.turns) + len(LOST.turns))
    assert found["episodes/tokens"] == WON.tokens + cut_off.tokens > 0


def test_threads_follow_the_environment_variable(models: ModelSet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    set_threads(None, models)
    assert torch.get_num_threads() == 3
    set_threads(1, models)
    assert torch.get_num_threads() == 1
    for wrong, sentence in (("many", "is 0; give at least 1"), ("5000", "is 5000; give at most")):
        monkeypatch.setenv("OMP_NUM_THREADS", wrong)
        with pytest.raises(UserError, match=f"OMP_NUM_THREADS {sentence}"):
            set_threads(None, models)


def test_cores_are_those_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    expected = {"250000 100000": 2, "50000 100000": 1, "max 100000": 8, "900000 100000": 8, "": 8}
    for text, cores in expected.items():
        (tmp_path / "cpu.max").write_text(text)
        assert available_cores(tmp_path / "cpu.max") == cores
    assert available_cores(tmp_path / "nowhere") == 8


def test_busy_machine_gets_a_hint(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(2))
    found = []
    for load, threads in ((2.0, 2), (1.0, 2), (5.0, 1)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        torch.set_num_threads(threads)
        found.append(busy_machine() is not None)
    assert found == [True, False, False]


@pytest.mark.parametrize(("dtype", "has_instructions", "is_hinted"), [
    ("bfloat16", False, True), ("bfloat16", True, False), ("auto", False, False),
])  # fmt: skip
def test_slow_dtype_gets_a_hint(
    dtype: str, has_instructions: bool, is_hinted: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("agentrl_cli.training.build.cpu_has_bfloat16", lambda: has_instructions)
    assert (slow_dtype(compose([f"model.dtype={dtype}"])) is not None) == is_hinted


def test_update_that_trains_nothing_warns_once(capsys: pytest.CaptureFixture[str]):
    parts: Any = SimpleNamespace(is_warned=False, step=2, ranks=SimpleNamespace(is_main=True))
    loop.warn_if_nothing_trained(parts, {"dpo/empty": 0.0, "policy/steps": 3.0})
    assert not capsys.readouterr().err
    for learned, reason in (
        ({"dpo/empty": 1.0}, "no episode gave"),
        ({}, "the algorithm yielded no"),
    ):
        parts.is_warned = False
        loop.warn_if_nothing_trained(parts, learned)
        assert f"update 2 trained nothing, because {reason}" in capsys.readouterr().err
        loop.warn_if_nothing_trained(parts, learned)
        assert not capsys.readouterr().err


@pytest.mark.parametrize(("overrides", "is_hinted"), [
    (["algo=sft"], True), (["algo=sft", "data.demos=expert:4"], False), (["algo=rft"], False),
    (["recipe=twentyq", "algo=sft", "ablation=own_play"], False), (["algo=nlac_role_sft"], False),
])  # fmt: skip
def test_sft_without_demonstrations_gets_a_hint(overrides: list[str], is_hinted: bool):
    assert (unfiltered_imitation(compose(overrides)) is not None) == is_hinted


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "more"), [("grpo", []), ("nlac", [SPEAKER, *GUARDED])])
def test_workers_do_not_change_a_run(tmp_path: Path, algo: str, more: list[str]):
    first, again = (
        facts(trained(tmp_path, algo, f"with{n}", *more, f"rollout.env_workers={n}"))
        for n in (1, 4)
    )
    assert first == again
