"""Presets and the comparison of their results with the stored numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentrl_cli.cli import reproduce as module
from agentrl_cli.cli.reproduce import (
    Result,
    final_result,
    read_stored,
    reproduce,
    smoke_test,
    toy_overrides,
)
from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.config.renames import PRESETS, preset_overrides
from agentrl_cli.runs.run import Run
from bench.results import ABLATIONS, CONTROLS, TASKS
from tests.builders.command_line import agentrl, refused
from tests.builders.errors import user_error
from tests.builders.models import write_model
from tests.builders.report import write_run
from tests.paths import CONF

RESULTS = CONF.parent / "docs" / "results"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name.startswith(("paper", "twentyq")) else pytest.mark.slow)
        for name in PRESETS
        if not name.startswith("math_")
    ],
)
def test_preset_builds_its_algorithm(name: str):
    cfg = check(compose(preset_overrides(name)))
    assert type(build(cfg.algo)).__name__ == cfg.algo._target_.rpartition(".")[2]
    if name.startswith("paper_"):
        size, rank = ("1.5B", 32) if name.endswith("_24gb") else ("7B", 64)
        assert (cfg.model.path, cfg.model.lora.rank) == (f"Qwen/Qwen2.5-{size}-Instruct", rank)


@pytest.mark.slow
def test_ablations_change_one_component():
    def algo(name: str):
        return check(compose(preset_overrides(f"arithmetic_{name}"))).algo

    plain = algo("nlac")
    assert plain.separate_critic and not algo("shared_critic").separate_critic
    assert algo("guarded").improvement_check.every and not plain.improvement_check.every
    assert (algo("k1").num_forecasts, algo("k8").num_forecasts) == (1, 8)
    assert algo("m2").num_refinements == 2
    on_policy = algo("on_policy").advanced
    assert (on_policy.buffer_size, on_policy.priority_exponent) == (128, 0)
    assert algo("shuffled_outcomes").advanced.ablation == "shuffled_outcomes"
    assert algo("monte_carlo").advanced.td_lambda == 1
    for name in ABLATIONS["arithmetic"]:
        changed = {key for key in plain if plain[key] != algo(name).get(key)}
        without_critic = {"_target_", "policy_target", "separate_critic"}
        assert changed == without_critic if name == "self_distillation" else len(changed) == 1


@pytest.mark.parametrize("name", (*CONTROLS, "shuffled_next_states"))
def test_control_of_nlac_is_the_option_of_its_name(name: str):
    cfg = compose(["algo=nlac", f"ablation={name}"])
    assert cfg.algo.advanced.ablation == name


def test_stored_numbers_are_those_of_the_records():
    names = (*TASKS, *(f"{env}_ablations" for env in ABLATIONS))
    files = [file for name in names if (file := RESULTS / f"{name}.json").exists()]
    records = [row for file in files for row in json.loads(file.read_text())]
    recorded = {
        (f"{row['env']}_{row['variant'] or row['algo']}", str(row["seed"])): row
        for row in records
        if row["split"] == "test"
    }
    stored = read_stored()
    assert stored
    for preset, runs in stored.items():
        assert preset in PRESETS and runs
        name = re.sub("_archer$", "_archer_small", preset)  # its name today
        for seed, kept in runs.items():
            row = recorded[name, seed]
            assert Result(**kept) == Result("test", row["final"], row["low"], row["high"])


def test_result_inside_the_stored_interval_agrees():
    stored = Result("test", 0.4, 0.35, 0.45)
    assert Result("test", 0.36, 0.3, 0.4).agrees(stored) is True
    assert Result("test", 0.46, 0.3, 0.5).agrees(stored) is False
    assert Result("train", 0.4, 0.3, 0.5).agrees(stored) is None


def test_finished_run_is_compared_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "STORED", tmp_path / "stored.json")
    write_run(tmp_path / "twentyq_rft_s3", algo="rft", seed=3)
    found = final_result(Run(tmp_path / "twentyq_rft_s3"))
    assert (found.split, found.final) == ("test", 5 / 8)
    assert reproduce("twentyq_rft", [3], tmp_path, store=True)[1] == 0
    assert Result(**json.loads((tmp_path / "stored.json").read_text())["twentyq_rft"]["3"]) == found
    assert len(reproduce("twentyq_rft", [], tmp_path, store=False)[0]) == 1
    monkeypatch.setattr(module, "read_stored", lambda: {
        "twentyq_rft": {"3": {"split": "test", "final": 0.1, "low": 0.0, "high": 0.2}}
    })  # fmt: skip
    assert reproduce("twentyq_rft", [], tmp_path, store=False)[1] == 1


def test_start_of_a_preset_is_run_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trained: list[str] = []

    def train(arguments: list[str], log: Path) -> int:
        trained.append(log.stem)
        write_run(tmp_path / log.stem, algo="sft", seed=4)
        return 0

    monkeypatch.setattr(module, "run_agentrl", train)
    reproduce("math_stepagent_inverse", [4], tmp_path, store=False)
    assert trained == ["arithmetic_sft_s4", "arithmetic_stepagent_inverse_s4"]
    reproduce("math_stepagent_implicit", [4], tmp_path, store=False)
    assert trained[2:] == ["arithmetic_stepagent_implicit_s4"]


def test_impossible_reproduction_is_refused(tmp_path: Path):
    with user_error("unknown-preset", "twentyq_rft"):
        reproduce("twentyq_rtf", [], tmp_path, store=False)
    write_run(tmp_path / "twentyq_rft_s0", algo="rft", status="failed")
    with user_error("unfinished-run", "twentyq_rft_s0"):
        reproduce("twentyq_rft", [0], tmp_path, store=False)
    refused(agentrl("reproduce", "all"), "reproduce all --smoke")


def test_toy_sizes_are_those_of_existing_keys():
    overrides = toy_overrides(compose(["recipe=twentyq", "algo=archer_small"]))
    assert {"steps=1", "algo.critic_warmup=0"} <= set(overrides)
    assert not any(
        text.startswith(("algo.turns_per_update", "rollout.texts")) for text in overrides
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_preset_runs_at_toy_size(tmp_path: Path):
    """Of an ablation that several environments have, one preset: they differ in the environment
    only. The presets named after math are those of arithmetic."""
    chosen: dict[tuple[str, ...], str] = {}
    for name in sorted(PRESETS, reverse=True):  # arithmetic is the first, so it is kept
        recipe, *what = (text.partition("=")[2] for text in preset_overrides(name))
        is_ablation = len(what) > 1 and not recipe.startswith("paper")
        chosen[tuple(what) if is_ablation else (recipe, *what)] = name
    lines, failed = smoke_test(tmp_path, sorted(chosen.values()))
    assert failed == 0, "\n".join(lines)
    assert "paper_twentyq_nlac" in lines[-2]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("paper_")])
def test_paper_presets_run_on_a_small_model(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from agentrl_cli.cli.train import start

    folder = write_model(tmp_path)
    there = [f"model.path={folder}", "hardware=cpu", "rollout.max_new_tokens=8"]
    small = ["rollout.max_seq_len=512", "model.lora.rank=2"]
    has_roles = "min_parse_rate" in compose(preset_overrides(name)).algo
    untaught = ["algo.min_parse_rate=0"] if has_roles else []  # random weights write none
    start([*preset_overrides(name), *there, *small, *untaught], dry=True)
    assert "predicted peak memory" in capsys.readouterr().out
