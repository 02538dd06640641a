"""What there is to set, as `agentrl config` and `agentrl list` print it and a shell offers it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from typer.testing import CliRunner

from agentrl_cli.cli.main import app
from agentrl_cli.cli.run_training import plan_rows
from agentrl_cli.config.compose import build, check, compose
from tests.builders.command_line import agentrl, refused
from tests.builders.report import write_run


def entries(*overrides: str) -> dict[str, tuple[object, str, str]]:
    rows = json.loads(agentrl("config", *overrides, "--json").stdout)
    return {row["key"]: (row["value"], row["comment"], row["source"]) for row in rows}


def test_every_key_has_its_value_its_comment_and_its_source():
    found = entries("algo=grpo", "env=math", "steps=3")
    assert found["steps"][::2] == (3, "command line") and found["steps"][1]
    assert found["seed"][::2] == (0, "config.yaml") and found["seed"][1]
    assert found["rollout.max_new_tokens"][::2] == (96, "env/arithmetic.yaml")
    assert found["env.levels"][::2] == ([], "env/arithmetic.yaml") and found["env.levels"][1]
    assert found["env.test_share"][::2] == (0.0, "env/math.yaml")
    assert found["model.weights"][0] == "math" and found["algo.clip_eps"][2] == "algo/grpo.yaml"
    assert found["algo.optimizer.lr"][1] and found["hardware.generator.max_batch"][1]
    hf = entries("algo=grpo", "model=hf", "model.path=x", "recipe=arithmetic", "env=arithmetic")
    assert hf["rollout.max_new_tokens"][::2] == (1024, "model/hf.yaml")
    assert "recipe/arithmetic.yaml" in {source for _, _, source in hf.values()}


@pytest.mark.parametrize(
    "overrides",
    [
        ["algo=nlac", "env=tau_mini", "eval.splits=[test]", "algo.optimizer.lr=1e-5"],
    ],
)
def test_what_is_printed_is_yaml_of_what_is_composed(overrides: list[str]):
    printed = yaml.safe_load(agentrl("config", *overrides).stdout)
    composed = OmegaConf.to_container(compose(overrides), resolve=True)
    assert isinstance(composed, dict) and composed.pop("choices")
    assert composed.pop("search", None) is None and printed == composed
    by_train = agentrl("train", *overrides, "--cfg", "job")
    assert by_train.stdout == agentrl("config", *overrides).stdout


def test_a_configuration_that_is_wrong_is_printed_and_refused():
    result = agentrl("config", "model=hf", "stpes=3")
    assert result.exit_code == 2 and "path: ???" in result.stdout
    assert len(result.stderr.splitlines()) == 2
    assert "'stpes'" in result.stderr and "model.path=VALUE" in result.stderr
    refused(agentrl("config", "algo=grop"), "algo 'grop' not found; did you mean 'grpo'?")


def test_the_keys_of_an_option_are_listed():
    text = agentrl("list", "algo", "grpo").stdout
    (line,) = [line for line in text.splitlines() if "kl_coef: 0.0 " in line]
    assert "KL" in line.partition("#")[2]
    assert "\nsteps:" not in text and "_target_" not in text
    assert "max_new_tokens: 1024" in agentrl("list", "model", "hf").stdout
    refused(agentrl("list", "algo", "grop"), "algo 'grop' not found; did you mean 'grpo'?")


@pytest.mark.parametrize("verb", ["train", "sweep"])
def test_without_arguments_nothing_starts_and_what_would_is_told(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    result = agentrl(verb)
    assert result.exit_code == 2 and result.stdout == "" and list(tmp_path.iterdir()) == []
    assert result.stderr.startswith("nothing was started. By default this would be algo=nlac env=t")
    assert f"agentrl {verb} algo=nlac env=twentyq" in result.stderr


def test_short_flags():
    assert agentrl("-V").stdout == agentrl("--version").stdout
    for verb in ([], ["train"], ["show"]):
        assert agentrl(*verb, "-h").stdout == agentrl(*verb, "--help").stdout


def test_a_key_is_looked_for_further_inside():
    wrong = agentrl("train", "algo=grpo", "lr=1e-3")
    refused(wrong, "Unknown key 'lr'")


def offered(*words: str) -> list[str]:
    """What bash is offered for the last of these words."""
    asked = {"_AGENTRL_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words)}
    asked["COMP_CWORD"] = str(len(words) - 1)
    return CliRunner().invoke(app, env=asked, prog_name="agentrl").stdout.split()


@pytest.mark.parametrize(
    ("words", "offer"),
    [
        (["train", "al"], ["algo=", "algo."]),
        (["train", "algo=gr"], ["algo=grpo"]),
        (["train", "algo", "=", "gr"], ["grpo"]),  # as bash cuts algo=gr
        (["train", "algo", "="], ["grpo", "nlac"]),
        (["eval", "abc", "env", "="], ["math"]),
        (["train", "algo=grpo", "algo.clip_eps", "="], ["0.2"]),
        (["train", "algo=grpo", "algo.clip_eps="], ["algo.clip_eps=0.2"]),
        (["train", "se"], ["search=", "seed="]),
        (["train", "ev"], ["eval_every=", "eval."]),
        (["train", "algo=grpo", "algo.c"], ["algo.clip_eps="]),
        (["train", "algo", "=", "grpo", "algo.c"], ["algo.clip_eps="]),
        (["train", "algo=grpo", "algo.optimizer.l"], ["algo.optimizer.lr="]),
        (["train", "model=hf", "model.lora.r"], ["model.lora.rank="]),
        (["train", "env=math_500", "env.le"], ["env.levels="]),
        (["list", "al"], ["algo"]),
        (["list", "algo", "gr"], ["grpo"]),
        (["config", "steps=1", "init"], ["init="]),
        (["show", "ab"], ["abc"]),
        (["show", "runs/grid/"], ["runs/grid/seed-0"]),
        (["report", "runs/g"], ["runs/grid"]),
        (["eval", "l"], ["last"]),
        (["eval", "abc", "eval.ta"], ["eval.tasks="]),
    ],
)
def test_a_shell_is_offered_groups_options_keys_and_runs(
    words: list[str], offer: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for folder in ("abc", "grid/seed-0"):
        write_run(tmp_path / "runs" / folder)
    found = offered("agentrl", *words)
    assert set(offer) <= set(found)


def test_what_is_said_of_a_node_in_one_line_is_not_said_of_its_last_key():
    text = agentrl("list", "algo", "grpo").stdout
    lines = {line.split("#")[0].strip(): line for line in text.splitlines()}
    assert "AdamW" in lines["optimizer:"] and "AdamW" not in lines["decay_steps: 0"]


def test_without_a_group_the_groups_are_listed():
    found = agentrl("list").stdout.split()
    assert {"algo", "env", "model", "hardware", "recipe", "ablation"} <= set(found)
    assert found == json.loads(agentrl("list", "--json").stdout)


def test_demonstrations_are_learnt_in_the_world_that_they_are_of(tmp_path: Path):
    file = tmp_path / "demos.jsonl"
    result = agentrl("demos", "env=arithmetic", "env.turn_mode=single", "n=2", f"out={file}")
    said = f"agentrl train env=arithmetic env.turn_mode=single algo=sft data.demos={file} steps=3"
    assert said in result.stderr


def test_the_command_that_learns_from_demonstrations_can_be_pasted(tmp_path: Path):
    file = tmp_path / "my demos.jsonl"
    result = agentrl("demos", "recipe=arithmetic", "env.turn_mode=single", "n=2", f"out={file}")
    words = shlex.split(result.stderr.split("learn from them: agentrl ")[1])
    assert words[:3] == ["train", "recipe=arithmetic", "env.turn_mode=single"]
    assert f"data.demos={file}" in words


def test_a_plan_says_how_many_models_are_trained():
    for algo, ending in (("nlac", "trained 1,050,752, in each of 2 models"), ("grpo", "1,050,752")):
        cfg = check(compose([f"algo={algo}"]))
        assert str(dict(plan_rows(cfg, build(cfg.algo)))["parameters"]).endswith(ending)
