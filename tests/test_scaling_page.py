"""docs/scaling.md shows the plans of the planner; the scripts for Slurm start and resume runs.
Their programs are fakes that record their arguments."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl_cli.cli.run_training import plan_rows
from agentrl_cli.config.compose import build, compose_checked
from agentrl_cli.training.memory_plan import in_gib, plan_memory
from tests.builders.hub_shapes import write_shape
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "scaling.md").read_text()
SCRIPTS = sorted((ROOT / "docs" / "slurm").glob("*.sh"))
ROW = re.compile(r"^\| `(recipe=[^`]+)` \| ([\d.]+ GiB)", re.MULTILINE)
PRESET_ROW = re.compile(r"^\| `(model=[^`]+)` \| ([\d.]+ GiB) \| ([\d.]+ GiB)", re.MULTILINE)
SHAPES = {"qwen3_0.6b": "Qwen3-0.6B", "qwen2.5_1.5b": "Qwen2.5-1.5B", "qwen2.5_7b": "Qwen2.5-7B"}
SHOWN = re.compile(r"^```\n(episodes per step .*?)^```", re.MULTILINE | re.DOTALL)
MEMORY = "hardware.memory_gib=79"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"model.path={write_shape(tmp_path_factory.mktemp('hub'), 'Qwen2.5-7B')}"


@pytest.mark.slow
def test_plan_on_the_page_is_current(model: str):
    cfg = compose_checked(["recipe=paper_twentyq", "algo=nlac", model, MEMORY])
    rows = {f"{name:<24} {value}" for name, value in plan_rows(cfg, build(cfg.algo))}
    shown = SHOWN.findall(PAGE)
    assert len(shown) == 1 and len(shown[0].splitlines()) > 15
    assert set(shown[0].splitlines()) <= rows


@pytest.mark.slow
@pytest.mark.parametrize(("overrides", "peak"), ROW.findall(PAGE))
def test_row_of_the_plan_is_current(model: str, overrides: str, peak: str):
    cfg = compose_checked([*overrides.split(), model, MEMORY])
    assert in_gib(plan_memory(cfg, build(cfg.algo)).peak) == peak


@pytest.mark.slow
@pytest.mark.parametrize(("overrides", "grpo", "nlac"), PRESET_ROW.findall(PAGE))
def test_row_of_a_preset_is_current(overrides: str, grpo: str, nlac: str, tmp_path: Path):
    shape = SHAPES[re.split("[= ]", overrides)[1]]
    path = f"model.path={write_shape(tmp_path, shape)}"
    for algo, peak in (("grpo", grpo), ("self_ac", grpo), ("nlac", nlac)):
        cfg = compose_checked([f"algo={algo}", "env=twentyq_full", *overrides.split(), path])
        assert in_gib(plan_memory(cfg, build(cfg.algo)).peak) == peak


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_parse_and_are_named(script: Path):
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert f"](slurm/{script.name})" in PAGE and os.access(script, os.X_OK)


@pytest.fixture
def port() -> Iterator[str]:
    with socket.create_server(("localhost", 0)) as listening:
        yield str(listening.getsockname()[1])


def cluster(folder: Path, port: str, learns: str = "") -> dict[str, str]:
    """Variables of a job on two nodes, `localhost` and `there`, whose programs note how they are
    called; `learns` is what agentrl does besides."""
    note = f'echo "${{CUDA_VISIBLE_DEVICES-all}} $(basename "$0") $*" >> {folder}/called\n'
    programs = {
        "scontrol": "printf 'localhost\\nthere\\n'", "srun": note, "ray": f"{note}exec sleep 60",
        "agentrl": note + learns,
    }  # fmt: skip
    (folder / "bin").mkdir()
    for name, text in programs.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    job = {"JOB_NODELIST": "a,b", "JOB_ID": "7", "NNODES": "2", "GPUS_ON_NODE": "8"}
    given = {f"SLURM_{name}": value for name, value in job.items()} | {"PORT": port}
    usual = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    return usual | given | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


def called(folder: Path) -> list[str]:
    return sorted((folder / "called").read_text().splitlines())


def submit(
    folder: Path, port: str, script: str, *overrides: str, learns: str = ""
) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "docs" / "slurm" / script), *overrides]
    environment = cluster(folder, port, learns)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_actors_start_on_all_nodes(tmp_path: Path, port: str):
    learns = f"until [ $(grep -c 'ray start' {tmp_path}/called) = 2 ]; do sleep 0.05; done"
    job = submit(tmp_path, port, "ray.sh", "algo=grpo", "name=it", learns=learns)
    assert job.returncode == 0
    place = f"localhost:{port}"
    assert called(tmp_path) == [
        f"0 agentrl train algo=grpo name=it hardware=ray hardware.actors.address={place}",
        f"1,2,3,4,5,6,7 ray start --head --port {port} --disable-usage-stats --block",
        "all srun --nodes 1 --ntasks 1 --nodelist there --overlap"
        f" ray start --address {place} --disable-usage-stats --block",
    ]


@pytest.mark.parametrize("script", ["ray.sh", "ddp.sh"])
def test_requeued_job_resumes(tmp_path: Path, port: str, script: str):
    (tmp_path / "shared" / "it" / "checkpoints").mkdir(parents=True)
    asked = (f"runs={tmp_path / 'shared'}", "name=it")
    assert submit(tmp_path, port, script, *asked).returncode == 0
    assert any(f"resume {tmp_path / 'shared' / 'it'}" in line for line in called(tmp_path))
    assert not any("train" in line for line in called(tmp_path))


@pytest.mark.parametrize("script", ["ray.sh", "ddp.sh"])
def test_job_needs_a_name(tmp_path: Path, port: str, script: str):
    ended = submit(tmp_path, port, script, "algo=grpo")
    assert ended.returncode == 2 and ended.stderr.startswith("give the run a name=NAME")
    assert not (tmp_path / "called").exists()


def test_processes_start_on_each_node(tmp_path: Path, port: str):
    assert submit(tmp_path, port, "ddp.sh", "algo=nlac", "name=it").returncode == 0
    (line,) = called(tmp_path)
    assert line.startswith("all srun torchrun --nnodes 2 --nproc-per-node 8 ")
    assert line.endswith("-m agentrl_cli.cli train algo=nlac name=it hardware=ddp")


def test_slurm_warning_reaches_the_learner(tmp_path: Path, port: str):
    learns = "trap 'sleep 0.2; echo saved > saved; exit 130' TERM; touch ready\n"
    learns += "while :; do sleep 0.05; done"
    environment = cluster(tmp_path, port, learns)
    command = ["bash", str(ROOT / "docs" / "slurm" / "ray.sh"), "name=it"]
    job = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
    try:
        while not (tmp_path / "ready").exists():
            assert job.poll() is None
        job.send_signal(signal.SIGTERM)
        assert job.wait(20) == 130
    finally:
        job.kill()
    assert (tmp_path / "saved").exists()
