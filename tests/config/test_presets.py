"""Old names of presets stand for a recipe, an algorithm and an ablation."""

from __future__ import annotations

import pytest

from agentrl_cli.config.compose import check, compose, options
from agentrl_cli.config.renames import PRESETS, preset_overrides, replace_old_names
from agentrl_cli.core.errors import UserError


def test_preset_table_covers_the_old_names():
    assert len(PRESETS) > 105
    assert preset_overrides("twentyq_k1") == ["recipe=twentyq", "algo=nlac", "ablation=k1"]
    assert preset_overrides("wiki_grpo") == ["recipe=wiki", "algo=grpo"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("experiment=math_k8 seed=1", "recipe=arithmetic algo=nlac ablation=k8 seed=1"),
        ("experiment=math_grpo algo=ppo", "recipe=arithmetic algo=ppo"),
        ("rollout=solve", "rollout.max_new_tokens=96"),
        ("env=math steps=2", "env=math steps=2"),
        ("experiment=my_own", "experiment=my_own"),
    ],
)
def test_old_names_become_new_overrides(old: str, new: str):
    assert replace_old_names(old.split()) == new.split()


def test_the_new_form_is_printed_once(capsys: pytest.CaptureFixture[str]):
    for _ in range(2):
        replace_old_names(["experiment=wiki_ppo"])
    assert capsys.readouterr().err.splitlines() == [
        "experiment=wiki_ppo is now recipe=wiki algo=ppo"
    ]


def test_sweep_over_presets_is_refused():
    with pytest.raises(UserError) as error:
        replace_old_names(["experiment=math_grpo,twentyq_k1"])
    assert error.value.code == "several-presets"


@pytest.mark.parametrize(("algo", "kl_coef"), [("ppo", 0.05), ("rft", None)])
def test_ablation_for_several_algorithms(algo: str, kl_coef: float | None):
    chosen = ["recipe=twentyq", f"algo={algo}", "ablation=from_sft"]
    cfg = check(compose([*chosen, "seed=4", "runs=x"]))
    assert (cfg.init, cfg.steps, cfg.algo.optimizer.lr) == ("x/twentyq_sft_s4", 8, 1e-5)
    assert cfg.algo.get("kl_coef") == kl_coef


@pytest.mark.parametrize("recipe", options("recipe"))
def test_recipe_composes_with_every_algorithm(recipe: str):
    for algo in options("algo"):
        chosen = compose([f"recipe={recipe}", f"algo={algo}", "data.demos=expert:4", "init=x"])
        assert check(chosen).choices.algo == algo


def test_small_gpu_recipe_keeps_the_parts_of_its_base():
    cfg = check(compose(["recipe=paper_twentyq_24gb", "algo=nlac"]))
    assert (cfg.algo.turns_per_update, cfg.choices.hardware) == (256, "gpu_24gb")


def test_paper_recipe_keeps_the_settings_of_archer():
    plain, paper = (
        check(compose([*chosen, "algo=archer"])).algo for chosen in ([], ["recipe=paper_twentyq"])
    )
    assert plain == paper


@pytest.mark.parametrize("option", ["rollout=solve", "rollout=serve", "rollout=browse"])
def test_old_rollouts_compose(option: str):
    assert check(compose(["algo=grpo", option])).choices.rollout == "play"
