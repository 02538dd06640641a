"""Mistakes of a user are refused with a code and the value, and leave no folder of a run."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from agentrl_cli.cli.train import start
from agentrl_cli.core.errors import UserError
from tests.builders.command_line import refused, train
from tests.builders.runs import folders, settings

LONG = "x" * 300  # no file may have such a name
GUARD = "'algo.improvement_check={every: 2, num_targets: %d, num_rollouts: 2, window: 2}'"
NAMES = {
    "env=twentyqq": "unknown-option",
    "modle=tiny": "unknown-key",
    "algo.clp=0.1": "unknown-key",
    "steps=many": "invalid-value",
    "eval.splits=test": "invalid-value",
    "eval.splits=[tset]": "unknown-split",
    "model.weights=twentyqq": "unknown-option",
    "model.dtype=float16": "unknown-option",
    "model.attention=loud": "bad-attention",
    "hardware.device=meta": "unknown-device",
    "init=nothing": "unknown-run",
    "env.reward=gold": "unknown-option",
    "loud": "invalid-override",
    "lernräte=1": "invalid-override",
    "=1": "invalid-override",
    "/seed=1": "invalid-override",
    "steps=1,2": "use-sweep",
    "name=a/b": "invalid-name",
    f"runs={__file__}": "not-a-folder",
    f"runs={__file__}/below": "not-a-folder",
    f"init={LONG}": "unknown-run",
    f"model.path=./{LONG}": "missing-file",
    f"model.weights={LONG}": "unknown-option",
    "algo._target_=.algos.GRPO": "unknown-target",
    f"seed={'9' * 5000}": "invalid-override",
    f"seed={'{a: ' * 300}1{'}' * 300}": "invalid-override",
}
# Algorithm and overrides, with the code of the error.
SETTINGS = {
    "ppo algo.level=word": "unknown-option",
    "ppo algo.gae_lambda=1.5": "invalid-value",
    "nlac algo.num_forecasts=0": "invalid-value",
    "nlac algo.advanced.ema_decay=1.5": "invalid-value",
    f"nlac {GUARD % 8}": "conflicting-settings",
    f"nlac {GUARD % 7} algo.separate_critic=true": "invalid-value",
    "nlac algo.policy_target=best_of_n": "conflicting-settings",
    "nlac algo.policy_target=advantage_weighted": "conflicting-settings",
    "nlac algo.num_candidates=1": "too-small",
    "nlac algo.advanced.ablation=majority": "conflicting-settings",
    "nlac rollout.max_seq_len=4090": "context-too-long",
    "nlac algo.advanced.role_tokens=900": "context-too-long",
    "nlac algo.prompts.refine=\"'{critic}'\"": "unknown-placeholder",
    "stepagent_implicit data.demos=null": "needs-demos",
    "dpo data.demos=null": "needs-demos",
    "grpo data.demos=x.jsonl": "unused-demos",
    "sft data.demos=/dev/zero": "unreadable-demos",
    f"sft data.demos={LONG}": "unreadable-demos",
    "sft data.demos=none.jsonl": "unreadable-demos",
    "dpo env=twentyq": "invalid-demos",
    "stepagent_inverse algo.ppo.clipp=1": "unknown-key",
    "grpo rollout.max_new_tokens=500 rollout.max_seq_len=400": "no-room",
    "grpo rollout.max_seq_len=100000": "context-too-long",
    "grpo rollout.episodes_per_step=3": "group-too-large",
    "grpo algo.optimizer.lr=1e99": "invalid-value",
    "grpo lr=1e99": "unknown-key",
    "grpo algo.lr=1": "unknown-key",
    "grpo rollout.episodes_per_step=1000000000": "invalid-value",
    "grpo eval.episodes_per_task=1000000000": "invalid-value",
    "grpo ~env": "missing-key",
    "grpo +hydra.x=1": "invalid-override",
    "grpo hydra/launcher=joblib": "invalid-override",
    "grpo choices.algo=ppo": "invalid-override",
    "grpo env=twentyq env.world=huge": "unknown-world",
    "grpo steps=0": "invalid-value",
    "grpo logger=null": "unknown-option",
    "grpo search=null": "unknown-option",
    "grpo ~logger": "missing-key",
    "grpo algo.optimizer.lr._target_=agentrl_cli.envs.TwentyQ": "missing-key",
    "grpo algo.optimizer._target_=agentrl_cli.runs.JsonlLogger": "unknown-key",
    "grpo rollout.temperature=0.7": "temperature",
    "grpo eval.temperature=-1": "invalid-value",
    "grpo eval.temperature=nan": "invalid-value",
    "grpo hardware.threads=0": "too-small",
    "grpo hardware.threads=2147483648": "too-large",
    "grpo model.lora={rank:0,alpha:8,targets:[all-linear]}": "invalid-value",
    "grpo model.lora={rank:999999999,alpha:8,targets:[all-linear]}": "too-large",
    "grpo hardware.microbatch_tokens=0": "too-small",
    "grpo hardware.generator.cache_mib=0.5": "cache-too-small",
    "grpo env=twentyq env.test_objects=96": "out-of-range",
    "grpo env=twentyq env.test_objects=0": "empty-split",
}


def mistake(root: Path, *overrides: str, algo: str = "grpo") -> UserError:
    with pytest.raises(UserError) as caught:
        start(settings(root / "runs", algo, "it", *overrides), config_dirs=[folders(root)])
    assert not (root / "runs" / "it").exists()
    return caught.value


def names_the_value(error: UserError, override: str) -> bool:
    """Return whether a message names the value of an override, or its key for a node."""
    key, _, value = override.lstrip("+~").partition("=")
    words = [key.rpartition(".")[2], value.strip("[]'"), key]
    return any(word and word in str(error) for word in words)


@pytest.mark.parametrize("override", NAMES)
def test_wrong_name_or_value_is_refused(tmp_path: Path, override: str):
    usual = ["eval.splits=[test]"] if "splits" in override else []
    error = mistake(tmp_path, "env=twentyq", *usual, override)
    assert error.code == NAMES[override] and names_the_value(error, override)
    assert "\n" not in str(error)


@pytest.mark.parametrize("overrides", SETTINGS)
def test_impossible_setting_is_refused(tmp_path: Path, overrides: str):
    algo, *words = shlex.split(overrides)
    error = mistake(tmp_path, *words, algo=algo)
    assert error.code == SETTINGS[overrides]
    assert any(names_the_value(error, word) for word in words) or error.code in (
        "empty-split", "context-too-long",
    )  # fmt: skip


def test_missing_sft_of_a_recipe_is_named(tmp_path: Path):
    with pytest.raises(UserError) as caught:
        start(["recipe=twentyq", "algo=dpo", "seed=3", f"runs={tmp_path}"])
    command = f"recipe=twentyq algo=sft seed=3 name=twentyq_sft_s3 runs={tmp_path}"
    assert caught.value.code == "unknown-run" and command in str(caught.value)


@pytest.mark.parametrize("option", ["gpu", "ray"])
def test_missing_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "cuda" in str(mistake(tmp_path, f"hardware={option}"))


def test_all_mistakes_are_reported_together(tmp_path: Path):
    result = train(tmp_path, "steps=many", "algo.clp=0.1", "env=twentyqq", "sede=1")
    refused(result, "steps ... 'many'", "'algo.clp'", "'twentyqq'", "'sede'")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("exists", [True, False])
def test_folder_without_model_is_refused(tmp_path: Path, exists: bool):
    if exists:
        (tmp_path / "model").mkdir()
    refused(train(tmp_path, f"model.path={tmp_path}/model"), f"'{tmp_path}/model'")


def test_small_settings_are_accepted(tmp_path: Path):
    assert train(tmp_path, "steps=1").exit_code == 0
