"""Two processes train as one does, on the CPU over gloo (`make ranks-test`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_cli.core.errors import GeneratorError
from agentrl_cli.core.files import read_json
from agentrl_cli.runs.run import Run
from agentrl_cli.training.distributed import error_of, reason_of
from tests.builders.ranks import (
    DDP,
    FSDP,
    Ended,
    dying,
    free_port,
    largest_gap,
    launch,
    started_by,
    train_command,
    trained_by,
    variables,
    weights,
)
from tests.builders.runs import DEMOS, GUARDED, SPEAKER, facts, trained
from tests.paths import ROOT

UPDATES = ("steps=3", "eval_every=3", "save_every=0")
THREE = (*UPDATES, "algo.optimizer.lr=1e-4")
LORA = "model.lora={rank: 4, alpha: 8, targets: [all-linear]}"
CASES = {  # algorithm, overrides of one process, of two processes, of both
    "grpo": ("grpo", [], DDP, []),
    "grpo, adapters": ("grpo", [], DDP, [LORA]),
    "nlac": ("nlac", [SPEAKER], ["hardware=speaker_ddp"], []),
    "nlac, its own critic and a guard": ("nlac", [SPEAKER], ["hardware=speaker_ddp"], GUARDED),
    "nlac, adapters": ("nlac", [SPEAKER], ["hardware=speaker_ddp"], [LORA]),
    "self_ac": ("self_ac", [], DDP, []),
    "archer": ("archer", [], DDP, ["algo.critic_optimizer.lr=1e-4"]),
    "stepagent_inverse": (
        "stepagent_inverse", [], DDP, ["algo.discriminator_optimizer.lr=1e-4"]
    ),
    "grpo, sharded": ("grpo", [], FSDP, []),
    "nlac, sharded": ("nlac", [SPEAKER], ["hardware=speaker_fsdp"], []),
}  # fmt: skip
IN_CI = ("nlac, sharded",)
GAP = 1e-5


def closely(one: Run, two: Run) -> None:
    """Both runs have played the same, and hold the same weights but for rounding."""
    for name, episodes in facts(one)["episodes"].items():
        actions = [[turn["action"] for turn in row["turns"]] for row in episodes]
        other = [[turn["action"] for turn in row["turns"]] for row in facts(two)["episodes"][name]]
        assert actions == other
    assert largest_gap(weights(one), weights(two)) < GAP


def test_generator_error_reaches_all_ranks():
    raised = error_of(1, *reason_of(GeneratorError("no answer", [None])))
    assert isinstance(raised, GeneratorError) and str(raised) == "no answer"


@pytest.mark.parametrize(
    ("algo", "alone", "together", "more"),
    [
        pytest.param(*case, id=name, marks=pytest.mark.slow if name in IN_CI else pytest.mark.ranks)
        for name, case in CASES.items()
    ],
)
def test_two_processes_give_the_weights_of_one(
    tmp_path: Path, algo: str, alone: list[str], together: list[str], more: list[str]
):
    rate = "algo.ppo.optimizer.lr" if algo == "stepagent_inverse" else "algo.optimizer.lr"
    small = [*UPDATES, *more, f"{rate}=1e-4"]
    one = trained(tmp_path, algo, "one", *alone, *small)
    two = trained_by(2, tmp_path, algo, "two", *together, *small)
    closely(one, two)
    begin = trained(tmp_path, algo, "begin", *alone, *small, f"{rate}=0")
    assert largest_gap(weights(begin), weights(one)) > 10 * GAP


@pytest.mark.slow
def test_only_the_main_rank_writes(tmp_path: Path):
    command = train_command(tmp_path, "grpo", "two", *DDP, *THREE)
    first, second = launch(command, command)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert second.out == second.err == ""
    run = Run(tmp_path / "two")
    assert run.meta["status"] == "done" and run.meta["processes"] == 2
    assert [row["step"] for row in run.metrics()] == [0, 1, 2, 3, 3]
    closely(trained(tmp_path, "grpo", "one", *THREE), run)


def lost_rank_line(ends: list[Ended], survivor: int) -> str:
    """The last line of a process after another died."""
    assert ends[survivor].code == 1
    return ends[survivor].err.strip().splitlines()[-1]


@pytest.mark.ranks
@pytest.mark.parametrize(
    "launcher",
    [
        ("torch.distributed.run", "--nproc_per_node", "2", "--master_port"),
        (
            "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
            "--main_process_port",
        ),
    ],
    ids=["torchrun", "accelerate launch"],
)  # fmt: skip
def test_real_launchers_start_a_run(tmp_path: Path, launcher: tuple[str, ...]):
    whole = trained(tmp_path, "grpo", "whole", *THREE)
    command = train_command(tmp_path, "grpo", "it", *DDP, *THREE)
    ended = started_by([*launcher, str(free_port())], command)
    assert ended.code == 0, ended
    closely(whole, Run(tmp_path / "it"))


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("dead", "hardware", "count"), [(1, DDP, 1), (0, DDP, 3), (1, FSDP, 1)],
    ids=["another rank", "the main rank", "a shard"],
)  # fmt: skip
def test_dead_rank_ends_all_and_run_resumes(
    tmp_path: Path, dead: int, hardware: tuple[str, ...], count: int
):
    more = (*THREE, "save_every=1", "eval.baseline=false")
    whole = trained(tmp_path, "grpo", "whole", *more)
    command = train_command(tmp_path, "grpo", "it", *hardware, *more, dying(dead, at=5))
    ends = launch(command, command)
    assert ends[dead].code == -9
    line = lost_rank_line(ends, 1 - dead)
    assert line.endswith(f"-m agentrl_cli.cli resume {tmp_path / 'it'}") and "checkpoint" in line
    run = Run(tmp_path / "it")
    assert run.meta["status"] == ("stopped" if dead == 1 else "running")
    assert 0 < int(run.latest_checkpoint().name[-6:]) < 3
    go_on = ["resume", str(run.folder)]
    if count == 1:
        go_on += ["hardware.strategy=null"]
    config = run.config_file.read_text()
    assert "tests.builders.ranks.Dying" in config
    run.config_file.write_text(config.replace("at: 5", "at: 0"))
    ends = launch(*[go_on] * count)
    assert [end.code for end in ends] == [0] * count, ends
    closely(whole, Run(run.folder))


@pytest.mark.ranks
def test_rank_dead_before_first_update_leaves_resumable_run(tmp_path: Path):
    more = (*THREE, "eval.baseline=false", "algo.critic_optimizer.lr=1e-4")
    command = train_command(tmp_path, "archer", "it", *DDP, *more, dying(1, at=1))
    assert "another process" in lost_rank_line(launch(command, command), 0)
    run = Run(tmp_path / "it")
    assert run.latest_checkpoint().name == "last-000000"
    run.config_file.write_text(run.config_file.read_text().replace("at: 1", "at: 0"))
    ends = launch(*[["resume", str(run.folder)]] * 2)
    assert [end.code for end in ends] == [0, 0], ends
    closely(trained(tmp_path, "archer", "whole", *more), Run(run.folder))


@pytest.mark.ranks
@pytest.mark.parametrize("algo", ["nlac", "grpo"])
def test_resume_by_several_processes_equals_one(tmp_path: Path, algo: str):
    more = ("steps=4", "save_every=2", "eval_every=4", "algo.optimizer.lr=1e-4")
    whole = trained(tmp_path, algo, "whole", *more)
    hardware = FSDP if algo == "grpo" else DDP
    run = trained_by(2, tmp_path, algo, "it", *hardware, *more)
    shutil.rmtree(run.latest_checkpoint())
    ends = launch(*[["resume", str(run.folder)]] * 2)
    assert [end.code for end in ends] == [0, 0], ends
    closely(whole, run)
    state = read_json(run.latest_checkpoint() / "state.json")
    assert state["buffer"].keys() == facts(whole)["state"]["buffer"].keys()


def refused_by(ends: list[Ended], shown: str) -> None:
    """All processes exit with code 2, and one of them prints one line."""
    assert [end.code for end in ends] == [2] * len(ends), ends
    (line,) = "".join(end.err for end in ends).strip().splitlines()
    assert shown in line, line


ONE_RUNS_OUT = """
import torch
from agentrl_cli.core.errors import DistributedError
from agentrl_cli.training.distributed import ProcessRanks, explained_loss

ranks = ProcessRanks("fsdp", "cpu")
try:
    with explained_loss(), ranks.together(passes=True):
        if ranks.rank == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        ranks.sum(torch.ones(1))  # as a pass over sharded weights waits for the others
except DistributedError as error:
    raise SystemExit(f"rank {ranks.rank}: {error.code}")
"""


@pytest.mark.ranks
def test_memory_that_runs_out_on_one_rank_ends_all():
    port = free_port()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_RUNS_OUT], stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables(rank, 2, port)},
        )
        for rank in range(2)
    ]  # fmt: skip
    waits, runs_out = (process.communicate(timeout=60)[1] for process in started)
    assert "rank 0: distributed" in waits and "rank 1: distributed" in runs_out
    assert all(process.returncode == 1 for process in started)


@pytest.mark.ranks
def test_different_configurations_are_refused(tmp_path: Path):
    commands = [train_command(tmp_path, "grpo", "it", *DDP, f"seed={i}") for i in range(2)]
    refused_by(launch(*commands), "seed is 0 on rank 0 and 1 on rank 1")
    assert not (tmp_path / "it").exists()


@pytest.mark.ranks
def test_different_weights_are_refused(tmp_path: Path):
    places = (tmp_path / "a", tmp_path / "b")
    for seed, place in enumerate(places):
        run = trained(place, "grpo", "start", "steps=1", f"seed={seed}")
        shutil.copytree(run.latest_checkpoint() / "models" / "policy", place / "init")
    command = train_command(tmp_path, "grpo", "it", *DDP, "init=init")
    refused_by(launch(command, command, places=places), "disagree: the weights of ")
    assert not (tmp_path / "it").exists()


@pytest.mark.ranks
def test_build_error_on_one_rank_leaves_no_run(tmp_path: Path):
    places = (tmp_path / "a", tmp_path / "b")
    for place in places:
        place.mkdir()
    shutil.copy(DEMOS.removeprefix("data.demos="), places[0] / "demos.jsonl")
    command = train_command(tmp_path, "dpo", "it", *DDP, "data.demos=demos.jsonl")
    refused_by(launch(command, command, places=places), "'demos.jsonl'")
    assert not (tmp_path / "it").exists()


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("algo", "more", "shown"),
    [
        ("grpo", [*FSDP, LORA], "model.lora=null"),
        ("ppo", FSDP, "value head"),
        ("nlac", [*DDP, "eval.act=refined"], "eval.act=refined"),
    ],
)
def test_unsupported_strategies_are_refused(tmp_path: Path, algo: str, more: list[str], shown: str):
    command = train_command(tmp_path, algo, "it", *more)
    refused_by(launch(command, command), shown)
    assert not (tmp_path / "it").exists()
