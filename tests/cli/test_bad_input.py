"""Every mistake in a configuration is one sentence with its value, exit code 2, and no files."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.builders.command_line import refused, train
from tests.builders.runs import DEMOS, SMALL

LONG = "x" * 300  # longer than a file name may be
LORA = "model.lora={{rank:{},alpha:8,targets:[all-linear]}}"
GUARD = "'algo.improvement_check={{every: 2, lessons: {}, probes: 2, memory: 2}}'"
# overrides, and the value or key that the error must name
NAMES = [
    ("algo=grpoo", "'grpo'"), ("env=twentyqq", "'twentyq'"), ("modle=tiny", "'model'"),
    ("algo.clp=0.1", "'clip'"), ("steps=many", "many"), ("algo.clip_eps=wide", "wide"),
    ("algo.normalise_advantages=perhaps", "perhaps"), ("eval.splits=test", "eval.splits"),
    ("eval.splits=[tset]", "tset"), ("eval.splits=[]", "eval.splits"),
    ("model.weights=twentyqq", "twentyqq"), ("model.dtype=float16", "float16"),
    ("model.attention=loud", "loud"), ("hardware.device=meta", "meta"),
    ("hardware.device=mps", "mps"), ("hardware.device=tpu", "tpu"), ("init=nothing", "nothing"),
    ("env.reward=gold", "gold"), ("env.final_hint=kind", "kind"), ("loud", "loud"),
    ("steps=1,2", "steps=1,2"), ("name=a/b", "a/b"), (f"init={LONG}", LONG),
    (f"model.path=./{LONG}", LONG), (f"model.weights={LONG}", LONG),
    ("algo._target_=.algos.GRPO", ".algos.GRPO"), (f"seed={'9' * 5000}", "seed=999"),
    (f"seed={'{a: ' * 300}1{'}' * 300}", "seed={a: "), ("~env", "env=NAME"),
    ("+hydra.x=1", "+hydra.x=1"), ("hydra/launcher=joblib", "hydra/launcher=joblib"),
    ("choices=3", "choices=3"), ("choices.algo=ppo", "choices.algo=ppo"),
    ("env.world=huge", "huge"), ("logger=null", "logger=null"), ("search=null", "search=null"),
    ("~logger", "logger=NAME"),
    ("algo.optimizer.lr._target_=agentrl_cli.envs.TwentyQ", "algo.optimizer.lr"),
    ("algo.optimizer._target_=agentrl_cli.runs.JsonlLogger", "algo.optimizer._target_"),
    ("lr=1e99", "algo.optimizer.lr"), ("algo.lr=1", "algo.optimizer.lr"),
]  # fmt: skip
SIZES = [
    ("rollout.max_new_tokens=500 rollout.max_seq_len=400", "500"),
    ("rollout.max_seq_len=100000", "4096"),
    ("rollout.episodes_per_step=3", "3"),
    ("algo.group_size=1", "1"),
    ("algo.epochs=0", "epochs"),
    ("algo.optimizer.lr=-1", "-1.0"),
    ("algo.optimizer.lr=1e99", "1e+99"),
    ("rollout.episodes_per_step=1000000000", "1000000000"),
    ("eval.episodes_per_task=1000000000", "1000000000"),
    ("steps=0", "steps"),
    ("steps=-1", "-1"),
    ("save_every=-1", "-1"),
    ("save_interval_minutes=-1", "-1.0"),
    ("rollout.temperature=-1", "-1.0"),
    ("rollout.temperature=0.7", "0.7"),
    ("eval.episodes_per_task=0", "episodes_per_task"),
    ("eval.tasks=0", "tasks"),
    ("hardware.threads=0", "threads"),
    ("hardware.threads=-1", "-1"),
    ("hardware.threads=2147483648", "2147483648"),
    (LORA.format(0), "rank"),
    (LORA.format(999999999), "999999999"),
    ("hardware.microbatch_tokens=0", "microbatch_tokens"),
    ("rollout.env_workers=0", "workers"),
    ("rollout.max_concurrent_episodes=0", "max_concurrent_episodes"),
    ("hardware.generator.cache_mib=0", "cache_mib"),
    ("hardware.generator.cache_mib=0.5", "512"),
    ("hardware.generator.max_batch=0", "max_batch"),
    ("env=twentyq env.test_objects=96", "96"),
    ("env=twentyq env.test_objects=0", "'test'"),
    ("env=twentyq env.max_turns=0", "turns"),
]
CRITICS = [
    ("ppo algo.level=word", "algo.level"),
    ("ppo algo.gae_lambda=1.5", "1.5"),
    ("archer algo.action=best", "algo.action"),
    ("archer algo.critic_updates=0", "critic_updates"),
    ("nlac algo.num_forecasts=0", "forecasts"),
    ("nlac algo.num_refinements=0", "rounds"),
    ("nlac algo.advanced.buffer_size=0", "buffer_size"),
    ("nlac algo.turns_per_update=0", "turns_per_update"),
    ("nlac algo.advanced.ema_decay=1.5", "1.5"),
    ("nlac algo.kl_coef=-0.1", "-0.1"),
    ("nlac algo.diagnostics.num_rollouts=0", "probes"),
    ("nlac algo.diagnostics.num_forecasts=0", "monitored_forecasts"),
    ("nlac algo.advanced.ablation=all", "algo.advanced.ablation"),
    (f"nlac {GUARD.format(8)}", "algo.separate_critic=true"),
    (f"nlac {GUARD.format(7)} algo.separate_critic=true", "7"),
    ("nlac algo.policy_target=best_of_n", "algo.require_optimal"),
    ("nlac algo.policy_target=advantage_weighted", "algo.require_optimal"),
    (
        "nlac algo.policy_target=best_of_n algo.require_optimal=false algo.num_candidates=1",
        "candidates",
    ),
    ("nlac algo.num_candidates=1", "candidates"),
    ("nlac algo.selection_temperature=0", "0.0"),
    ("nlac algo.policy_target=best", "algo.policy_target"),
    ("nlac algo.advanced.ablation=majority", "majority"),
    ("nlac rollout.max_seq_len=4090", "4090"),
    ("nlac algo.advanced.role_tokens=900", "512"),
    ("nlac algo.prompts.refine=\"'{critic}'\"", "critic"),
]
DEMONSTRATED = [
    ("stepagent_implicit data.demos=null", "data.demos"),
    ("dpo data.demos=null", "data.demos"),
    ("grpo data.demos=x.jsonl", "data.demos"),
    ("rft data.demos=x.jsonl", "data.demos"),
    ("sft data.demos=/dev/zero", "/dev/zero"),
    (f"sft data.demos={LONG}", LONG),
    ("sft data.demos=none.jsonl", "none.jsonl"),
    ("dpo env=twentyq", DEMOS.removeprefix("data.demos=")),
    ("stepagent_implicit algo.attempt=all", "all"),
    ("stepagent_inverse algo.reward=high", "high"),
    ("stepagent_inverse algo.ppo.entropy_coef=-1", "-1.0"),
    ("stepagent_inverse algo.ppo.clipp=1", "clipp"),
]


@pytest.mark.parametrize(
    ("overrides", "value"),
    [
        *((f"grpo env=twentyq {overrides}", value) for overrides, value in NAMES),
        *((f"grpo {overrides}", value) for overrides, value in SIZES), *CRITICS, *DEMONSTRATED,
    ],
    ids=lambda value: value[:50],
)  # fmt: skip
def test_invalid_setting_is_refused(tmp_path: Path, overrides: str, value: str):
    algo, *words = shlex.split(overrides) if "{a:" not in overrides else overrides.split(" ", 2)
    usual = ["eval.splits=[test]"] if "splits" in overrides else []
    result = train(tmp_path, *usual, *words, algo=algo)
    if "demos" in overrides + value:  # a second line may name other mistakes of the run
        assert result.exit_code == 2 and value in result.stderr.splitlines()[0]
    else:
        refused(result, value)
    assert not (tmp_path / "runs" / "it").exists()


@pytest.mark.parametrize("option", ["gpu", "ray"])
def test_missing_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    refused(train(tmp_path, f"hardware={option}"), "hardware.device 'cuda'")


def test_all_mistakes_are_reported_at_once(tmp_path: Path):
    result = train(tmp_path, "steps=many", "algo.clp=0.1", "env=twentyqq", "sede=1")
    refused(result, "many", "'clip'", "'twentyq'", "'seed'")
    assert not (tmp_path / "runs").exists()


def test_too_short_context_is_refused(tmp_path: Path):
    result = train(tmp_path, "rollout.max_new_tokens=6", "rollout.max_seq_len=8")
    assert result.exit_code == 2 and "Traceback" not in result.stderr
    assert "rollout.max_seq_len 8" in result.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("folder", ["none", "empty"])
def test_folder_without_model_is_refused(tmp_path: Path, folder: str):
    (tmp_path / "empty").mkdir()
    refused(train(tmp_path, f"model.path={tmp_path / folder}"), f"'{tmp_path / folder}'")
    assert not (tmp_path / "runs" / "it").exists()


def test_small_settings_are_valid(tmp_path: Path):
    assert train(tmp_path, "steps=1").exit_code == 0 and SMALL
