"""Presets and what is said of their numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl_cli.cli import reproduce as module
from agentrl_cli.cli.reproduce import (
    Reproduction,
    Result,
    final_result,
    read_stored,
    reproduce,
    smoke_test,
    toy_overrides,
)
from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.config.presets import PRESETS, preset_overrides
from agentrl_cli.core.errors import UserError
from agentrl_cli.runs.run import Run
from bench.results import ABLATIONS, CONTROLS, TASKS, Plan, ablations, missing, plans, preset
from tests.builders.models import write_model
from tests.builders.report import write_run
from tests.builders.runs import Agentrl
from tests.paths import CONF

RESULTS = CONF.parent / "docs" / "results"
STORED = Result("test", 0.4, 0.35, 0.45)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_builds_its_algorithm(name: str):
    cfg = check(compose(preset_overrides(name)))
    assert type(build(cfg.algo)).__name__ == cfg.algo._target_.rpartition(".")[2]


@pytest.mark.slow
def test_the_ablations_are_what_their_names_say():
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
    for name in ABLATIONS["arithmetic"]:
        changed = {key for key in plain if plain[key] != algo(name).get(key)}
        without_critic = {"_target_", "policy_target", "separate_critic"}
        assert changed <= without_critic if name == "self_distillation" else len(changed) <= 1


def test_presets_of_the_paper_train_a_large_model_through_lora():
    names = [name for name in PRESETS if name.startswith("paper_")]
    assert len(names) >= 10
    for name in names:
        cfg = check(compose(preset_overrides(name)))
        size, rank = ("1.5B", 32) if name.endswith("_24gb") else ("7B", 64)
        assert (cfg.model.path, cfg.model.lora.rank) == (f"Qwen/Qwen2.5-{size}-Instruct", rank)


def test_what_is_stored_of_a_run_is_what_its_record_says():
    """Records of models that are no longer embedded have nothing stored to be held against."""
    names = (*TASKS, *(f"{env}_ablations" for env in ABLATIONS))
    files = [file for name in names if (file := RESULTS / f"{name}.json").exists()]
    records = [row for file in files for row in json.loads(file.read_text())]
    told = {(preset(row), str(row["seed"])): row for row in records if row["split"] == "test"}
    for name, runs in read_stored().items():
        for seed, kept in runs.items():
            row = told[name, seed]
            assert Result(**kept) == Result("test", row["final"], row["low"], row["high"])


@pytest.mark.slow
def test_every_run_that_make_results_compares_is_a_preset_from_the_start_it_names():
    compared = [one for env in TASKS for one in plans(env, [5], controls=True)]
    ablated = [one for env in ABLATIONS for one in ablations(env, [5])]
    for plan in (*compared, *ablated):
        cfg = compose([*preset_overrides(plan.preset), "seed=5", "runs=x"])
        assert (cfg.choices.algo, cfg.choices.env) == (plan.algo, plan.env)
        assert cfg.init == (f"x/{plan.start.preset}_s5" if plan.start else None)


def test_what_is_missing_has_no_record_of_its_own_length_and_its_start_comes_first():
    nlac, later = Plan("arithmetic", "nlac", "", 0), Plan("arithmetic", "dpo", "", 1)
    stored = [{"algo": "nlac", "variant": "", "seed": 0, "steps": 12}]
    assert missing([nlac, later], stored) == [later.start, later]
    assert missing([nlac], [stored[0] | {"steps": 24}]) == [nlac]


def test_every_stored_number_belongs_to_a_preset():
    for name, seeds in read_stored().items():
        assert name in PRESETS and seeds
        for kept in map(lambda row: Result(**row), seeds.values()):
            assert kept.low <= kept.final <= kept.high


# what is said


def test_a_result_inside_the_stored_interval_agrees():
    inside = Reproduction("p", 0, Result("test", 0.36, 0.3, 0.4), STORED)
    outside = Reproduction("p", 0, Result("test", 0.46, 0.3, 0.5), STORED)
    assert (inside.agrees, outside.agrees) == (True, False)
    assert "36.0 % [30.0, 40.0] on test agrees with the stored 40.0 % [35.0" in inside.line()
    assert "DISAGREES" in outside.line()


def test_without_a_stored_number_nothing_is_claimed():
    alone = Reproduction("p", 0, STORED, None)
    assert alone.agrees is None and "nothing is stored" in alone.line()
    other = Reproduction("p", 0, Result("train", 0.4, 0.3, 0.5), STORED)
    assert other.agrees is None and "another split" in other.line()


def test_a_finished_run_is_compared_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "STORED", tmp_path / "stored.json")
    write_run(tmp_path / "twentyq_rft_s3", algo="rft", seed=3)
    found = final_result(Run(tmp_path / "twentyq_rft_s3"))
    assert found.split == "test" and found.final == 5 / 8
    (first,) = reproduce("twentyq_rft", [3], tmp_path, store=True)
    assert first.stored is None
    assert json.loads((tmp_path / "stored.json").read_text())["twentyq_rft"]["3"]["final"] == 5 / 8
    (again,) = reproduce("twentyq_rft", [], tmp_path, store=False)
    assert again.seed == 3 and again.agrees


def test_what_a_preset_starts_from_is_run_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trained: list[str] = []

    def train(arguments: list[str], log: Path) -> int:
        trained.append(log.stem)
        write_run(tmp_path / log.stem, algo="sft", seed=4)
        return 0

    monkeypatch.setattr(module, "run_agentrl", train)
    reproduce("math_stepagent_inverse", [4], tmp_path, store=False)
    assert trained == ["arithmetic_sft_s4", "arithmetic_stepagent_inverse_s4"]
    started = compose([*preset_overrides("math_stepagent_inverse"), "seed=4", "runs=x"])
    assert started.init == "x/arithmetic_sft_s4"
    reproduce("math_stepagent_implicit", [4], tmp_path, store=False)
    assert trained[2:] == ["arithmetic_stepagent_implicit_s4"]


def test_mistakes_are_one_sentence(tmp_path: Path, agentrl: Agentrl):
    with pytest.raises(UserError, match="twentyq_rft"):
        reproduce("twentyq_rtf", [], tmp_path, store=False)
    write_run(tmp_path / "twentyq_rft_s0", algo="rft", status="failed")
    with pytest.raises(UserError, match="is there and not done"):
        reproduce("twentyq_rft", [0], tmp_path, store=False)
    done = agentrl("reproduce", "all")
    assert done.returncode == 2 and "reproduce all --smoke" in done.stderr


def test_toy_sizes_are_set_where_a_preset_has_the_key():
    overrides = toy_overrides(compose(["recipe=twentyq", "algo=archer"]))
    assert {"steps=1", "algo.critic_warmup=0"} <= set(overrides)
    assert not any(
        override.startswith(("algo.turns_per_update", "rollout.texts")) for override in overrides
    )
    assert "init=null" in toy_overrides(compose(["recipe=arithmetic", "algo=stepagent_inverse"]))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_path_runs_at_toy_size(tmp_path: Path):
    """Of a control that every world has, one preset: they differ in the environment alone."""
    again = {f"{world}_{control}" for world in ("math", "tau_mini", "wiki") for control in CONTROLS}
    lines, failed = smoke_test(tmp_path, sorted({*PRESETS} - again))
    assert failed == 0, "\n".join(lines)
    assert "of their numbers this says nothing" in lines[-1] and "paper_twentyq_nlac" in lines[-2]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("paper_")])
def test_presets_of_the_paper_rehearse_on_a_small_model(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from agentrl_cli.cli.train import start

    folder = write_model(tmp_path)
    there = [f"model.path={folder}", "hardware=cpu", "rollout.max_new_tokens=8"]
    small = ["rollout.max_seq_len=1024", "model.lora.rank=2"]
    has_roles = "min_parse_rate" in compose(preset_overrides(name)).algo
    untaught = ["algo.min_parse_rate=0"] if has_roles else []  # random weights write none
    start([*preset_overrides(name), *there, *small, *untaught], dry=True)
    assert "predicted peak memory" in capsys.readouterr().out
