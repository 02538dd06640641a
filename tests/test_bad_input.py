"""Every mistake a person can make is one clear sentence, exit code 2, and nothing half-written."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner, Result

from agentrl_cli import config
from agentrl_cli.cli import app
from agentrl_cli.run import Run
from tests.sample_runs import DEMOS, SMALL, folders, settings, trained

HERE = Path(__file__).parent


def agentrl(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def refused(result: Result, *sentences: str) -> None:
    """Exit 2, and exactly these sentences on stderr, each by how it begins."""
    lines = result.stderr.strip().splitlines()
    assert result.exit_code == 2, result.output
    assert len(lines) == len(sentences), lines
    for line, sentence in zip(sorted(lines), sorted(sentences), strict=True):
        assert line.startswith(sentence), line
        assert re.search(r"[;:] | must be ", line), f"no remedy: {line}"
    assert "Traceback" not in result.stderr and result.stdout == ""


def train(root: Path, *overrides: str, algo: str = "grpo") -> Result:
    groups = ["--config-dir", str(folders(root))]
    return agentrl("train", *settings(root / "runs", algo, "it", *overrides), *groups)


NAMES = {
    "algo=grpoo": "algo 'grpoo' not found; did you mean 'grpo'?",
    "env=twentyqq": "env 'twentyqq' not found; did you mean 'twentyq'?",
    "modle=tiny": "modle is not a setting; did you mean 'model'?",
    "algo.clp=0.1": "algo.clp is not a key of algo; did you mean 'clip'?",
    "steps=many": "steps must be an integer, not 'many'",
    "algo.clip=wide": "algo.clip must be a float, not 'wide'",
    "algo.normalise=perhaps": "algo.normalise must be a boolean, not 'perhaps'",
    "eval.splits=test": "eval.splits must be a list of strings, not 'test'",
    "eval.splits=[tset]": "unknown split 'tset': use 'train' or 'test'",
    "eval.splits=[]": "eval.splits is empty; name at least one",
    "model.weights=twentyqq": "embedded weights 'twentyqq' do not exist; choose null or",
    "model.dtype=float16": "model.dtype 'float16' is unknown; choose auto, float32 or bfloat16",
    "model.attention=loud": "model.attention 'loud'",
    "hardware.device=tpu": "hardware.device 'tpu' is unknown; use cpu or cuda",
    "init=nothing": "run 'nothing' not found",
    "env.reward=gold": "reward is 'gold': use 'win' or 'lmrl'",
    "loud": "override 'loud' cannot be read; write it as key=value",
    "steps=1,2": "override 'steps=1,2' names several values; give one, or a list",
    "name=a/b": "name 'a/b' is not a folder name; use letters",
}


@pytest.mark.parametrize("override", NAMES)
def test_a_wrong_name_or_value_is_one_sentence(tmp_path: Path, override: str):
    usual = ["eval.splits=[test]"] if "splits" in override else []
    refused(train(tmp_path, "env=twentyq", *usual, override), NAMES[override])
    assert not (tmp_path / "runs" / "it").exists()


def test_all_mistakes_of_a_configuration_are_told_at_once(tmp_path: Path):
    result = train(tmp_path, "steps=many", "algo.clp=0.1", "env=twentyqq", "sede=1")
    refused(
        result,
        "steps must be an integer, not 'many'",
        "algo.clp is not a key of algo; did you mean 'clip'?",
        "env 'twentyqq' not found; did you mean 'twentyq'?",
        "sede is not a setting; did you mean 'seed'?",
    )
    assert not (tmp_path / "runs").exists()


SIZES = {
    "rollout.max_tokens=500 rollout.max_context=400": "max_tokens 500 leaves no room in",
    "rollout.max_context=100000": "max_context is 100000; give at most the 2048",
    "rollout.episodes_per_step=3": "rollout.episodes_per_step 3 holds no group of 4; give at least",
    "algo.episodes_per_group=1": "episodes_per_group is 1; give at least 2",
    "algo.epochs=0": "epochs is 0; give at least 1",
    "algo.optimizer.lr=-1": "lr is -1.0; give at least 0",
    "steps=0": "steps is 0; give at least 1",
    "steps=-1": "steps is -1; give at least 1",
    "save_every=-1": "save_every is -1; give at least 0",
    "rollout.temperature=-1": "temperature is -1.0; give at least 0",
    "eval.episodes_per_task=0": "episodes_per_task is 0; give at least 1",
    "eval.tasks=0": "tasks is 0; give at least 1",
    "hardware.threads=0": "threads is 0; give at least 1",
    "hardware.tokens_per_batch=0": "tokens_per_batch is 0; give at least 1",
    "hardware.generator.max_batch=0": "max_batch is 0; give at least 1",
    "env=twentyq env.test_objects=96": "test_objects is 96: world small allows 0 to 95",
    "env=twentyq env.test_objects=0": "eval.splits names 'test', which has no tasks; name another",
    "env=twentyq env.turns=0": "turns is 0: allow at least 1",
}


@pytest.mark.parametrize("overrides", SIZES)
def test_a_size_that_cannot_be_is_refused_and_no_folder_is_left(tmp_path: Path, overrides: str):
    refused(train(tmp_path, *overrides.split()), SIZES[overrides])
    assert not (tmp_path / "runs" / "it").exists()


CRITICS = {
    "algo=ppo algo.level=word": "algo.level must be one of turn, token",
    "algo=ppo algo.gae_lambda=1.5": "gae_lambda is 1.5: a share is at most 1",
    "algo=archer algo.action=best": "algo.action must be one of fresh, stored",
    "algo=archer algo.critic_updates=0": "critic_updates is 0; give at least 1",
}


@pytest.mark.parametrize("overrides", CRITICS)
def test_a_scalar_critic_that_cannot_be_is_refused(tmp_path: Path, overrides: str):
    name, override = overrides.removeprefix("algo=").split()
    refused(train(tmp_path, override, algo=name), CRITICS[overrides])
    assert not (tmp_path / "runs" / "it").exists()


NLAC = {
    "algo.forecasts=0": "forecasts is 0; give at least 1",
    "algo.rounds=0": "rounds is 0; give at least 1",
    "algo.replay=0": "replay is 0; give at least 1",
    "algo.turns_per_update=0": "turns_per_update is 0; give at least 1",
    "algo.ema=1.5": "ema is 1.5: a share is at most 1",
    "algo.kl=-0.1": "kl is -0.1; give at least 0",
    "algo.advanced.probes=0": "probes is 0; give at least 1",
    "algo.advanced.control=all": "algo.advanced.control must be one of none, shuffled_outcomes",
    "algo.prompts.refine='{critic}'": "prompts.refine asks for 'critic'; it can be given critique",
}


@pytest.mark.parametrize("override", NLAC)
def test_a_critic_that_cannot_be_is_refused(tmp_path: Path, override: str):
    refused(train(tmp_path, override, algo="nlac"), NLAC[override])
    assert not (tmp_path / "runs" / "it").exists()


DEMONSTRATED = {
    "stepagent_implicit data.demos=null": "algo 'stepagent_implicit' learns from demonstrations;",
    "dpo data.demos=null": "algo 'dpo' learns from demonstrations; write some with agentrl demos",
    "grpo data.demos=x.jsonl": "algo 'grpo' reads no demonstrations; leave data.demos out, or",
    "rft data.demos=x.jsonl": "algo 'rft' reads no demonstrations; leave data.demos out, or start",
    "sft data.demos=none.jsonl": "demonstrations 'none.jsonl' cannot be read (No such file",
    "dpo env=twentyq": "{demos} line 1: its task 'train-0' is of another environment; mend it, or",
    "stepagent_implicit algo.tried=all": "algo.tried must be one of turn, last_line, not 'all'",
    "stepagent_inverse algo.reward=high": "algo.reward must be one of logit, unlike_agent, like_",
    "stepagent_inverse algo.ppo.entropy=-1": "entropy is -1.0; give at least 0",
    "stepagent_inverse algo.ppo.clipp=1": "algo.ppo.clipp is not a key of algo.ppo; did you mean",
}


@pytest.mark.parametrize("overrides", DEMONSTRATED)
def test_demonstrations_that_are_missing_or_out_of_place_are_told(tmp_path: Path, overrides: str):
    algo, *more = overrides.split()
    sentence = DEMONSTRATED[overrides].format(demos=DEMOS.removeprefix("data.demos="))
    result = train(tmp_path, *more, algo=algo)
    first = result.stderr.strip().splitlines()[:1]
    assert result.exit_code == 2 and "Traceback" not in result.stderr
    assert first and first[0].startswith(sentence), first
    assert not (tmp_path / "runs" / "it").exists()


def test_a_prompt_that_no_context_holds_is_told_and_not_trained_on(tmp_path: Path):
    result = train(tmp_path, "rollout.max_tokens=6", "rollout.max_context=8")
    assert result.exit_code == 2 and "Traceback" not in result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("rollout.max_context 8 holds not even")


# models


def test_a_missing_model_folder_is_named(tmp_path: Path):
    result = train(tmp_path, f"model.path={tmp_path}/none")
    refused(result, f"model folder '{tmp_path}/none' does not exist; give a folder")
    assert not (tmp_path / "runs" / "it").exists()


def test_a_folder_that_holds_no_model_is_named(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    result = train(tmp_path, f"model.path={tmp_path}/empty")
    refused(result, f"cannot read a tokenizer from '{tmp_path}/empty'")


# runs and checkpoints


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("runs"), "sft", "it")


@pytest.fixture
def run(tmp_path: Path, done: Run) -> Run:
    """A copy of a run whose last checkpoint was lost, so that it can be resumed."""
    shutil.copytree(done.folder, tmp_path / "copy")
    copied = Run(tmp_path / "copy")
    shutil.rmtree(copied.latest_checkpoint())
    return copied


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_run_folder_that_exists_is_refused_and_untouched(tmp_path: Path):
    (tmp_path / "runs" / "it").mkdir(parents=True)
    (tmp_path / "runs" / "it" / "precious").write_text("mine")
    refused(train(tmp_path), f"run folder '{tmp_path}/runs/it' exists; choose another name=")
    assert [file.name for file in (tmp_path / "runs" / "it").iterdir()] == ["precious"]


WEIGHTS = "models/policy/model.safetensors"
DAMAGE = {
    "weights are cut": (WEIGHTS, b"\x00" * 20, "cannot read weights from"),
    "weights are gone": (WEIGHTS, None, "cannot read weights from"),
    "versions are gone": ("models/versions.json", None, "'"),
    "optimizer is cut": ("optimizer/policy.safetensors", b"{}", "cannot read the optimizers in"),
    "optimizer is gone": ("optimizer/optimizers.json", None, "cannot read the optimizers in"),
    "state is no JSON": ("state.json", b"{", "'"),
    "state is foreign": ("state.json", b'{"algo": {}}', "'"),
    "mark is foreign": ("run.json", b'{"step": 1}', "'"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_an_unreadable_checkpoint_is_refused_and_nothing_is_overwritten(run: Run, case: str):
    name, text, sentence = DAMAGE[case]
    file = run.latest_checkpoint() / name
    file.unlink() if text is None else file.write_bytes(text)
    before = contents(run.folder)
    result = agentrl("resume", str(run.folder))
    refused(result, sentence)
    assert str(run.latest_checkpoint()) in result.stderr
    assert contents(run.folder) == before


def test_weights_of_another_model_are_refused(run: Run, model_folder: Path):
    policy = run.latest_checkpoint() / "models" / "policy"
    shutil.copy(model_folder / "model.safetensors", policy)
    shutil.copy(model_folder / "config.json", policy)
    before = contents(run.folder)
    refused(agentrl("resume", str(run.folder)), f"the weights in {policy} are of another model")
    assert contents(run.folder) == before


def test_init_from_weights_of_another_model_is_refused(tmp_path: Path, model_folder: Path):
    result = train(tmp_path, f"init={model_folder}")
    refused(result, f"the weights in {model_folder} are of another model")
    assert not (tmp_path / "runs" / "it").exists()


def test_a_checkpoint_of_another_algorithm_is_refused(run: Run):
    other = settings(run.folder.parent, "nlac", "other")
    cfg = config.check(config.compose(other, folders(run.folder.parent)))
    OmegaConf.save(cfg, run.config_file, resolve=True)
    before = contents(run.folder)
    target = run.latest_checkpoint() / "models" / "target"
    missing = f"'{target}' does not exist; give a checkpoint that has a 'target'"
    refused(agentrl("resume", str(run.folder)), missing)
    assert contents(run.folder) == before


def test_a_configuration_that_was_spoiled_is_refused(run: Run):
    text = run.config_file.read_text()
    run.config_file.write_text(text.replace("weight_decay: 0.0", "weight_decay: nothing"))
    wrong = "algo.optimizer.weight_decay must be a float, not 'nothing'"
    refused(agentrl("resume", str(run.folder)), wrong)
    refused(agentrl("eval", str(run.folder)), wrong)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path):
    (tmp_path / "meta.json").write_text("[]")
    refused(agentrl("resume", str(tmp_path)), f"'{tmp_path}/meta.json' is not a JSON object")
    refused(agentrl("eval", str(tmp_path)), f"'{tmp_path}/meta.json' is not a JSON object")


# the disk


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path):
    (tmp_path / "runs").write_text("a file")
    refused(train(tmp_path), f"'{tmp_path}/runs/it' cannot be written")


@pytest.mark.parametrize("limit", [2**10, 2**16])
def test_no_space_is_one_sentence_and_no_checkpoint_is_half_written(tmp_path: Path, limit: int):
    """A file may grow to `limit` bytes: too few for meta.json, for the weights."""
    command = [sys.executable, "-m", "agentrl_cli.cli", "train", *settings(tmp_path, "sft", "it")]
    result = subprocess.run(
        [*command, "--config-dir", str(folders(tmp_path))], capture_output=True, text=True,
        cwd=HERE.parent, env={**os.environ, "PYTHONPATH": str(HERE)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    last = result.stderr.strip().splitlines()[-1]
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert last.startswith(f"'{tmp_path}/it") and "cannot be written" in last
    assert not list(tmp_path.glob("it/checkpoints/*")) and not list(tmp_path.rglob("*partial*"))
    assert (tmp_path / "it").exists() is (limit > 2**10)
    if limit > 2**10:
        assert json.loads((tmp_path / "it" / "meta.json").read_text())["status"] == "failed"


def test_the_small_settings_are_good_input(tmp_path: Path):
    assert train(tmp_path, "steps=1").exit_code == 0 and SMALL
