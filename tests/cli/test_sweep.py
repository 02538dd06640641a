"""Sweeps: refused mistakes, names of points, and real multiruns."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from omegaconf import OmegaConf

from agentrl_cli.cli.sweep import (
    Sweep,
    next_verb,
    point_name,
    reserved_gpu,
    summary,
    sweep,
)
from agentrl_cli.config.compose import compose_checked, parse_overrides
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.runs.find import list_runs
from agentrl_cli.runs.run import Run
from tests.builders.command_line import agentrl
from tests.builders.errors import user_error
from tests.builders.report import write_run
from tests.builders.runs import SMALL, folders
from tests.paths import ROOT


def grid(*overrides: str) -> Sweep:
    return Sweep(list(overrides), None, "it")


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        ("algo=nlac,self_ac,grpo seed=0,1,2", 9), ("algo=grpo seed=range(4)", 4), ("algo=grpo", 1),
        ("seed=range(0,0)", 0), ("algo.optimizer.lr=interval(0.0001,0.01)", None),
        ("seed=0,1 hydra/sweeper=optuna", None),
    ],
)  # fmt: skip
def test_runs_are_counted(overrides: str, count: int | None):
    assert grid(*overrides.split()).count_runs() == count


@pytest.mark.parametrize(
    ("overrides", "values"),
    [
        (["algo=grpo,grop", "steps=1,two"], ["'grpo'", "'two'"]),
        (["algo=nlac,grpo", "algo.require_optimal=true,false"], ["algo.require_optimal"]),
        (["seed=0,1", "name=mine"], ["--name"]),
        (["seed=0,1", "hydra/launcher=moon"], ["'moon'"]),
        (["seed=0,1", "hydra.launcher.n=2"], ["hydra.launcher"]),
    ],
)
def test_mistakes_are_refused_before_the_first_run(
    overrides: list[str], values: list[str], tmp_path: Path
):
    with pytest.raises(UserError) as error:
        sweep([*overrides, f"runs={tmp_path}"], None, "it", 1, lambda question: True)
    for value in values:
        assert value in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_invalid_sweeps_are_refused(tmp_path: Path):
    questions: list[str] = []

    def no(question: str) -> bool:
        questions.append(question)
        return False

    for values, name, code in (
        ("range(0,0)", "it", "no-points"), ("range(10000)", "it", "many-runs"),
        *(("0,1", name, "folder-name") for name in ("../x", "/tmp/x", "a/b", "..", ".hidden")),
    ):  # fmt: skip
        with pytest.raises(UserError) as error:
            sweep([f"seed={values}", f"runs={tmp_path}/runs"], None, name, 1, no)
        assert error.value.code == code
    assert len(questions) == 1 and list(tmp_path.iterdir()) == []


def test_folder_may_have_any_letters():
    sweep_of = grid("seed=0,1", "runs='/tmp/a=b, it\\'s'")
    found = {
        item.key_or_group: item for item in parse_overrides(sweep_of.arguments(), is_sweep=True)
    }
    assert found["runs"].value() == str(sweep_of.folder) == "/tmp/a=b, it's/it"


def test_same_overrides_have_the_same_folder():
    one = Sweep(["algo=sft,rft", "seed=0,1"], None, None).folder
    assert one == Sweep(["seed=0,1", "algo=sft,rft", "hydra/launcher=joblib"], None, None).folder
    assert one != Sweep(["seed=0,2", "algo=sft,rft"], None, None).folder
    assert Sweep(["seed=0,1", "runs=else"], None, "mine").folder == Path("else/mine")


def test_runs_are_named_by_varying_keys():
    name = point_name("algo=nlac,++algo.optimizer.lr=0.0003")
    assert name == "algo-nlac_algo.optimizer.lr-0.0003"
    assert point_name("++eval.splits=[test]") == "eval.splits-test"
    long = [point_name("++init=" + "x" * 300 + end) for end in "ab"]
    assert long[0] != long[1] and max(map(len, long)) < 140
    told = grid("algo=sft,rft", "steps=3").arguments()
    assert "hydra.job.config.override_dirname.exclude_keys=[steps,runs]" in told


def test_parallel_runs_get_one_thread():
    assert "hardware.threads=1" in grid("seed=0,1", "hydra/launcher=joblib").arguments()
    assert "hardware.threads=1" not in grid("seed=0,1").arguments()
    told = grid("seed=0,1", "hydra/launcher=joblib", "hardware.threads=2").arguments()
    assert "hardware.threads=1" not in told and "++hardware.threads=2" in told


def test_done_interrupted_and_failed_runs(tmp_path: Path):
    for state in ("done", "stopped", "running", "failed"):
        run = write_run(tmp_path / f"r-{state}", status=state)
        (run / "checkpoints" / "step-000010").mkdir(parents=True)
    young = write_run(tmp_path / "r-young", status="stopped")
    assert next_verb(tmp_path / "r-done") is None and next_verb(tmp_path / "r-never") == "train"
    assert next_verb(tmp_path / "r-stopped") == next_verb(tmp_path / "r-running") == "resume"
    assert next_verb(tmp_path / "r-failed") == next_verb(young) == "train"
    kept = sorted(folder.name for folder in (tmp_path / "failed").iterdir())
    assert kept == ["r-failed-0", "r-young-0"]
    again = write_run(tmp_path / "r-young", status="running")
    with Run(again).lock(), user_error("run-locked", "r-young"):
        next_verb(again)
    assert again.exists() and next_verb(again) == "train"
    assert (tmp_path / "failed" / "r-young-1").exists()


def finished(folder: Path, *overrides: str) -> Run:
    """A finished run as these overrides compose it."""
    run = write_run(folder, status="done")
    OmegaConf.save(compose_checked(list(overrides)), run / "config.yaml", resolve=True)
    return Run(run)


@pytest.mark.parametrize(
    ("changed", "values"),
    [
        ("env=math", ("env", "twentyq", "math")), ("steps=9", ("steps", "3", "9")),
        ("algo.optimizer.lr=1e-3", ("algo.optimizer.lr", "0.0001", "0.001")),
    ],
)  # fmt: skip
def test_runs_of_another_sweep_are_refused(tmp_path: Path, changed: str, values: tuple[str, ...]):
    same = ["algo=grpo", "env=twentyq", "steps=3", "algo.clip_eps=0.1"]
    finished(tmp_path / "it" / "seed-0", *same, "seed=0")
    key = changed.partition("=")[0]
    other = [text for text in same if text.partition("=")[0] != key]
    with pytest.raises(UserError) as error:
        sweep([*other, changed, "seed=0,1", f"runs={tmp_path}"], None, "it", 1, lambda q: True)
    message = str(error.value)
    assert f"'{tmp_path}/it/seed-0'" in message and all(value in message for value in values)
    assert [path.name for path in (tmp_path / "it").iterdir()] == ["seed-0"]


def test_settings_without_effect_may_differ(tmp_path: Path):
    same = ["algo=grpo", "env=twentyq", "steps=3"]
    run = finished(tmp_path / "it" / "seed-0", *same, "seed=0")
    again = [*same, "seed=0,1", f"runs={tmp_path}"]
    Sweep([*again, "hardware.threads=2"], None, "it").validate_existing_runs()
    Sweep([*again, "hardware.microbatch_tokens=512"], None, "it").validate_existing_runs()
    Sweep([*again, "logger=tensorboard", "save_every=2"], None, "it").validate_existing_runs()
    files.write_json(run.folder / "meta.json", {**run.meta, "status": "failed"})
    Sweep([*again, "algo.clip_eps=0.3"], None, "it").validate_existing_runs()


def test_points_have_the_names_of_hydra(tmp_path: Path):
    some = ["seed=0,1", "algo=sft,rft", "algo.optimizer.lr=0.1,0.2", "steps=2", f"runs={tmp_path}"]
    points = {name: overrides for overrides, name in Sweep(some, None, "it").named_points()}
    overrides = points["algo.optimizer.lr-0.1_seed-0_algo-sft"]
    assert overrides == ["steps=2", "++seed=0", "algo=sft", "++algo.optimizer.lr=0.1"]
    assert len(points) == 8


# GPUs


def test_parallel_points_reserve_a_gpu_each(tmp_path: Path):
    gpus = ["4", "7"]
    with reserved_gpu(tmp_path, gpus) as one, reserved_gpu(tmp_path, gpus) as two:
        assert [one, two] == gpus
        with reserved_gpu(tmp_path, gpus) as three:
            assert three is None
    for some, expected in ((gpus, "4"), ([], None), (["0"], None)):
        with reserved_gpu(tmp_path, some) as gpu:
            assert gpu == expected


# real multiruns


@pytest.fixture(autouse=True)
def add_tests_to_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs are processes of their own, which must find `tests.fakes`."""
    before = os.environ.get("PYTHONPATH")
    found = [str(ROOT), *([before] if before else [])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(found))


def small(root: Path, *more: str) -> list[str]:
    return [*SMALL, "steps=1", "save_every=0", "eval_every=0", f"runs={root}", *more]


def run_sweep(root: Path, *more: str) -> Path:
    return sweep(small(root, *more), [folders(root)], "it", 1, lambda question: True)[0]


def status(folder: Path) -> dict[str, str]:
    return {run.name: run.meta["status"] for run in list_runs(folder)}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_sweep_skips_done_and_repeats_failed_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    folder = run_sweep(tmp_path, "algo=sft,rft")
    assert status(folder) == {"algo-sft": "done", "algo-rft": "done"}
    before = Run(folder / "algo-sft").meta["created"]
    meta = files.read_json(folder / "algo-rft" / "meta.json")
    files.write_json(folder / "algo-rft" / "meta.json", {**meta, "status": "failed"})
    capfd.readouterr()
    assert run_sweep(tmp_path, "algo=sft,rft") == folder
    assert "train algo-rft" in capfd.readouterr().err
    assert Run(folder / "algo-sft").meta["created"] == before
    assert Run(folder / "algo-rft").meta["created"] > meta["created"]
    assert (folder / "failed" / "algo-rft-0" / "meta.json").is_file()
    lines, unfinished = summary(folder)
    assert len(lines) == 3 and unfinished == 0
    with pytest.raises(UserError) as error:
        run_sweep(tmp_path, "algo=sft,rft", "eval.tasks=1")
    assert "eval.tasks" in str(error.value)


STOPPED = """
import sys
from pathlib import Path
from agentrl_cli.cli.sweep import sweep
sweep(sys.argv[3:], [Path(sys.argv[1])], "it", int(sys.argv[2]), lambda question: True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_terminated_sweep_leaves_no_process(tmp_path: Path, jobs: str):
    if jobs != "1":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs joblib's launcher")
    wanted = small(tmp_path, "algo=rft", "steps=5000", "seed=0,1")
    command = [sys.executable, "-c", STOPPED, str(folders(tmp_path)), jobs, *wanted]
    process = subprocess.Popen(command, cwd=ROOT)
    log = tmp_path / "it" / "seed-0.log"
    while not (log.exists() and "1/5000" in log.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.wait() != 0
    run = Run(tmp_path / "it" / "seed-0")
    assert run.meta["status"] == "stopped" and len(run.checkpoints()) == 1
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not any(f"{tmp_path}/it" in word for line in lines for word in line)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_run_that_cannot_start_stops_no_other(tmp_path: Path):
    folder = run_sweep(tmp_path, "algo=rft", "init=nowhere,null")
    lines, unfinished = summary(folder)
    assert status(folder) == {"init-null": "done"} and unfinished == 1
    assert any(f"{folder}/init-nowhere.log" in line for line in lines)
    lines, unfinished = summary(folder, {"init-null"})
    assert unfinished == 0 and not any("nowhere" in line for line in lines)


OWN_RAY = [  # whatever other one runs on this machine
    "hydra/launcher=ray", "+hydra.launcher.ray.init.num_cpus=2",
    "+hydra.launcher.ray.init.address=local",
]  # fmt: skip


@pytest.mark.extras
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("plugin", "overrides"),
    [
        ("hydra_joblib_launcher", ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]),
        ("hydra_submitit_launcher", ["hydra/launcher=submitit_local"]),
        pytest.param("hydra_ray_launcher", OWN_RAY, marks=pytest.mark.alone),
    ],
)
def test_launchers_run_every_point(plugin: str, overrides: list[str], tmp_path: Path):
    pytest.importorskip(f"hydra_plugins.{plugin}", reason=f"needs {plugin}")
    folder = run_sweep(tmp_path, "algo=rft", "seed=0,1", *overrides)
    assert status(folder) == {"seed-0": "done", "seed-1": "done"}
    assert [run.meta["threads"] for run in list_runs(folder)] == [1, 1]


@pytest.mark.extras
@pytest.mark.timeout(1200)
def test_optuna_chooses_the_points(tmp_path: Path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs hydra-optuna-sweeper")
    chosen = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=1",
              "hydra.sweeper.direction=maximize"]  # fmt: skip
    folder = run_sweep(tmp_path, "algo=rft", "algo.optimizer.lr=interval(0.0001,0.01)", *chosen)
    rates = {json.dumps(run.meta["overrides"]) for run in list_runs(folder)}
    assert len(rates) == 2 and set(status(folder).values()) == {"done"}


@pytest.mark.parametrize("given", [["seed=0,1"], ["-m", "seed=0,1"], ["seed=0", "--multirun"]])
def test_train_prints_the_command_of_a_sweep(given: list[str]):
    plain = ["algo=grpo", "env=courier", "name=it"]
    result = agentrl("train", *plain, *given)
    command = shlex.split(result.stderr.partition("agentrl sweep ")[2])
    values = [text for text in given if not text.startswith("-")]
    assert result.exit_code == 2 and command == [*plain[:2], *values, "--name=it"]
    assert Sweep(command[:-1], None, "it").count_runs() == (2 if "0,1" in values[0] else 1)
