"""Two actors on a local Ray: `make ray-test` runs these, and `make ci` the small one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.cli.train import resume
from agentrl_cli.config.compose import compose_checked
from agentrl_cli.core.errors import RunAborted, UserError
from agentrl_cli.core.files import read_jsonl
from agentrl_cli.core.types import Episode
from agentrl_cli.runs.run import Run
from agentrl_cli.training.build import build_parts
from agentrl_cli.training.rollout_actors import start_actors
from tests.builders.ranks import free_port, train_command
from tests.builders.runs import facts, folders, settings, trained
from tests.paths import ROOT

RAY = ("hardware=ray", "hardware.device=cpu", "hardware.generator.cache_tokens=10000")
PIECES = ("rollout.episodes_per_step=16", "rollout.max_concurrent_episodes=2")
SECONDS = 0.05  # that every step of the slow world takes


def world(name: str, **values: Any) -> list[str]:
    """The overrides of a coin's world of this name."""
    given = [f"+env.{key}={value}" for key, value in values.items()]
    return [f"env._target_=tests.fakes.slow_coin.{name}", *given]


def train_episodes(run: Run, step: int) -> list[dict[str, Any]]:
    """Those that a run wrote at this step."""
    return read_jsonl(run.folder / "episodes" / f"train-{step:06d}.jsonl")


def gist(episode: Episode) -> dict[str, Any]:
    """An episode without times and log-probs, which are rounded by what is read together."""
    row: dict[str, Any] = {**episode.to_json(), "seconds": 0.0, "env_seconds": 0.0}
    for turn in row["turns"]:
        del turn["logprobs"]
    return row


@pytest.mark.extras
@pytest.mark.alone
def test_run_with_two_actors_is_done(tmp_path: Path):
    run = trained(tmp_path, "nlac", "it", *RAY, "steps=2", "eval.baseline=false")
    rows = [row for row in run.metrics() if "actors/idle" in row]
    assert [row["actors/lost"] for row in rows] == [0, 0]
    assert rows[1]["actors/staleness_max"] == 1  # critic_warmup=1: of the shared weights once
    assert {e["policy_version"] for e in train_episodes(run, 2)} == {0}


@pytest.mark.ray
@pytest.mark.parametrize("algo", ["nlac", "ppo"])
def test_actors_play_the_episodes_of_one_process(tmp_path: Path, algo: str):
    cfg = compose_checked(settings(tmp_path, algo, "it", *RAY), [folders(tmp_path)])
    parts = build_parts(cfg, None)
    here = [episode for step in range(2) for episode in parts.collector.collect(step, 1)]
    start_actors(cfg, parts)
    there = [episode for step in range(2) for episode in parts.collector.collect(step, 1)]
    parts.close()
    assert [gist(episode) for episode in there] == [gist(episode) for episode in here]
    for mine, theirs in zip(here, there, strict=True):
        for turn, other in zip(mine.turns, theirs.turns, strict=True):
            assert other.logprobs == pytest.approx(turn.logprobs, abs=1e-5)


@pytest.mark.ray
def test_killed_actor_costs_its_episodes_only(tmp_path: Path):
    more = (*PIECES, "eval.baseline=false", "eval_every=1", "steps=3")
    deadly = world("DeadlyCoinEnv", deadly="train-2", marker=tmp_path / "killed")
    run = trained(tmp_path, "grpo", "it", *RAY, *more, *deadly)
    whole = trained(tmp_path, "grpo", "whole", *more)
    rows = [row for row in run.metrics() if "actors/lost" in row]
    assert [row["actors/lost"] for row in rows] == [1, 0, 0]
    assert [row["episodes/failed_actor"] for row in rows] == [2 / 16, 0, 0]
    found, plain = train_episodes(run, 1), train_episodes(whole, 1)
    lost = [row for row in found if row["error"]]
    assert len(lost) == 2 and {row["task"]["id"] for row in lost} == {"train-2"}
    assert lost[0]["error"].startswith("LostActor: ")
    kept = [(a, b) for a, b in zip(found, plain, strict=True) if not a["error"]]
    assert len(kept) == 14
    for one, other in kept:
        assert [t["action"] for t in one["turns"]] == [t["action"] for t in other["turns"]]


@pytest.mark.ray
def test_run_that_loses_many_episodes_resumes(tmp_path: Path):
    deadly = world("DeadlyCoinEnv", deadly="train-2", marker=tmp_path / "killed")
    with pytest.raises(RunAborted, match="4 of 8") as ended:
        trained(tmp_path, "grpo", "it", *RAY, *deadly, "eval.baseline=false")
    run = Run(tmp_path / "it")
    assert str(ended.value).endswith(f"agentrl resume {run.folder}")
    assert len(run.checkpoints()) == 1
    resume(str(run.folder))
    assert Run(run.folder).is_done


@pytest.mark.ray
def test_ctrl_c_in_a_terminal_saves_the_run(tmp_path: Path):
    """A terminal sends it to every process of the run, Ray's included."""
    more = (*RAY, *world("SlowCoinEnv", seconds=SECONDS), "save_every=0", "eval.baseline=false")
    whole = trained(tmp_path, "nlac", "whole", *more)
    arguments = train_command(tmp_path, "nlac", "it", *more)
    command = [sys.executable, "-m", "agentrl_cli.cli", *arguments]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step 2/4"):
            os.killpg(process.pid, signal.SIGINT)
            break
    said = process.communicate()[1].strip().splitlines()
    run = Run(tmp_path / "it")
    assert process.returncode == 130 and said[-1].endswith(f"agentrl resume {run.folder}"), said
    assert 2 <= int(run.latest_checkpoint().name[-6:]) < 4
    resume(str(run.folder))
    found, expected = facts(Run(run.folder)), facts(whole)
    for row in (*found["metrics"], *expected["metrics"]):
        row.pop("actors/idle", None)
    assert found == expected
    assert all(row.get("actors/lost", 0) == 0 for row in found["metrics"])


@pytest.mark.ray
def test_slurm_script_trains_on_its_own_cluster(tmp_path: Path):
    """On one node, where `scontrol` is all that is missing."""
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho localhost\n")
    (tmp_path / "scontrol").chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    job = {"SLURM_JOB_NODELIST": "localhost", "SLURM_GPUS_ON_NODE": "1", "PORT": str(free_port())}
    asked = [*settings(tmp_path, "grpo", "it"), "hardware.device=cpu", "steps=2"]
    asked += ["--config-dir", str(folders(tmp_path))]
    ended = subprocess.run(
        ["bash", str(ROOT / "docs" / "slurm" / "ray.sh"), *asked],
        env={**os.environ, **job, "PATH": path, "PYTHONPATH": str(ROOT)}, text=True,
        capture_output=True, timeout=240,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    run = Run(tmp_path / "it")
    assert run.is_done and [row["actors/lost"] for row in run.metrics() if "actors/lost" in row]


@pytest.mark.ray
@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("address", "127.0.0.1:1", "ray-unreachable"),
        ("start_timeout", "0.01", "actors-not-started"),
    ],
)
def test_unusable_ray_is_refused(tmp_path: Path, key: str, value: str, code: str):
    with pytest.raises(UserError, match=value) as refused:
        trained(tmp_path, "grpo", "it", *RAY, f"hardware.actors.{key}={value}")
    assert refused.value.code == code and not (tmp_path / "it").exists()
