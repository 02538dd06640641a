"""`save_best=true`: the checkpoint that wins most of the split val is the one that counts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from agentrl_cli.cli.evaluate import evaluate_run
from agentrl_cli.cli.export import export
from agentrl_cli.cli.reproduce import final_result
from agentrl_cli.cli.train import resume
from agentrl_cli.config.compose import check, load
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Task
from agentrl_cli.envs.base import require_split
from agentrl_cli.report.records import read_record
from agentrl_cli.report.summary import final_lines
from agentrl_cli.runs import checkpoints
from agentrl_cli.runs.checkpoints import VAL_SUCCESS
from agentrl_cli.runs.run import Run
from tests.builders.runs import facts, trained
from tests.fakes.coin import CoinEnv


class WithoutVal(CoinEnv):
    """Knows no split but two."""

    def tasks(self, split: str) -> list[Task]:
        require_split(split, ("train", "test"))
        return super().tasks(split)


KEEP = ("save_best=true", "eval_every=1", "save_every=4")
WEIGHTS = "models/policy/model.safetensors"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Of four updates, with an evaluation at each."""
    return trained(tmp_path_factory.mktemp("best"), "grpo", "it", *KEEP)


def rewritten(run: Run, place: Path, won: dict[int, float]) -> Run:
    """A copy of the run whose evaluations won these shares of val."""
    shutil.copytree(run.folder, place)
    rows = [
        row | ({VAL_SUCCESS: won[row["step"]]} if VAL_SUCCESS in row else {})
        for row in run.metrics()
    ]
    (place / "metrics.jsonl").unlink()
    files.append_jsonl(place / "metrics.jsonl", rows)
    return Run(place)


def kept(run: Run) -> list[str]:
    return sorted(folder.name for folder in (run.folder / "checkpoints").glob("best-*"))


def test_best_on_val_is_kept(run: Run):
    won = {row["step"]: row[VAL_SUCCESS] for row in run.metrics() if VAL_SUCCESS in row}
    assert sorted(won) == [0, 1, 2, 3, 4] and len(set(won.values())) > 1
    first = min(step for step, value in won.items() if value == max(won.values()))
    assert kept(run) == [f"best-{first:06d}"]
    assert [folder.name for folder in run.checkpoints()][-1] == "step-000004"


def test_best_checkpoint_is_played(run: Run, tmp_path: Path):
    found = checkpoints.played_checkpoint(run)
    found.verify()
    assert found.folder.name == kept(run)[0]
    _, step = export(str(run.folder), tmp_path / "model")
    assert step == found.step
    (exported,) = (tmp_path / "model").glob("*.safetensors")
    ours, theirs = load_file(found.folder / WEIGHTS), load_file(exported)
    assert all((theirs[name] == ours[name]).all() for name in theirs)


def test_evaluation_repeats_the_kept_step(run: Run):
    cfg = check(load(run.config_file, []))
    record = evaluate_run(run, cfg, None, is_elsewhere=False)
    rows = {row["step"]: row for row in run.metrics() if "eval/test_success" in row}
    assert record["step"] == checkpoints.played_checkpoint(run).step
    assert record["eval/test_success"] == rows[record["step"]]["eval/test_success"]


def test_what_is_reported_is_the_kept_step(run: Run, tmp_path: Path):
    copy = rewritten(run, tmp_path / "copy", {0: 0.1, 1: 0.2, 2: 0.9, 3: 0.9, 4: 0.3})
    assert read_record(copy).final_step == 2
    rows = {row["step"]: row for row in copy.metrics() if "eval/test_success" in row}
    assert final_result(copy).final == rows[2]["eval/test_success"]
    assert any("step 2" in line for line in final_lines(copy))


@pytest.mark.slow
def test_keep_last_reports_the_last(tmp_path: Path):
    run = trained(tmp_path, "grpo", "it", "eval.splits=[test,val]", "eval_every=1")
    assert read_record(run).final_step == 4 and not kept(run)
    assert checkpoints.played_checkpoint(run).folder == run.latest_checkpoint()


def test_earliest_of_equals_is_best(run: Run, tmp_path: Path):
    copy = rewritten(run, tmp_path / "copy", {0: 0.5, 1: 0.2, 2: 0.5, 3: 0.4, 4: 0.5})
    shutil.rmtree(copy.folder / "checkpoints" / kept(copy)[0])
    assert [step for step in range(5) if checkpoints.is_best(copy, step)] == [0]


def test_best_is_kept_after_a_crash(run: Run, tmp_path: Path):
    copy = rewritten(run, tmp_path / "it", {0: 0.5, 1: 0.2, 2: 0.5, 3: 0.4, 4: 0.6})
    shutil.rmtree(copy.folder / "checkpoints" / kept(copy)[0])
    copy.set_status("running")
    resume(str(copy.folder), [])
    assert kept(copy) == ["best-000004"]


def test_best_after_the_resumed_step_is_forgotten(run: Run, tmp_path: Path):
    copy = rewritten(run, tmp_path / "it", {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4, 4: 0.9})
    checkpoints.keep_best(copy, 4)
    assert kept(copy) == ["best-000004"]
    checkpoints.forget_later(copy, 4)
    assert kept(copy) == ["best-000004"]
    checkpoints.forget_later(copy, 2)
    assert kept(copy) == []


@pytest.mark.slow
def test_resumed_run_has_the_same_best(run: Run, tmp_path: Path):
    again = trained(tmp_path, "grpo", "it", *KEEP[:2], "save_every=2")
    shutil.rmtree(again.latest_checkpoint())  # as if it had died before its last save
    again.set_status("running")
    resume(str(again.folder), [])
    assert kept(again) == kept(run)
    assert facts(Run(again.folder))["weights"] == facts(run)["weights"]


@pytest.mark.parametrize(
    ("overrides", "value"),
    [
        (["eval_every=0"], "eval_every=0"),
        (["eval_every=4"], "eval_every=4"),
        (["save_best=worst"], "worst"),
        (["env._target_=tests.training.test_keep_best.WithoutVal"], "val"),
    ],
)
def test_nothing_to_choose_from_is_refused(overrides: list[str], value: str, tmp_path: Path):
    with pytest.raises(UserError, match=value):
        trained(tmp_path, "grpo", "it", "save_best=true", "eval_every=1", *overrides)
    assert not (tmp_path / "it").exists()
