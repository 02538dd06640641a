"""Every mistake a person can make is one clear sentence, exit code 2, and nothing half-written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.builders.command_line import refused, train
from tests.builders.runs import DEMOS, SMALL

LONG = "x" * 300  # no file may have such a name
NAMES = {
    "algo=grpoo": "algo 'grpoo' not found; did you mean 'grpo'?",
    "env=twentyqq": "env 'twentyqq' not found; did you mean 'twentyq'?",
    "modle=tiny": "Unknown key 'modle'",
    "algo.clp=0.1": "Unknown key 'algo.clp'",
    "steps=many": "steps must be ... 'many'",
    "algo.clip_eps=wide": "algo.clip_eps must be ... 'wide'",
    "algo.normalise_advantages=perhaps": "algo.normalise_advantages ... 'perhaps'",
    "eval.splits=test": "eval.splits must be ... 'test'",
    "eval.splits=[tset]": "unknown split 'tset': use 'train', 'val' or 'test'",
    "eval.splits=[]": "eval.splits",
    "model.weights=twentyqq": "embedded weights 'twentyqq' do not exist; choose null or",
    "model.dtype=float16": "model.dtype 'float16' is unknown; choose auto, float32 or bfloat16",
    "model.attention=loud": "model.attention 'loud'",
    "hardware.device=meta": "hardware.device 'meta' is unknown; use cpu or cuda",
    "hardware.device=mps": "hardware.device 'mps' is unknown; use cpu or cuda",
    "hardware.device=tpu": "hardware.device 'tpu' is unknown; use cpu or cuda",
    "init=nothing": "run 'nothing' not found",
    "env.reward=gold": "reward is 'gold': use 'win' or 'graded' or 'lmrl'",
    "env.final_hint=kind": "final_hint ... 'kind'",
    "loud": "override 'loud' cannot be read; write it as key=value",
    "steps=1,2": "override 'steps=1,2' names several values; give one, or a list",
    "name=a/b": "name 'a/b' is not a folder name; use letters",
    f"init={LONG}": f"run '{LONG}' not found",
    f"model.path=./{LONG}": f"model folder './{LONG}' does not exist; give a folder",
    f"model.weights={LONG}": f"embedded weights '{LONG}' do not exist; choose null or",
    "algo._target_=.algos.GRPO": "algo._target_ '.algos.GRPO' cannot be imported (the 'package'",
    f"seed={'9' * 5000}": "override 'seed=9999",
    f"seed={'{a: ' * 300}1{'}' * 300}": "override 'seed={a: {a: ",
}


@pytest.mark.parametrize("override", NAMES)
def test_a_wrong_name_or_value_is_one_sentence(tmp_path: Path, override: str):
    usual = ["eval.splits=[test]"] if "splits" in override else []
    refused(train(tmp_path, "env=twentyq", *usual, override), NAMES[override])
    assert not (tmp_path / "runs" / "it").exists()


@pytest.mark.parametrize("option", ["gpu", "ray"])
def test_a_missing_gpu_is_told_by_the_key_that_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    line = "hardware.device 'cuda' needs a CUDA device and none was found; give hardware=cpu, or"
    refused(train(tmp_path, f"hardware={option}"), line)


def test_all_mistakes_of_a_configuration_are_told_at_once(tmp_path: Path):
    result = train(tmp_path, "steps=many", "algo.clp=0.1", "env=twentyqq", "sede=1")
    refused(
        result,
        "steps must be ... 'many'",
        "Unknown key 'algo.clp'",
        "env 'twentyqq' not found; did you mean 'twentyq'?",
        "Unknown key 'sede'",
    )
    assert not (tmp_path / "runs").exists()


LORA = "{rank:4,alpha:8,targets:[all-linear]}"
SIZES = {
    "rollout.max_new_tokens=500 rollout.max_seq_len=400": "max_tokens 500 leaves no room in",
    "rollout.max_seq_len=100000": "rollout.max_seq_len is 100000 ... rollout.max_seq_len=4096",
    "rollout.episodes_per_step=3": "rollout.episodes_per_step 3 holds no group of 4; give at least",
    "algo.group_size=1": "group_size ... 1",
    "algo.epochs=0": "epochs ... 0",
    "algo.optimizer.lr=-1": "lr ... -1",
    "algo.optimizer.lr=1e99": "lr ... 1e+99",
    "lr=1e99": "Unknown key 'lr'",
    "algo.lr=1": "Unknown key 'algo.lr'",
    "rollout.episodes_per_step=1000000000": "rollout.episodes_per_step ... 1000000000",
    "eval.episodes_per_task=1000000000": "episodes_per_task ... 1000000000",
    "~env": "env is missing; choose one with env=NAME (agentrl list env)",
    "+hydra.x=1": "'+hydra.x=1' is for Hydra, which only agentrl sweep asks; leave it out",
    "hydra/launcher=joblib": "'hydra/launcher=joblib' is for Hydra, which only agentrl sweep asks",
    "choices=3": "'choices=3' sets what is only a record of the chosen groups; choose with",
    "choices.algo=ppo": "'choices.algo=ppo' sets what is only a record of the chosen groups;",
    "env=twentyq env.world=huge": "unknown world 'huge': use 'small', 'full' or the path of a",
    "steps=0": "steps ... 0",
    "steps=-1": "steps ... -1",
    "save_every=-1": "save_every ... -1",
    "save_interval_minutes=-1": "save_interval_minutes ... -1",
    "logger=null": "'logger=null' chooses nothing; choose one with logger=NAME (agentrl list",
    "search=null": "'search=null' chooses nothing; choose one with search=NAME (agentrl list",
    "~logger": "logger is missing; choose one with logger=NAME (agentrl list logger)",
    "algo.optimizer.lr._target_=agentrl_cli.envs.TwentyQ": "algo.optimizer.lr must be",
    "algo.optimizer._target_=agentrl_cli.runs.JsonlLogger": "algo.optimizer._target_ must be",
    "rollout.temperature=-1": "temperature ... -1",
    "rollout.temperature=0.7": "rollout.temperature is 0.7, and algo 'grpo' corrects for",
    "eval.episodes_per_task=0": "episodes_per_task ... 0",
    "eval.tasks=0": "tasks ... 0",
    "hardware.threads=0": "hardware.threads ... 0",
    "hardware.threads=-1": "hardware.threads ... -1",
    "hardware.threads=2147483648": "hardware.threads ... 2147483648",
    f"model.lora={LORA.replace('4', '0')}": "rank ... 0",
    f"model.lora={LORA.replace('4', '999999999')}": "model.lora.rank is 999999999; give at mo",
    "hardware.microbatch_tokens=0": "microbatch_tokens ... 0",
    "rollout.env_workers=0": "workers ... 0",
    "rollout.max_concurrent_episodes=0": "max_concurrent_episodes ... 0",
    "hardware.generator.cache_mib=0": "cache_mib ... 0",
    "hardware.generator.cache_mib=0.5": "512 tokens ... cache_mib",
    "hardware.generator.max_batch=0": "max_batch ... 0",
    "env=twentyq env.test_objects=96": "test_objects is 96: world small allows 0 to 95",
    "env=twentyq env.test_objects=0": "eval.splits names 'test', which has no tasks; name another",
    "env=twentyq env.max_turns=0": "turns is 0: allow at least 1",
}


@pytest.mark.parametrize("overrides", SIZES)
def test_a_size_that_cannot_be_is_refused_and_no_folder_is_left(tmp_path: Path, overrides: str):
    refused(train(tmp_path, *overrides.split()), SIZES[overrides])
    assert not (tmp_path / "runs" / "it").exists()


CRITICS = {
    "algo=ppo algo.level=word": "algo.level must be",
    "algo=ppo algo.gae_lambda=1.5": "gae_lambda ... 1.5",
    "algo=archer algo.action=best": "algo.action must be",
    "algo=archer algo.critic_updates=0": "critic_updates ... 0",
}


@pytest.mark.parametrize("overrides", CRITICS)
def test_a_scalar_critic_that_cannot_be_is_refused(tmp_path: Path, overrides: str):
    name, override = overrides.removeprefix("algo=").split()
    refused(train(tmp_path, override, algo=name), CRITICS[overrides])
    assert not (tmp_path / "runs" / "it").exists()


GUARD = "'algo.improvement_check={every: 2, num_targets: 8, num_rollouts: 2, window: 2}'"
NLAC = {
    "algo.num_forecasts=0": "num_forecasts ... 0",
    "algo.num_refinements=0": "num_refinements ... 0",
    "algo.advanced.buffer_size=0": "buffer_size ... 0",
    "algo.turns_per_update=0": "turns_per_update ... 0",
    "algo.advanced.ema_decay=1.5": "ema_decay ... 1.5",
    "algo.kl_coef=-0.1": "kl_coef ... -0.1",
    "algo.diagnostics.num_rollouts=0": "num_rollouts ... 0",
    "algo.diagnostics.num_forecasts=0": "num_forecasts ... 0",
    "algo.advanced.ablation=all": "algo.advanced.ablation must be",
    GUARD: "algo.improvement_check needs algo.separate_critic=true",
    f"{GUARD.replace('8', '7')} algo.separate_critic=true": "num_targets ... 7",
    "algo.policy_target=best_of_n": "algo.require_optimal ... algo.policy_target=best_of_n",
    "algo.policy_target=advantage_weighted": "algo.require_optimal ... algo.policy_target=advantage_weighted",
    "algo.policy_target=best_of_n algo.require_optimal=false algo.num_candidates=1": "candidates ... 1",
    "algo.num_candidates=1": "candidates ... 1",
    "algo.selection_temperature=0": "selection_temperature ... 0",
    "algo.policy_target=best": "algo.policy_target must be",
    "algo.advanced.ablation=majority": "algo.advanced.ablation=majority ... algo.policy_target",
    "rollout.max_seq_len=4090": "rollout.max_seq_len is 4090",
    "algo.advanced.role_tokens=900": "rollout.max_seq_len is 512",
    "algo.prompts.refine=\"'{critic}'\"": "prompts.refine ... 'critic'",
}


@pytest.mark.parametrize("overrides", NLAC)
def test_a_critic_that_cannot_be_is_refused(tmp_path: Path, overrides: str):
    refused(train(tmp_path, *shlex.split(overrides), algo="nlac"), NLAC[overrides])
    assert not (tmp_path / "runs" / "it").exists()


DEMONSTRATED = {
    "stepagent_implicit data.demos=null": "algo 'stepagent_implicit' learns from demonstrations;",
    "dpo data.demos=null": "algo 'dpo' learns from demonstrations; give data.demos=expert:128, or",
    "grpo data.demos=x.jsonl": "algo 'grpo' reads no demonstrations; leave data.demos out, or",
    "rft data.demos=x.jsonl": "algo 'rft' reads no demonstrations; leave data.demos out, or start",
    "sft data.demos=/dev/zero": "demonstrations '/dev/zero' are no file; check data.demos",
    f"sft data.demos={LONG}": f"demonstrations '{LONG}' cannot be read (File name too long)",
    "sft data.demos=none.jsonl": "demonstrations 'none.jsonl' cannot be read (No such file",
    "dpo env=twentyq": "{demos} line 1: its task 'train-0' is of another environment; mend it, or",
    "stepagent_implicit algo.attempt=all": "algo.attempt must be ... 'all'",
    "stepagent_inverse algo.reward=high": "algo.reward must be",
    "stepagent_inverse algo.ppo.entropy_coef=-1": "entropy_coef ... -1",
    "stepagent_inverse algo.ppo.clipp=1": "Unknown key 'algo.ppo.clipp'",
}


@pytest.mark.parametrize("overrides", DEMONSTRATED)
def test_demonstrations_that_are_missing_or_out_of_place_are_told(tmp_path: Path, overrides: str):
    algo, *more = overrides.split()
    sentence = DEMONSTRATED[overrides].format(demos=DEMOS.removeprefix("data.demos="))
    result = train(tmp_path, *more, algo=algo)
    first = result.stderr.strip().splitlines()[:1]
    assert result.exit_code == 2 and "Traceback" not in result.stderr
    assert first and all(part in first[0] for part in sentence.split(" ... ")), first
    assert not (tmp_path / "runs" / "it").exists()


def test_a_prompt_that_no_context_holds_is_told_and_not_trained_on(tmp_path: Path):
    result = train(tmp_path, "rollout.max_new_tokens=6", "rollout.max_seq_len=8")
    assert result.exit_code == 2 and "Traceback" not in result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("rollout.max_seq_len 8 holds not even")


# models


def test_a_missing_model_folder_is_named(tmp_path: Path):
    result = train(tmp_path, f"model.path={tmp_path}/none")
    refused(result, f"model folder '{tmp_path}/none' does not exist; give a folder")
    assert not (tmp_path / "runs" / "it").exists()


def test_a_folder_that_holds_no_model_is_named(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    result = train(tmp_path, f"model.path={tmp_path}/empty")
    refused(result, f"cannot read a model from '{tmp_path}/empty'")


def test_the_small_settings_are_good_input(tmp_path: Path):
    assert train(tmp_path, "steps=1").exit_code == 0 and SMALL
