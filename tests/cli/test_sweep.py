"""Sweeps: what is refused before anything starts, how points are named, and real multiruns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from omegaconf import OmegaConf

from agentrl_cli.cli.sweep import Sweep, summary, sweep
from agentrl_cli.cli.sweep_worker import next_verb, own_gpu, point_name, visible_gpus
from agentrl_cli.config.compose import compose_checked
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.runs.find import list_runs
from agentrl_cli.runs.run import Run
from tests.builders.report import write_run
from tests.builders.runs import SMALL, folders
from tests.paths import ROOT


def grid(*overrides: str) -> Sweep:
    return Sweep(list(overrides), None, "it")


# what is asked for


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        (["algo=nlac,self_ac,grpo", "seed=0,1,2"], 9),
        (["algo=grpo", "seed=range(4)"], 4),
        (["algo=grpo"], 1),
        (["seed=range(0,0)"], 0),
        (["seed=range(100)", "steps=range(1,101)"], 10_000),
        (["algo.optimizer.lr=interval(0.0001,0.01)"], None),
        (["seed=0,1", "hydra/sweeper=optuna"], None),
    ],
)
def test_points_are_counted_before_they_are_made(overrides: list[str], count: int | None):
    assert grid(*overrides).count_runs() == count


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        (
            ["algo=grpo,grop", "steps=1,two"],
            ["algo 'grop' not found; did you mean 'grpo'?", "steps must be ... 'two'"],
        ),
        (["algo=grpo", "algo.clip_eps=0.1,x"], ["algo.clip_eps must be ... 'x'"]),
        (
            ["algo=nlac,grpo", "algo.require_optimal=true,false"],
            ["Unknown key 'algo.require_optimal'"],
        ),
        (["seed=0,1", "name=mine"], ["a sweep names its runs by what varies"]),
        (["seed"], ["override 'seed' cannot be read"]),
        (["algo=grpo", "steps=0,1"], ["steps ... 0"]),
        (["seed=0,1", "hydra/launcher=moon"], ["launcher 'moon' is not installed"]),
        (["seed=0,1", "hydra.launcher.n=2"], ["the configuration cannot be composed"]),
    ],
)
def test_every_mistake_is_told_before_the_first_run(
    overrides: list[str], lines: list[str], tmp_path: Path
):
    with pytest.raises(UserError) as error:
        sweep([*overrides, f"runs={tmp_path}"], None, "it", 1, lambda question: True)
    for line in lines:
        assert all(part in str(error.value) for part in line.split(" ... "))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/b", "..", ".hidden"])
def test_a_sweep_stays_among_the_runs(tmp_path: Path, name: str):
    with pytest.raises(UserError, match=r"--name '.*' is not a folder name; use letters"):
        sweep(["seed=0,1", f"runs={tmp_path}/runs"], None, name, 1, lambda question: True)
    assert list(tmp_path.iterdir()) == []


def test_every_choice_and_every_value_is_checked_without_the_whole_product():
    sweep_of_all = grid("algo=sft,rft", "seed=range(50)", "steps=1,2,3", "eval_every=0")
    points = list(sweep_of_all.points_to_check())
    assert len(points) == 2 + 49 + 2
    told = {override for point in points for override in point}
    assert {"algo=rft", "seed=49", "steps=3", "eval_every=0"} <= told


def test_nothing_and_very_much_are_asked_first(tmp_path: Path):
    questions: list[str] = []

    def no(question: str) -> bool:
        questions.append(question)
        return False

    with pytest.raises(UserError, match="has no points"):
        sweep(["seed=range(0,0)", f"runs={tmp_path}"], None, None, 1, no)
    assert questions == []
    with pytest.raises(UserError, match=r"10000 runs were not started; .* --yes"):
        sweep(["seed=range(10000)", f"runs={tmp_path}"], None, "big", 1, no)
    assert questions == [f"start 10000 runs in {tmp_path}/big?"]


def test_the_same_question_has_the_same_folder():
    one = Sweep(["algo=sft,rft", "seed=0,1"], None, None).folder
    assert one == Sweep(["seed=0,1", "algo=sft,rft", "hydra/launcher=joblib"], None, None).folder
    assert one != Sweep(["seed=0,2", "algo=sft,rft"], None, None).folder
    assert Sweep(["seed=0,1", "runs=else"], None, "mine").folder == Path("else/mine")


def test_runs_are_named_by_what_varies():
    assert (
        point_name("algo=nlac,++algo.optimizer.lr=0.0003") == "algo-nlac_algo.optimizer.lr-0.0003"
    )
    assert point_name("++eval.splits=[test]") == "eval.splits-test"
    long = [point_name("++init=" + "x" * 300 + end) for end in "ab"]
    assert long[0] != long[1] and max(map(len, long)) < 140
    told = grid("algo=sft,rft", "steps=3").arguments()
    assert "hydra.job.config.override_dirname.exclude_keys=[steps,runs]" in told


def test_a_folder_of_groups_reaches_hydra_as_it_is_written(tmp_path: Path):
    groups = tmp_path / "my groups ä"
    groups.mkdir()
    told = Sweep(["seed=0,1"], groups, "it").arguments()
    assert f"hydra.searchpath=['file://{groups}']" in told  # run_point takes `file://` off again


def test_runs_side_by_side_get_one_thread_each_unless_told():
    assert "hardware.threads=1" in grid("seed=0,1", "hydra/launcher=joblib").arguments()
    assert "hardware.threads=1" not in grid("seed=0,1").arguments()
    told = grid("seed=0,1", "hydra/launcher=joblib", "hardware.threads=2").arguments()
    assert "hardware.threads=1" not in told and "++hardware.threads=2" in told


def test_what_is_done_stays_what_was_interrupted_goes_on_and_what_failed_begins_anew(
    tmp_path: Path,
):
    for state in ("done", "stopped", "running", "failed"):
        run = write_run(tmp_path / f"r-{state}", status=state)
        (run / "checkpoints" / "step-000010").mkdir(parents=True)
    young = write_run(tmp_path / "r-young", status="stopped")
    assert next_verb(tmp_path / "r-done") is None and next_verb(tmp_path / "r-never") == "train"
    assert next_verb(tmp_path / "r-stopped") == next_verb(tmp_path / "r-running") == "resume"
    assert next_verb(tmp_path / "r-failed") == next_verb(young) == "train"
    kept = sorted(folder.name for folder in (tmp_path / "failed").iterdir())
    assert kept == ["r-failed-0", "r-young-1"]


def finished(folder: Path, *overrides: str) -> Run:
    """A finished run as these overrides compose it."""
    run = write_run(folder, status="done")
    OmegaConf.save(compose_checked(list(overrides)), run / "config.yaml", resolve=True)
    return Run(run)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ("env=arithmetic", "env twentyq there and arithmetic here"),
        ("steps=9", "steps 3 there and 9 here"),
        ("algo.optimizer.lr=1e-3", "algo.optimizer.lr 0.0001 there and 0.001 here"),
        ("algo.clip_eps=0.3", "algo.clip_eps 0.1 there and 0.3 here"),
    ],
)
def test_a_sweep_by_the_same_name_does_not_pass_off_other_runs(
    tmp_path: Path, changed: str, sentence: str
):
    same = ["algo=grpo", "env=twentyq", "steps=3", "algo.clip_eps=0.1"]
    finished(tmp_path / "it" / "seed-0", *same, "seed=0")
    key = changed.partition("=")[0]
    other = [text for text in same if text.partition("=")[0] != key]
    with pytest.raises(UserError) as error:
        sweep([*other, changed, "seed=0,1", f"runs={tmp_path}"], None, "it", 1, lambda q: True)
    first = f"run '{tmp_path}/it/seed-0' has another configuration: {sentence}"
    assert str(error.value).startswith(first) and "give another --name" in str(error.value)
    assert [path.name for path in (tmp_path / "it").iterdir()] == ["seed-0"]


def test_what_changes_no_number_and_what_begins_anew_is_no_other_configuration(tmp_path: Path):
    same = ["algo=grpo", "env=twentyq", "steps=3"]
    run = finished(tmp_path / "it" / "seed-0", *same, "seed=0")
    again = [*same, "seed=0,1", f"runs={tmp_path}"]
    Sweep([*again, "hardware.threads=2"], None, "it").refuse_other_runs()
    Sweep([*again, "hardware.microbatch_tokens=512"], None, "it").refuse_other_runs()
    Sweep([*again, "logger=tensorboard", "save_every=2"], None, "it").refuse_other_runs()
    files.write_json(run.folder / "meta.json", {**run.meta, "status": "failed"})
    Sweep([*again, "algo.clip_eps=0.3"], None, "it").refuse_other_runs()


def test_points_have_the_names_that_hydra_gives_them(tmp_path: Path):
    some = ["seed=0,1", "algo=sft,rft", "algo.optimizer.lr=0.1,0.2", "steps=2", f"runs={tmp_path}"]
    points = {name: overrides for overrides, name in Sweep(some, None, "it").named_points()}
    overrides = points["algo.optimizer.lr-0.1_seed-0_algo-sft"]
    assert overrides == ["steps=2", "++seed=0", "algo=sft", "++algo.optimizer.lr=0.1"]
    assert len(points) == 8


# one GPU each


def test_gpus_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,GPU-1a")
    assert visible_gpus() == ["2", "5", "GPU-1a"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert len(visible_gpus()) == torch.cuda.device_count()


def test_points_side_by_side_have_a_gpu_each_and_give_it_back(tmp_path: Path):
    gpus = ["4", "7"]
    with own_gpu(tmp_path, gpus) as one, own_gpu(tmp_path, gpus) as two:
        assert [one, two] == gpus
        with own_gpu(tmp_path, gpus) as three:
            assert three is None
    with own_gpu(tmp_path, gpus) as one:
        assert one == "4"


def test_points_share_an_only_gpu(tmp_path: Path):
    for gpus in ([], ["0"]):
        with own_gpu(tmp_path, gpus) as gpu:
            assert gpu is None


# real multiruns


@pytest.fixture(autouse=True)
def worlds_of_tests_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs are processes of their own, which must find `tests.fakes`."""
    before = os.environ.get("PYTHONPATH")
    found = [str(ROOT), *([before] if before else [])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(found))


def small(root: Path, *more: str) -> list[str]:
    return [*SMALL, "steps=1", "save_every=0", "eval_every=0", f"runs={root}", *more]


def run_sweep(root: Path, *more: str) -> Path:
    return sweep(small(root, *more), folders(root), "it", 1, lambda question: True)[0]


def status(folder: Path) -> dict[str, str]:
    return {run.name: run.meta["status"] for run in list_runs(folder)}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_sweep_runs_the_grid_skips_what_is_done_and_tries_again_what_failed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    folder = run_sweep(tmp_path, "algo=sft,rft")
    assert status(folder) == {"algo-sft": "done", "algo-rft": "done"}
    before = Run(folder / "algo-sft").meta["created"]
    meta = files.read_json(folder / "algo-rft" / "meta.json")
    files.write_json(folder / "algo-rft" / "meta.json", {**meta, "status": "failed"})
    capfd.readouterr()
    assert run_sweep(tmp_path, "algo=sft,rft") == folder
    told = capfd.readouterr().err
    assert "nothing to do: algo-sft" in told and "train algo-rft" in told
    assert Run(folder / "algo-sft").meta["created"] == before
    assert Run(folder / "algo-rft").meta["created"] > meta["created"]
    assert (folder / "failed" / "algo-rft-0" / "meta.json").is_file()
    lines, unfinished = summary(folder)
    assert len(lines) == 3 and unfinished == 0
    with pytest.raises(UserError, match=r"has another configuration: eval\.tasks 2 there"):
        run_sweep(tmp_path, "algo=sft,rft", "eval.tasks=1")


INTERRUPTED = """
import signal, sys
from pathlib import Path
from agentrl_cli.cli.sweep_worker import run_agentrl
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in background
run_agentrl(sys.argv[2:], Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_run_that_is_interrupted_with_its_sweep_is_saved(tmp_path: Path):
    log, groups = tmp_path / "it.log", ["--config-dir", str(folders(tmp_path))]
    train = ["train", *small(tmp_path, "algo=rft", "steps=9", "name=it"), *groups]
    command = [sys.executable, "-c", INTERRUPTED, str(log), *train]
    process = subprocess.Popen(command, start_new_session=True, cwd=ROOT)
    while not (log.exists() and log.read_text().startswith("run ")):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait() != 0
    run = Run(tmp_path / "it")
    assert run.meta["status"] == "stopped" and len(run.checkpoints()) == 1


STOPPED = """
import sys
from pathlib import Path
from agentrl_cli.cli.sweep import sweep
sweep(sys.argv[3:], Path(sys.argv[1]), "it", int(sys.argv[2]), lambda question: True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_sweep_that_is_told_to_end_saves_its_runs_and_leaves_no_process(
    tmp_path: Path, jobs: str
):
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
    assert not any(f"runs={tmp_path}/it" in line for line in lines)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_that_cannot_start_is_told_and_the_others_go_on(tmp_path: Path):
    folder = run_sweep(tmp_path, "algo=rft", "init=nowhere,null")
    lines, unfinished = summary(folder)
    assert status(folder) == {"init-null": "done"} and unfinished == 1
    assert any(f"failed, see {folder}/init-nowhere.log" in line for line in lines)
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


RECORD = """
import os, sys, time
from pathlib import Path
if "agentrl_cli.cli" in sys.orig_argv:
    here = Path(__file__).parent
    (here / f"gpu-{os.environ['CUDA_VISIBLE_DEVICES']}").touch()
    while len(list(here.glob("gpu-*"))) < 2:  # until the other one is there
        time.sleep(0.05)
"""


@pytest.mark.extras
@pytest.mark.skipif(torch.cuda.is_available(), reason="would train on a GPU")
def test_joblib_gives_each_run_a_gpu_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs joblib's launcher")
    loky = pytest.importorskip("joblib.externals.loky")
    loky.get_reusable_executor().shutdown(wait=True)  # another test's workers have its environment
    (tmp_path / "sitecustomize.py").write_text(RECORD)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,6")
    on = ["algo=rft", "seed=0,1", "hardware.device=cuda"]
    sweep(small(tmp_path, *on), folders(tmp_path), "it", 2, lambda question: True)
    assert sorted(file.name for file in tmp_path.glob("gpu-*")) == ["gpu-3", "gpu-6"]


@pytest.mark.extras
@pytest.mark.timeout(1200)
def test_optuna_chooses_the_points(tmp_path: Path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs hydra-optuna-sweeper")
    chosen = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=1",
              "hydra.sweeper.direction=maximize"]  # fmt: skip
    folder = run_sweep(tmp_path, "algo=rft", "algo.optimizer.lr=interval(0.0001,0.01)", *chosen)
    rates = [Run(run.folder).meta["overrides"] for run in list_runs(folder)]
    assert len({json.dumps(one) for one in rates}) == 2
    assert all(s == "done" for s in status(folder).values())
