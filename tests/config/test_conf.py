"""Every YAML of conf/ composes, checks and builds; options are found, not listed here."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agentrl_cli.config.compose import as_dataclass, build, check, compose, options
from agentrl_cli.config.renames import PRESETS, preset_overrides
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.config.validation import OTHER_LIBRARIES, public_names
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from tests.paths import CONF

FILES = sorted(CONF.glob("*/*.yaml"))
GIVEN = {"hf": ["model.path=some/folder"]}


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CONF.parent)


BUILT = ("env", "algo", "logger")
OPTIONS = [  # others than those that the tests below compose
    f"{file.parent.name}={file.stem}" for file in FILES if file.parent.name not in (*BUILT, "model")
]


@pytest.mark.parametrize("override", OPTIONS)
def test_option_composes_and_checks(override: str):
    group, _, option = override.partition("=")
    assert check(compose([override])).choices[group] == option


def test_every_option_has_a_description():
    for file in FILES:
        assert len(options(file.parent.name)[file.stem]) > 10, file


NEW = {  # settings with a default in Python
    "min_parse_rate", "frozen_forecast", "advantage_std", "skip_zero_advantages", "loss_type",
    "max_completion_length", "clip_eps_high", "use_bias_correction_kl", "value_clip_error",
}  # fmt: skip


@pytest.mark.parametrize("group", BUILT)
def test_options_with_a_class_build_it(group: str):
    for file in sorted((CONF / group).glob("*.yaml")):
        cfg = check(compose([f"{group}={file.stem}"]))
        node = cfg[group]
        assert cfg.choices[group] == file.stem
        built = build(node)
        arguments = inspect.signature(type(built)).parameters.values()
        defaults = {a.name for a in arguments if a.default is not inspect.Parameter.empty}
        # numbers are in YAML only, except for those that older runs were stored without
        assert group != "algo" or defaults <= NEW
        assert node._target_ in public_names()
        assert node._target_.endswith(f".{type(built).__name__}")


@pytest.mark.parametrize("file", sorted((CONF / "model").glob("*.yaml")), ids=lambda f: f.stem)
def test_models_read_as_their_dataclass(file: Path):
    cfg = check(compose([f"model={file.stem}", *GIVEN.get(file.stem, [])]))
    assert as_dataclass(cfg.model, ModelConfig).path and cfg.choices.model == file.stem
    if file.stem in ("hf", "tiny"):
        assert cfg.model.gradient_checkpointing is (file.stem == "hf")


@pytest.mark.parametrize("env", ["twentyq", "arithmetic", "tau_retail", "wiki"])
def test_real_model_has_room_for_replies(env: str):
    sizes = check(compose([f"env={env}", "model=hf", "model.path=x"])).rollout
    assert (sizes.max_new_tokens, sizes.max_seq_len) == (1024, 8192)
    given = ["rollout.max_new_tokens=9", "rollout.max_seq_len=99"]
    sizes = check(compose([f"env={env}", "model=hf", "model.path=x", *given])).rollout
    assert (sizes.max_new_tokens, sizes.max_seq_len) == (9, 99)
    preset = check(compose(["recipe=paper_twentyq", f"env={env}"])).rollout
    assert (preset.max_new_tokens, preset.max_seq_len) == (256, 8192)


@pytest.mark.parametrize("name", sorted(name for name in PRESETS if name.startswith("paper_")))
def test_paper_preset_takes_other_hardware(name: str):
    usual = check(compose(preset_overrides(name)))
    size = "24gb" if name.endswith("24gb") else "80gb"
    assert usual.choices.hardware == f"gpu_{size}" and usual.hardware.generator.max_batch == 24
    served = check(compose([*preset_overrides(name), "hardware=vllm"]))
    assert served.hardware.generator.urls == [] and served.model == usual.model


@pytest.mark.parametrize(
    ("env", "word"),
    [("twentyq", "game"), ("arithmetic", "solution"), ("tau_mini", "customer"),
     ("tau_retail", "tool"), ("wiki", "browser")],
)  # fmt: skip
def test_prompts_of_a_real_model_fit_the_environment(env: str, word: str):
    algo = check(compose([f"env={env}", "model=hf", "model.path=x", "algo=nlac"])).algo
    prompts = algo.prompts
    assert (prompts.parser, prompts.speaker, algo.min_parse_rate) == ("lenient", "system", 0.5)
    for role in ("forecast", "backup", "evaluate", "refine", "refine_by_rollouts", "aggregate"):
        assert "$" not in prompts[role]
    assert word in " ".join([prompts.forecast, prompts.evaluate])
    assert "{instruction}" in prompts.frame and prompts.frame.startswith("[Note")
    critic = check(compose([f"env={env}", "model=hf", "model.path=x", "algo=self_ac"])).algo
    assert critic.critic_prompt.startswith("{message}How likely is it that")


def test_bundled_model_keeps_its_training_prompts():
    algo = check(compose(["algo=nlac", "model=tiny"])).algo
    prompts = algo.prompts
    assert (prompts.parser, prompts.speaker, prompts.frame) == ("strict", "user", "{instruction}")
    assert prompts.forecast == "Forecast this turn." and prompts.refine.startswith("{critique}\n")
    assert (algo.min_parse_rate, algo.advanced.role_tokens) == (0.5, 48)


def test_user_chooses_prompts_and_wording():
    words = ["prompts.wording=service", "prompts.terminal='{outcome}'"]
    cfg = check(compose(["algo=nlac", "prompts=instruct", *words]))
    assert "customer" in cfg.algo.prompts.forecast and cfg.algo.prompts.terminal == "{outcome}"
    assert cfg.choices.prompts == "instruct"
    own = ["algo=nlac", "model=hf", "model.path=x", "prompts=tiny", "algo.prompts.refine=Again."]
    prompts = check(compose(own)).algo.prompts
    assert (prompts.parser, prompts.refine) == ("strict", "Again.")


def test_names_in_other_libraries_lead_to_ours():
    lines: list[str] = []
    for algo in ("ppo", "grpo"):
        with pytest.raises(UserError) as error:
            check(compose([f"algo={algo}", *(f"{name}=1" for name in OTHER_LIBRARIES)]))
        lines += str(error.value).splitlines()
    chosen = (["algo=ppo", "model=hf", "model.path=x"], ["algo=grpo"])
    nodes = [OmegaConf.to_container(compose(words)) for words in chosen]
    keys = [f"{key}." for node in nodes for key in files.flatten(node)]
    for name, ours in OTHER_LIBRARIES.items():
        said = ours if " " in ours else f"It is '{ours}' here."
        assert f"Unknown key '{name}'. {said}" in lines
        assert " " in ours or any(key.startswith(f"{ours}.") for key in keys)


@pytest.mark.parametrize(("words", "said"), [
    (["algo=dpo", "beta=1"], "Did you mean 'algo.beta'?"),
    (["algo=sft", "algo.num_generations=4"], "Choose one of "),
    (["env=twentyq", "env.max_steps=5"], "Did you mean 'env.max_turns'?"),
])  # fmt: skip
def test_own_keys_win_over_names_in_other_libraries(words: list[str], said: str):
    with pytest.raises(UserError) as error:
        check(compose(words))
    assert said in str(error.value)
