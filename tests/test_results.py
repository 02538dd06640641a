"""The protocol of the comparisons: equal trials, the choice of settings, and the final runs."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CalledProcessError
from time import sleep
from typing import Any

import pytest

from agentrl_cli.config.compose import compose
from bench import results
from bench.results import (
    COMPARISONS,
    GRID,
    LONG_RUNS,
    SIZES,
    Plan,
    at_rate,
    at_size,
    best_plan,
    next_value,
)
from tests.builders.runs import trained


@pytest.mark.slow
@pytest.mark.parametrize("env", COMPARISONS)
def test_every_plan_composes_and_has_its_start(env: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(results, "is_tuned", lambda what: False)  # without trials of SFT
    names = (*COMPARISONS[env].names, *results.ABLATIONS.get(env, ()))
    names += results.MEASURED_CONTROLS.get(env, ())
    for what in names:
        plan = Plan(env, what, 5)
        config = compose([*plan.settings(), "runs=x"])
        chosen = config.choices.recipe, config.choices.algo, config.seed
        assert chosen == (COMPARISONS[env].of or env, plan.algo, 5)
        assert config.init == (f"x/{plan.start.name}" if plan.start else None)
        assert all(at_rate(plan, 1e-4).values()) and all(at_size(plan, 0.5).values())


def test_other_rates_keep_their_ratio():
    plan = Plan("twentyq", "ppo", 10)
    body, head = (plan.config.algo.optimizer[key] for key in ("lr", "head_lr"))
    changes = at_rate(plan, 3e-5)
    assert changes["algo.optimizer.lr"] == 3e-5
    assert changes["algo.optimizer.head_lr"] / 3e-5 == pytest.approx(head / body, rel=0.05)


def test_values_are_extended_at_the_edge():
    assert next_value({3e-5: 0.1, 1e-4: 0.2, 3e-4: 0.3}, GRID) == 1e-3
    assert next_value({3e-5: 0.4, 1e-4: 0.2, 3e-4: 0.3}, GRID) == 1e-5
    assert next_value({3e-5: 0.1, 1e-4: 0.5, 3e-4: 0.3}, GRID) is None
    assert next_value({1e-6: 0.9, 3e-6: 0.2}, GRID) is None  # the end of the grid
    assert next_value({0.5: 0.3, 1.0: 0.2, 2.0: 0.1}, SIZES) == 0.25


def success(plan: Plan, step: int) -> float:
    """Learning is best at rate 1e-3 with steps of four times the size, over after 12 updates."""
    changes, own = dict(plan.changes), plan.config.algo.minibatch_tokens
    worse = abs(changes["algo.optimizer.lr"] - 1e-3) * 100
    worse += 0.015 * abs(changes.get("algo.minibatch_tokens", own) / own - 4)
    return 0.9 - worse - 0.01 * abs(step - 12)


def test_settings_are_those_of_the_best_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    done: list[str] = []

    def train(plan: Plan, folder: Path) -> Path:
        changes: dict[str, Any] = dict(plan.changes)
        done.append(plan.trial)
        steps = [*range(6, 49, 6)] if changes["steps"] == 48 else [changes["steps"]]
        rows = [{"step": step, "eval/val_success": success(plan, step)} for step in steps]
        run = folder / plan.name
        run.mkdir(exist_ok=True)
        (run / "meta.json").write_text(json.dumps({"git": {"commit": results.commit()}}))
        if plan.trial == "rate_0.003":
            (run / "failed-batch.json").touch()
            raise CalledProcessError(1, "agentrl")
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return run

    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "train", train)
    monkeypatch.setattr(results, "fingerprint", repr)  # without composing
    results.tune("twentyq", "grpo", tmp_path, missing=False)
    rates = ["rate_3e-05", "rate_0.0001", "rate_0.0003", "rate_0.001", "rate_0.003"]
    assert done == [*rates, "size_0.5", "size_2", "size_4", "size_8", *LONG_RUNS]
    stored = results.load("twentyq_trials.json")
    assert [row["val"] for row in stored if row["trial"] == "rate_0.003"] == [0.0]  # it diverged
    results.tune("twentyq", "grpo", tmp_path, missing=True)
    assert len(done) == 11 and results.load("twentyq_trials.json") == stored
    monkeypatch.setattr(results, "fingerprint", lambda plan: "of a recipe that took the values")
    results.tune("twentyq", "grpo", tmp_path, missing=True)
    assert len(done) == 11
    monkeypatch.setattr(results, "fingerprint", repr)
    old = [stored[1] | {"commit": "0"}, stored[2] | {"trial": "rate_1", "val": 1.0}]
    (tmp_path / "twentyq_trials.json").write_text(json.dumps([*old, *stored[2:]]))
    results.tune("twentyq", "grpo", tmp_path, missing=True)
    assert done[11:] == rates[:2] and results.load("twentyq_trials.json") == stored
    chosen = dict(best_plan("twentyq", "grpo", 0).changes)
    size = 4 * Plan("twentyq", "grpo", 0).config.algo.minibatch_tokens
    assert chosen == {"algo.optimizer.lr": 1e-3, "algo.minibatch_tokens": size, "steps": 12}
    assert dict(best_plan("twentyq", "graded_reward", 0).changes) == chosen  # an ablation of grpo
    assert not best_plan("twentyq", "rft", 0).changes
    control = best_plan("twentyq", "grpo-frozen_forecast", 0)
    assert dict(control.changes) == chosen and control.algo == "grpo"
    assert results.named(control)["variant"] == "frozen_forecast"
    lower = [row | {"val": 1.0} for row in stored if row["trial"] == "long_lower"]
    stored = [row for row in stored if row["trial"] != "long_lower"]
    old = [row | {"seed": 10, "val": 2.0} for row in stored]  # of another trial seed
    (tmp_path / "twentyq_trials.json").write_text(json.dumps([*old, *stored, *lower]))
    changes = dict(best_plan("twentyq", "grpo", 0).changes)
    assert changes["algo.optimizer.lr"] == 3e-4 and changes["steps"] == 6


def test_controls_are_compared_after_as_many_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    named = results.named(Plan("arithmetic", "nlac", 20))
    changes = {"algo.optimizer.lr": 1e-3, "steps": 48, "eval_every": 6}
    rows = [
        named | {"trial": "long", "changes": changes, "step": step, "val": step / 48}
        for step in (6, 12, 24, 48)
    ]
    for steps, evaluated in ((48, 12), (12, None)):
        if steps == 12:
            rows = rows[:2]
        (tmp_path / "arithmetic_trials.json").write_text(json.dumps(rows))
        own, control = (
            dict(best_plan("arithmetic", name, 0).changes) for name in ("nlac", "majority")
        )
        assert (own["steps"], own.get("eval_every")) == (steps, evaluated)
        assert (control["steps"], control.get("eval_every")) == (12, None)
    run = trained(tmp_path, "rft", "small", "steps=2", "eval_every=1", "eval.tasks=3")
    monkeypatch.setattr(results, "TRIAL_STEPS", 1)
    short = results.records(Plan("twentyq", "rft", 0), run.folder)[0]["short"]
    first = next(row for row in results.read(run.folder)[1] if row["step"] == 1)
    assert short["final"] == first["eval/test_success"] and short["steps"] == 1
    (run.folder / "failed-batch.json").touch()  # as if it had diverged
    lost = results.records(Plan("twentyq", "rft", 0), run.folder)[0]
    assert lost["final"] == 0 and lost["final_by_task"] == "0 0 0" and lost["failed"]


def test_seed_that_diverges_counts_and_others_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stored = []

    def train(plan: Plan, folder: Path) -> Path:
        (folder / plan.name).mkdir()
        if plan.seed == 0:
            (folder / plan.name / "failed-batch.json").touch()
        if plan.seed != 1:
            raise CalledProcessError(1, "agentrl")
        return folder / plan.name

    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "train", train)
    monkeypatch.setattr(results, "store", lambda plan, run: stored.append(plan.seed))
    with pytest.raises(SystemExit, match="trials of grpo in wiki are not done"):
        results.compare("wiki", "grpo", tmp_path, missing=False)
    row = results.named(Plan("wiki", "grpo", 20)) | {"trial": "long", "step": 6, "val": 0.5}
    (tmp_path / "wiki_trials.json").write_text(json.dumps([row | {"changes": {"steps": 48}}]))
    with pytest.raises(CalledProcessError):  # of seed 2, for another reason
        results.compare("wiki", "grpo", tmp_path, missing=False)
    assert stored == [0, 1]


def test_shortest_of_equally_good_horizons_is_chosen():
    rows = [{"step": step, "val": val} for step, val in ((6, 0.7), (12, 0.88), (24, 0.9))]
    assert results.horizon(rows) == 12
    assert results.horizon([*rows, {"step": 48, "val": 0.95}]) == 48


def test_records_of_other_commits_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "fingerprint", repr)
    plan = Plan("wiki", "grpo", 1)
    row = results.named(plan) | {"settings": repr(plan), "commit": results.commit()}
    (tmp_path / "wiki.json").write_text(json.dumps([row]))
    assert results.is_stored(plan)
    (tmp_path / "wiki.json").write_text(json.dumps([row | {"commit": "0"}]))
    assert not results.is_stored(plan)
    monkeypatch.setattr(results, "ALSO", ["0"])
    assert results.is_stored(plan)


def test_untuned_start_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    with pytest.raises(SystemExit, match="trials of sft in wiki are not done"):
        _ = Plan("wiki", "dpo", 1).start


def test_run_that_two_need_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan, started = Plan("twentyq", "grpo", 0), []

    def slowly(command: list[str], **options: Any) -> None:
        started.append(command)
        sleep(0.2)  # without a checkpoint so far
        run = tmp_path / plan.name
        run.mkdir()
        meta = {"status": "done", "git": {"commit": results.commit()}}
        (run / "meta.json").write_text(json.dumps(meta))

    monkeypatch.setattr(results.subprocess, "run", slowly)
    with ThreadPoolExecutor(2) as pool:
        assert len({*pool.map(lambda _: results.train(plan, tmp_path), range(2))}) == 1
    assert len(started) == 1


def test_second_base_takes_settings_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    started = []

    def ended(command: list[str], **options: Any) -> None:
        started.append(command)
        run = Path(command[-3].removeprefix("runs=")) / command[-2].removeprefix("name=")
        run.mkdir()
        meta = {"status": "done", "git": {"commit": results.commit()}}
        (run / "meta.json").write_text(json.dumps(meta))

    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(results.subprocess, "run", ended)
    with pytest.raises(SystemExit, match="no complete trials in twentyq"):
        results.tune("twentyq_base2", "grpo", tmp_path, missing=False)
    row = results.named(Plan("twentyq", "grpo", 20)) | {"trial": "long", "step": 24, "val": 0.5}
    row |= {"changes": {"algo.optimizer.lr": 3e-3, "steps": 48, "eval_every": 6}}
    sft = row | results.named(Plan("twentyq", "sft", 20))
    (tmp_path / "twentyq_trials.json").write_text(json.dumps([row, sft]))
    results.tune("twentyq_base2", "grpo", tmp_path, missing=False)  # has no trials of its own
    with pytest.raises(SystemExit, match="is missing or not done"):
        results.train(best_plan("twentyq_base2", "grpo", 1), tmp_path)
    ended(["train", "", f"runs={tmp_path}", "name=twentyq_base2", ""])
    started.clear()
    results.train(best_plan("twentyq_base2", "grpo", 1), tmp_path)
    given = {"recipe=twentyq", "algo.optimizer.lr=0.003", "steps=24", "seed=1"}
    assert {*given, f"init={tmp_path / 'twentyq_base2'}"} <= {*started[0]}
    assert results.preset(best_plan("twentyq_base2", "grpo", 1)) is None
    start = Plan("twentyq_base2", "stepagent_implicit", 1).start
    assert start and start.what == "sft"


def test_record_has_the_success_of_each_task(tmp_path: Path):
    run = trained(tmp_path, "rft", "small", "steps=1", "eval.tasks=3", "eval.episodes_per_task=4")
    row = next(row for row in results.metrics(run.folder) if "eval/test_success" in row)
    of_tasks = [float(percent) / 100 for percent in results.by_task(run.folder, 0).split()]
    assert len(of_tasks) == 3 and {4 * share % 1 for share in of_tasks} == {0.0}
    assert sum(of_tasks) / 3 == pytest.approx(row["eval/test_success"])


def test_hours_are_those_of_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    (tmp_path / "hours.json").write_text('{"wiki": 2.5}')
    for name, seconds in ("a", 1800.0), ("b", 900.0):
        (run := tmp_path / "runs" / name).mkdir(parents=True)
        rows = [{"time/rollout": seconds}, {"time/eval": seconds}, {"step": 1}]
        (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "runs" / "a.log").write_text("")
    results.store_hours("arithmetic", tmp_path / "runs")
    assert json.loads((tmp_path / "hours.json").read_text()) == {"arithmetic": 1.5, "wiki": 2.5}


def test_pause_of_the_process_does_not_count():
    rows = [{"time/train": seconds} for seconds in (10.0, 12.0, 700.0, 12.0, 100.0)]
    assert results.seconds_without_pauses(rows) == [10.0, 12.0, 12.0, 12.0, 100.0]
    assert results.seconds_without_pauses([]) == []


def test_run_with_other_settings_is_not_taken(tmp_path: Path):
    plan = Plan("twentyq", "grpo", 0, "rate", (("algo.optimizer.lr", 1e-3),))
    run, note = tmp_path / plan.name, tmp_path / f"{plan.name}.settings"
    run.mkdir()
    meta = {"status": "done", "git": {"commit": results.commit()}}
    (run / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(SystemExit):
        results.train(plan, tmp_path)
    note.write_text(results.fingerprint(plan))
    assert results.train(plan, tmp_path) == run
    for other in ({"git": {"commit": "0"}}, {"resumed": [{"git": {"commit": "0"}}]}):
        (run / "meta.json").write_text(json.dumps(meta | other))
        with pytest.raises(SystemExit, match="of commit 0"):
            results.train(plan, tmp_path)
    with pytest.raises(SystemExit):
        results.train(Plan("twentyq", "grpo", 0, "rate", (("algo.optimizer.lr", 3e-3),)), tmp_path)


def test_start_has_its_best_settings_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    row = {"env": "wiki", "algo": "sft", "variant": "", "seed": 20, "trial": "long",
           "changes": {"algo.optimizer.lr": 1e-3, "steps": 48, "eval_every": 6}, "step": 24,
           "val": 0.5}  # fmt: skip
    (tmp_path / "wiki_trials.json").write_text(json.dumps([row]))
    start = Plan("wiki", "dpo", 1).start
    assert start == Plan("wiki", "sft", 1, "", (("algo.optimizer.lr", 1e-3), ("steps", 24)))
