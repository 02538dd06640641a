"""Predicted memory against measurements and hand computation, and refused runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig

from agentrl_cli.algos.base import Algorithm
from agentrl_cli.cli.train import start
from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.config.renames import PRESETS
from agentrl_cli.core.errors import UserError
from agentrl_cli.training.memory_plan import (
    GIB,
    MemoryPlan,
    available_bytes,
    group_limits,
    memory_savers,
    plan_memory,
)
from bench import memory_plan as bench
from tests.builders.hub_shapes import write_shape
from tests.builders.runs import folders, settings
from tests.paths import CONF

REAL = [name for name in PRESETS if name.startswith("paper_")]


def planned(*overrides: str) -> tuple[MemoryPlan, DictConfig]:
    cfg = check(compose(list(overrides)))
    return plan_memory(cfg, build(cfg.algo)), cfg


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CONF.parent)


@pytest.mark.parametrize(
    "way", ["fp32", *(pytest.param(w, marks=pytest.mark.slow) for w in bench.WAYS if w != "fp32")]
)
def test_prediction_is_within_a_fifth_of_training(way: str):
    measured, predicted = bench.compare(way, 128)
    assert predicted == pytest.approx(measured, rel=0.2)


def test_weights_and_optimizer_by_hand(tmp_path: Path):
    small = write_shape(tmp_path, "Qwen3-0.6B")
    model = ["model=hf", f"model.path={small}", "algo=sft", "hardware=gpu", "model.lora=null"]
    parameters = 596_049_920  # as its page says: 0.6B
    for dtype, kept in (("float32", 4 + 8), ("bfloat16", 2 + 4 + 8)):
        plan, _ = planned(*model, f"model.dtype={dtype}")
        assert plan.parameters == parameters
        assert sum(plan.kept.values()) - plan.kept["keys and values"] == kept * parameters
        step = sum(plan.phases["an optimizer step"].values())
        assert step == (4 + 4 if dtype == "float32" else 2 + 4 + 4) * parameters  # on CUDA


def test_fsdp_processes_hold_shares(tmp_path: Path):
    small, parameters = write_shape(tmp_path, "Qwen3-0.6B"), 596_049_920
    model = ["model=hf", f"model.path={small}", "algo=sft"]
    one, _ = planned(*model, "hardware=ddp", "hardware.processes=8", "model.lora=null")
    assert one.kept["optimizer moments"] == 8 * parameters
    plan, cfg = planned(*model, "hardware=fsdp", "hardware.processes=8", "model.lora=null")
    held = sum(plan.kept.values()) - plan.kept["keys and values"]
    assert held == (4 + 8) * parameters // 8
    assert plan.phases["decoding"]["gathered weights"] == 2 * parameters  # in bfloat16
    assert plan.phases["reading logits"]["gradients"] == 4 * parameters // 8
    keys = {saver.key for saver in memory_savers(cfg, build(cfg.algo))}
    assert not keys & {"model.lora", "model.dtype"}


def test_adapters_by_hand_with_one_base(tmp_path: Path):
    small = write_shape(tmp_path, "Qwen2.5-7B")
    lora = "model.lora={rank: 64, alpha: 128, targets: [q_proj]}"
    plan, _ = planned("model=hf", f"model.path={small}", "algo=nlac", "hardware=gpu", lora)
    assert plan.parameters == 7_615_616_512
    assert plan.adapter == 28 * 64 * (3584 + 3584)
    models = 4  # policy, critic, target, reference
    assert plan.kept["base weights"] == 2 * plan.parameters
    assert plan.kept["adapters"] == 2 * plan.adapter * models
    assert plan.kept["float32 masters"] == 4 * plan.adapter * 2
    assert plan.kept["float32 averages"] == 4 * plan.adapter
    assert plan.kept["optimizer moments"] == 8 * plan.adapter * 2


def sized(name: str, root: Path) -> tuple[list[str], int]:
    """The overrides that plan a preset for real hardware without a hub, and that hardware's GiB."""
    model, gib = ("Qwen2.5-1.5B", 24) if name.endswith("_24gb") else ("Qwen2.5-7B", 80)
    there = [f"model.path={write_shape(root, model)}", f"hardware.memory_gib={gib}"]
    return [f"experiment={name}", *there], gib


@pytest.mark.parametrize("name", REAL)
def test_presets_for_real_hardware_plan_within_it(name: str, tmp_path: Path):
    overrides, gib = sized(name, tmp_path)
    assert planned(*overrides)[0].peak < 0.95 * gib * GIB


@pytest.mark.parametrize("algo", ["nlac", "grpo"])
@pytest.mark.parametrize("hardware", ["gpu", "ddp", "ray"])
def test_cache_without_limit_takes_a_share_of_the_gpu(hardware: str, algo: str, tmp_path: Path):
    there = [f"model.path={write_shape(tmp_path, 'Qwen2.5-7B')}", "hardware.memory_gib=80"]
    overrides = ["recipe=paper_twentyq", f"algo={algo}", f"hardware={hardware}", *there]
    plan, _ = planned(*overrides)
    assert 0 < plan.kept["keys and values"] < 20 * GIB
    assert plan.peak < 0.95 * 80 * GIB
    free, _ = planned(*overrides, "hardware.memory_gib=800")
    assert free.kept["keys and values"] > 4 * plan.kept["keys and values"]


@pytest.mark.parametrize(
    ("model", "shape", "hardware"),
    [
        ("qwen2.5_7b", "Qwen2.5-7B", "gpu_80gb"),
        ("qwen2.5_1.5b", "Qwen2.5-1.5B", "gpu_24gb"),
        ("qwen3_0.6b", "Qwen3-0.6B", "gpu_24gb"),
    ],
)
def test_model_and_hardware_presets_plan_within_memory(
    model: str, shape: str, hardware: str, tmp_path: Path
):
    there = f"model.path={write_shape(tmp_path, shape)}"
    chosen = [f"model={model}", f"hardware={hardware}", "algo=nlac", "env=twentyq_full"]
    plan, cfg = planned(*chosen, there)
    assert plan.peak < 0.95 * cfg.hardware.memory_gib * GIB


@pytest.mark.parametrize(
    ("row", "folder", "name"),
    [("0::", "", "memory.max"), ("4:memory:", "memory", "memory.limit_in_bytes")],
)
def test_cgroup_limits_are_read(tmp_path: Path, row: str, folder: str, name: str):
    own, outer = tmp_path / "own", tmp_path / folder / "job"
    (outer / "step").mkdir(parents=True)
    own.write_text(f"9:name=systemd:/job/step\n{row}/job/step\n")
    (outer / "step" / name).write_text("max\n")
    (outer / name).write_text(f"{3 * GIB}\n")
    assert group_limits(tmp_path, own) == [3 * GIB]
    assert group_limits(tmp_path, tmp_path / "none") == []


def test_memory_of_the_chosen_gpu_is_read(monkeypatch: pytest.MonkeyPatch):
    def free(device: int | None = None) -> tuple[int, int]:
        return (80 if device == 1 else 3) * GIB, 80 * GIB

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", free)
    for name, gib in (("cuda", 3), ("cuda:0", 3), ("cuda:1", 80), ("cuda:9", 3)):
        cfg = check(compose([f"hardware.device={name}", "hardware.memory_gib=null"]))
        assert available_bytes(cfg) == gib * GIB


def test_too_little_memory_is_refused_first(tmp_path: Path):
    small = settings(tmp_path / "runs", "nlac", "it", "hardware.memory_gib=0.01")
    with pytest.raises(UserError) as refused:
        start(small, config_dirs=[folders(tmp_path)])
    text = str(refused.value)
    assert refused.value.code == "too-little-memory" and "10 MiB" in text
    assert text.count("(saves ") == 3 and "\n" not in text
    assert not (tmp_path / "runs").exists()


def test_largest_saver_is_first_and_saves(tmp_path: Path):
    overrides = ["model.dtype=float32", "algo=grpo", "hardware.microbatch_tokens=65536"]
    plan, cfg = planned(*overrides)
    savers = memory_savers(cfg, build(cfg.algo))
    assert [saver.saves for saver in savers] == sorted((s.saves for s in savers), reverse=True)
    for saver in savers[:3]:
        lowered, _ = planned(*overrides, f"++{saver}")
        assert plan.peak - lowered.peak == saver.saves > 0


def test_too_long_context_is_refused_without_weights(tmp_path: Path):
    small = write_shape(tmp_path, "Qwen2.5-7B")
    with pytest.raises(UserError, match=r"40000.*32768") as refused:
        planned("model=hf", f"model.path={small}", "hardware=gpu", "rollout.max_seq_len=40000")
    assert refused.value.code == "context-too-long"


def texts_of(*overrides: str) -> dict[str, int]:
    algo: Algorithm = build(check(compose(list(overrides))).algo)
    return {role: texts.count for role, texts in algo.texts(12, 24).items()}


def test_sampled_texts_by_role():
    for k in (1, 4):
        counts = texts_of("experiment=paper_twentyq_nlac", f"algo.num_forecasts={k}")
        assert sum(counts.values()) == 256 * (6 + k)
    turns, k, candidates = 192, 4, 4
    assert texts_of("algo=nlac") == {
        "actions": turns * (1 + candidates),
        "forecasts": turns * (1 + k * (candidates + 1)),
        "backups": turns,
        "critiques": turns * (candidates + 1),
        "refinements": turns,
    }
    assert texts_of("algo=archer") == {"fresh actions": 50 * 24 * 12 + 3 * 256}
    assert texts_of("algo=archer_small") == {"fresh actions": 16 * 8 * 12}
    assert texts_of("algo=archer_small", "algo.action=stored") == {} == texts_of("algo=grpo")
