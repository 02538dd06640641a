"""`agentrl config`, `list` and `demos`, and the completion in a shell."""

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


def test_keys_have_value_comment_and_source():
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


def test_printed_yaml_is_the_composed_configuration():
    overrides = ["algo=nlac", "env=tau_mini", "eval.splits=[test]", "algo.optimizer.lr=1e-5"]
    printed = agentrl("config", *overrides).stdout
    composed = OmegaConf.to_container(compose(overrides), resolve=True)
    assert isinstance(composed, dict) and composed.pop("choices")
    assert composed.pop("search", None) is None and yaml.safe_load(printed) == composed
    assert agentrl("train", *overrides, "--cfg", "job").stdout == printed


def test_wrong_configuration_is_printed_and_refused():
    result = agentrl("config", "model=hf", "stpes=3")
    assert result.exit_code == 2 and "path: ???" in result.stdout
    assert len(result.stderr.splitlines()) == 2 and "'stpes'" in result.stderr
    refused(agentrl("config", "algo=grop"), "'grop' ... 'grpo'")


def test_keys_of_an_option_are_listed():
    text = agentrl("list", "algo", "grpo").stdout
    lines = {line.split("#")[0].strip(): line for line in text.splitlines()}
    assert "KL" in lines["kl_coef: 0.0"] and "\nsteps:" not in text and "_target_" not in text
    assert "AdamW" in lines["optimizer:"] and "AdamW" not in lines["decay_steps: 0"]
    assert "max_new_tokens: 1024" in agentrl("list", "model", "hf").stdout
    refused(agentrl("list", "algo", "grop"), "'grop' ... 'grpo'")


@pytest.mark.parametrize("verb", ["train", "sweep"])
def test_nothing_starts_without_arguments(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    refused(agentrl(verb), f"agentrl {verb} algo=nlac env=twentyq")
    assert list(tmp_path.iterdir()) == []


def test_short_flags():
    assert agentrl("-V").stdout == agentrl("--version").stdout
    for verb in ([], ["train"], ["show"]):
        assert agentrl(*verb, "-h").stdout == agentrl(*verb, "--help").stdout


@pytest.mark.parametrize(
    ("words", "offer"),
    [
        (["re"], ["resume", "reproduce", "report"]),
        (["train", "al"], ["algo=", "algo."]),
        (["train", "algo=gr"], ["algo=grpo"]),
        (["train", "algo", "=", "gr"], ["grpo"]),  # as bash splits algo=gr
        (["train", "algo", "="], ["grpo", "nlac"]),
        (["eval", "abc", "env", "="], ["math"]),
        (["train", "algo=grpo", "algo.clip_eps", "="], ["0.2"]),
        (["train", "algo=grpo", "algo.clip_eps="], ["algo.clip_eps=0.2"]),
        (["train", "se"], ["search=", "seed="]),
        (["train", "algo", "=", "grpo", "algo.c"], ["algo.clip_eps="]),
        (["train", "algo=grpo", "algo.optimizer.l"], ["algo.optimizer.lr="]),
        (["train", "env=math_500", "env.le"], ["env.levels="]),
        (["list", "al"], ["algo"]),
        (["list", "algo", "gr"], ["grpo"]),
        (["show", "ab"], ["abc"]),
        (["show", "runs/grid/"], ["runs/grid/seed-0"]),
        (["report", "runs/g"], ["runs/grid"]),
        (["eval", "l"], ["last"]),
        (["eval", "abc", "eval.ta"], ["eval.tasks="]),
    ],
)
def test_shell_completes_options_keys_and_runs(
    words: list[str], offer: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for folder in ("abc", "grid/seed-0"):
        write_run(tmp_path / "runs" / folder)
    typed = {"_AGENTRL_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(["agentrl", *words])}
    typed["COMP_CWORD"] = str(len(words))
    found = CliRunner().invoke(app, env=typed, prog_name="agentrl").stdout.split()
    assert set(offer) <= set(found)


def test_groups_are_listed():
    found = agentrl("list").stdout.split()
    assert {"algo", "env", "model", "hardware", "recipe", "ablation"} <= set(found)
    assert found == json.loads(agentrl("list", "--json").stdout)


def test_printed_command_learns_from_demonstrations(tmp_path: Path):
    file = tmp_path / "my demos.jsonl"
    result = agentrl("demos", "recipe=arithmetic", "env.turn_mode=single", "n=2", f"out={file}")
    words = shlex.split(result.stderr.split("learn from them: agentrl ")[1])
    assert words[:4] == ["train", "recipe=arithmetic", "env.turn_mode=single", "algo=sft"]
    assert f"data.demos={file}" in words


@pytest.mark.parametrize(
    ("algo", "ending"), [("nlac", "1,050,752, in each of 2 models"), ("grpo", "1,050,752")]
)
def test_plan_counts_trained_models(algo: str, ending: str):
    cfg = check(compose([f"algo={algo}"]))
    assert str(dict(plan_rows(cfg, build(cfg.algo)))["parameters"]).endswith(ending)
