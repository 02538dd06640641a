"""Runs with actors equal runs of one process; here with threads, in test_ray.py with Ray."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from agentrl_cli.cli.train import resume, start, validate_launch
from agentrl_cli.config.compose import compose, compose_checked
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.files import read_json
from agentrl_cli.rollout.collector import PlayCollector
from agentrl_cli.rollout.play import EpisodeStart
from agentrl_cli.runs.run import Run
from agentrl_cli.training.build import Parts, build_parts
from agentrl_cli.training.rollout_actors import RolloutActor, _other_gpus, pack_policy, start_actors
from tests.builders.models import LORA
from tests.builders.runs import ACTORS, facts, folders, interrupted, settings, trained
from tests.builders.vllm import vllm_run
from tests.fakes.thread_cluster import ThreadCluster
from tests.fakes.vllm_server import serving

WITH_LORA = f"model.lora={{rank: {LORA.rank}, alpha: {LORA.alpha}, targets: [all-linear]}}"


def parts_of(root: Path, algo: str, *more: str) -> Parts:
    cfg = compose_checked(settings(root, algo, "it", *more), [folders(root)])
    parts = build_parts(cfg, None)
    start_actors(cfg, parts)
    return parts


def starts_of(parts: Parts) -> list[EpisodeStart]:
    assert isinstance(parts.collector, PlayCollector)
    return parts.collector.starts(3, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "more"), [("grpo", ()), ("ppo", ()), ("grpo", (WITH_LORA,))])
def test_actor_plays_with_the_weights_it_receives(tmp_path: Path, algo: str, more: tuple[str, ...]):
    cfg = compose_checked(settings(tmp_path, algo, "it", *more), [folders(tmp_path)])
    parts, actor = build_parts(cfg, None), RolloutActor(cfg, Path.cwd())
    with torch.no_grad():
        for weight in parts.models.weights("policy").values():
            weight.add_(torch.randn_like(weight), alpha=0.05)
    parts.models.mark_changed("policy")
    actor.load(1, pack_policy(parts.models))
    starts, sampling = starts_of(parts), parts.collector.sampling
    here, there = parts.collector.play(starts, sampling), actor.play(starts, sampling, 1.0)
    assert [e.turns for e in there] == [e.turns for e in here]
    assert {e.policy_version for e in there} == {1}


@pytest.mark.slow
def test_run_with_one_actor_is_the_same(tmp_path: Path):
    """To the bit with one actor; several play slices, whose log-probs are rounded otherwise."""
    whole = facts(trained(tmp_path, "grpo", "whole"))
    one = facts(trained(tmp_path, "grpo", "one", ACTORS.replace("count: 2", "count: 1")))
    for row in one["metrics"]:
        for name in [name for name in row if name.startswith("actors/")]:
            assert name == "actors/idle" or row[name] == 0, name
            del row[name]
    assert one == whole


def ages(run: Run) -> list[tuple[float, float]]:
    rows = [row for row in run.metrics() if "actors/idle" in row]
    return [(row["actors/staleness"], row["actors/staleness_max"]) for row in rows]


def untimed_facts(run: Run) -> object:
    found = facts(run)
    for row in found["metrics"]:
        row.pop("actors/idle", None)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "at", "own"), [("nlac", 9, ()), ("archer_small", 7, ("algo.actor_states=4",))]
)
def test_resume_with_episodes_ahead_equals_uninterrupted_run(
    tmp_path: Path, algo: str, at: int, own: tuple[str, ...]
):
    usual = "hardware.generator={max_batch: 64, cache_tokens: 10000}"
    more = (ACTORS, "save_every=0", "algo.critic_warmup=0", "eval_every=0", "eval.baseline=false")
    more += own
    whole = trained(tmp_path, algo, "whole", *more, usual)
    found = ages(whole)
    assert found[0] == (0, 0) and max(found)[1] in (1, 2) and len(found) == 4
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, algo, "cut", *more, interrupted(tmp_path, at))
    run = Run(tmp_path / "cut")
    assert 0 < int(run.latest_checkpoint().name[-6:]) < 4
    ahead = read_json(run.latest_checkpoint() / "state.json")["actors"]["ahead"]
    assert len(ahead["episodes"]) == 8
    shutil.copytree(run.folder, tmp_path / "alone")
    resume(str(run.folder))
    assert untimed_facts(run) == untimed_facts(whole)
    resume(str(tmp_path / "alone"), ["hardware.actors=null"])
    assert Run(tmp_path / "alone").is_done


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["grpo", "self_ac", "archer_small"])
def test_on_policy_algorithms_wait_for_their_episodes(tmp_path: Path, algo: str):
    run = trained(tmp_path, algo, "it", ACTORS)
    assert ages(run) == [(0, 0)] * 4


def test_actors_or_servers_with_several_processes_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"hardware\.strategy is ddp"):
        trained(tmp_path, "grpo", "it", ACTORS, "+hardware.strategy=ddp")
    with pytest.raises(UserError, match="strategy is ddp"):
        validate_launch(compose(["hardware=vllm", "+hardware.strategy=ddp"]))


def test_actors_get_the_other_gpus(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    assert _other_gpus(torch.device("cuda")) == ["5", "6"]
    assert _other_gpus(torch.device("cuda:1")) == ["4", "6"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    assert _other_gpus(torch.device("cuda")) == ["4"]


def test_actors_with_servers_are_refused(model_folder: Path, tmp_path: Path):
    with serving(model_folder) as server:
        given = vllm_run(server.url, model_folder, tmp_path, "grpo", ACTORS)
        with pytest.raises(UserError) as refused:
            start(given, config_dirs=[folders(tmp_path)])
    assert refused.value.code == "actors-with-servers"
    assert not (tmp_path / "it").exists()


def test_actors_play_evaluations(tmp_path: Path):
    parts = parts_of(tmp_path, "grpo", ACTORS)
    starts = starts_of(parts)
    episodes = parts.collector.play(starts, parts.collector.sampling, parts.generator)
    cluster = parts.collector.actors.cluster  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(cluster, ThreadCluster) and len(cluster.shared) == 1
    assert [e.id for e in episodes] == [start.id for start in starts]
    parts.close()
    assert cluster.is_closed
