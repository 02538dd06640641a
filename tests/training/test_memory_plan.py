"""What a run is predicted to hold in memory: against measurements, by hand, and what is refused."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig

from agentrl_cli.algos.base import Algorithm
from agentrl_cli.cli.sweep import Sweep
from agentrl_cli.cli.train import start
from agentrl_cli.config.compose import build, check, compose, options
from agentrl_cli.core.errors import UserError
from agentrl_cli.training.memory_limit import GIB, group_limits, memory_savers
from agentrl_cli.training.memory_plan import MemoryPlan, plan_memory
from bench import memory_plan as bench
from tests.builders.hub_shapes import write_shape
from tests.builders.runs import folders, settings
from tests.paths import CONF

FIGURES = json.loads(bench.RESULT.read_text())
REAL = [name for name in options("experiment") if name.startswith("paper_")]


def planned(*overrides: str) -> tuple[MemoryPlan, DictConfig]:
    cfg = check(compose(list(overrides)))
    return plan_memory(cfg, build(cfg.algo)), cfg


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CONF.parent)


@pytest.mark.parametrize(
    "model", [f"{way}_{width}" for way in bench.WAYS for width in bench.WIDTHS]
)
def test_stored_predictions_are_within_a_fifth_of_what_was_measured(model: str):
    measured = FIGURES[f"{model}_measured"]
    assert FIGURES[f"{model}_predicted"] == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize("way", ["fp32", "checkpointed"])
def test_a_prediction_is_within_a_fifth_of_what_training_takes(way: str):
    measured, predicted = bench.compare(way, 128)
    assert predicted == pytest.approx(measured, rel=0.2)


def test_weights_and_optimizer_are_counted_by_hand(tmp_path: Path):
    small = write_shape(tmp_path, "Qwen3-0.6B")
    model = ["model=hf", f"model.path={small}", "algo=sft", "hardware=gpu", "model.lora=null"]
    parameters = 596_049_920  # as its page says: 0.6B
    for dtype, kept in (("float32", 4 + 8), ("bfloat16", 2 + 4 + 8)):
        plan, _ = planned(*model, f"model.dtype={dtype}")
        assert plan.parameters == parameters
        assert sum(plan.kept.values()) - plan.kept["keys and values"] == kept * parameters
        step = sum(plan.phases["an optimizer step"].values())
        assert step == (4 + 4 if dtype == "float32" else 2 + 4 + 4) * parameters  # on CUDA


def test_of_several_processes_each_holds_a_share_of_what_is_trained(tmp_path: Path):
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


def test_adapters_are_counted_by_hand_and_the_base_is_held_once(tmp_path: Path):
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


@pytest.mark.parametrize(
    ("model", "shape", "hardware"),
    [
        ("qwen2.5_7b", "Qwen2.5-7B", "gpu_80gb"),
        ("qwen2.5_1.5b", "Qwen2.5-1.5B", "gpu_24gb"),
        ("qwen3_0.6b", "Qwen3-0.6B", "gpu_24gb"),
    ],
)
@pytest.mark.parametrize("algo", ["grpo", "nlac"])
def test_any_method_plans_with_a_models_and_a_hardwares_preset(
    model: str, shape: str, hardware: str, algo: str, tmp_path: Path
):
    there = f"model.path={write_shape(tmp_path, shape)}"
    chosen = [f"model={model}", f"hardware={hardware}", f"algo={algo}", "env=twentyq_full"]
    plan, cfg = planned(*chosen, there)
    assert plan.peak < 0.95 * cfg.hardware.memory_gib * GIB


def test_the_presets_of_the_paper_have_one_rate_for_all_methods():
    names = [file.stem for file in (CONF / "experiment").glob("paper_twentyq_*.yaml")]
    rates = {name: compose([f"experiment={name}"]).algo.optimizer.lr for name in names}
    assert set(rates.values()) == {1e-5}, rates


def test_the_sweep_for_eight_gpus_composes_and_each_of_its_runs_plans_within_one(tmp_path: Path):
    page = (CONF.parent / "docs" / "scaling.md").read_text()
    command = next(line for line in page.splitlines() if line.startswith("$ agentrl sweep "))
    *overrides, jobs, eight = shlex.split(command)[3:]
    grid = Sweep(overrides, None, None)
    assert (jobs, eight, grid.count_runs()) == ("--jobs", "8", 8)
    points = list(grid.points_to_check())
    there = f"model.path={write_shape(tmp_path, 'Qwen2.5-7B')}"
    assert len({tuple(point) for point in points}) == 8
    for point in points[:2]:
        plan, cfg = planned(*point, there)
        assert plan.peak < 0.95 * cfg.hardware.memory_gib * GIB == 0.95 * 80 * GIB


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="would load what is planned")
def test_dry_plans_without_the_device_and_without_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    start(sized("paper_twentyq_nlac_24gb", tmp_path)[0], dry=True)
    printed = capsys.readouterr().out
    for row in ("predicted peak memory", "  float32 masters", "  forecasts  ", "to lower first"):
        assert f"\n{row}" in printed
    assert "activations" in printed and "logits and loss" in printed
    assert "not played: there is no CUDA device here" in printed


@pytest.mark.parametrize(
    ("row", "folder", "name"),
    [("0::", "", "memory.max"), ("4:memory:", "memory", "memory.limit_in_bytes")],
)
def test_the_limits_of_control_groups_are_read(tmp_path: Path, row: str, folder: str, name: str):
    own, outer = tmp_path / "own", tmp_path / folder / "job"
    (outer / "step").mkdir(parents=True)
    own.write_text(f"9:name=systemd:/job/step\n{row}/job/step\n")
    (outer / "step" / name).write_text("max\n")
    (outer / name).write_text(f"{3 * GIB}\n")
    assert group_limits(tmp_path, own) == [3 * GIB]
    assert group_limits(tmp_path, tmp_path / "none") == []


def test_too_little_memory_is_refused_before_anything_is_made(tmp_path: Path):
    small = settings(tmp_path / "runs", "nlac", "it", "hardware.memory_gib=0.01")
    with pytest.raises(UserError) as refused:
        start(small, config_dir=folders(tmp_path))
    text = str(refused.value)
    assert "this run needs" in text and "has 10 MiB" in text and "lower first: " in text
    assert text.count("(saves ") == 3 and "\n" not in text
    assert not (tmp_path / "runs").exists()


def test_what_saves_most_is_named_first_and_does_save_it(tmp_path: Path):
    overrides = ["model.dtype=float32", "algo=grpo", "hardware.tokens_per_batch=65536"]
    plan, cfg = planned(*overrides)
    savers = memory_savers(cfg, build(cfg.algo))
    assert [saver.saves for saver in savers] == sorted((s.saves for s in savers), reverse=True)
    for saver in savers[:3]:
        lowered, _ = planned(*overrides, f"++{saver}")
        assert plan.peak - lowered.peak == saver.saves > 0


def test_a_context_that_the_model_has_not_is_refused_without_its_weights(tmp_path: Path):
    small = write_shape(tmp_path, "Qwen2.5-7B")
    with pytest.raises(UserError, match="=32768") as refused:
        planned("model=hf", f"model.path={small}", "hardware=gpu", "rollout.max_context=40000")
    assert refused.value.code == "context-too-long"


def texts_of(*overrides: str) -> dict[str, int]:
    algo: Algorithm = build(check(compose(list(overrides))).algo)
    return {role: texts.count for role, texts in algo.texts(12, 24).items()}


def test_texts_of_the_papers_nlac_are_six_and_k_a_turn():
    for k in (1, 4):
        counts = texts_of("experiment=paper_twentyq_nlac", f"algo.forecasts={k}")
        assert sum(counts.values()) == 256 * (6 + k)


def test_texts_of_the_default_nlac_by_role():
    turns, k, candidates = 192, 4, 4
    assert texts_of("algo=nlac") == {
        "actions": turns * (1 + candidates),
        "forecasts": turns * (1 + k * (candidates + 1)),
        "backups": turns,
        "critiques": turns * (candidates + 1),
        "refinements": turns,
    }


def test_archer_samples_an_action_for_every_turn_that_its_critic_reads():
    assert texts_of("algo=archer") == {"fresh actions": 16 * 8 * 12}
    assert texts_of("algo=archer", "algo.action=stored") == {}
    assert texts_of("algo=grpo") == {}
