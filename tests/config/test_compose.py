"""Composing, checking and building: every mistake is refused by name, all of them together."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from omegaconf import OmegaConf

from agentrl_cli.config.compose import (
    as_dataclass,
    build,
    check,
    compose,
    conf_folder,
    load,
    options,
)
from agentrl_cli.config.schema import is_private, validate_target
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core.errors import UserError
from tests.builders.conf_folder import FILES, NODES


@pytest.fixture(autouse=True)
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        file = tmp_path / "conf" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text).lstrip())
    (tmp_path / "sample_nodes.py").write_text(NODES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "conf"


def refusal(*overrides: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        check(compose(list(overrides)))
    return str(caught.value).splitlines()


def test_defaults_compose_and_check():
    cfg = check(compose([]))
    assert (cfg.steps, cfg.algo.clip, cfg.model.weights) == (10, 0.2, "some/where")


def test_choices_name_the_option_of_each_group():
    choices = compose(["algo=second"]).choices
    assert dict(choices) == {"env": "world", "algo": "second", "model": "tiny",
                             "recipe": None, "ablation": None}  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "epochs"),
    [
        ("recipe=quick", 1),
        ("recipe=quick algo=second", 3),
        ("recipe=quick algo=second ablation=ungated", 4),
        ("recipe=quick algo=second ablation=ungated algo.epochs=9", 9),
        ("recipe=quicker algo=second", 3),
    ],
)
def test_overrides_beat_ablations_which_beat_recipes(overrides: str, epochs: int):
    cfg = check(compose([*overrides.split(), "model.path=x"]))
    assert (cfg.algo.epochs, cfg.choices.model) == (epochs, "hf")
    assert cfg.steps == (1 if "quicker" in overrides else 2)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("env=worldd", "env 'worldd' not found; did you mean 'world'?"),
        ("env=zzz", "env 'zzz' not found; there is world"),
        ("env={part: 1}", "env '{'part': 1}' not found; there is world"),
        ("algo.clip=abc", "algo.clip must be a float, not 'abc'"),
        ("algo.epochs=1.5", "algo.epochs must be an integer, not 1.5"),
        ("algo.gate=maybe", "algo.gate must be a boolean, not 'maybe'"),
        ("algo.kind=medium", "algo.kind must be one of soft, hard, not 'medium'"),
        ("algo.limit=low", "algo.limit must be a float or null, not 'low'"),
        ("algo.clip=null", "algo.clip must be a float, not None"),
        (f"algo.clip={10**400}", f"algo.clip must be a float, not {10**400}"),
        ("algo.clipp=1", "algo.clipp is not a key of algo; did you mean 'clip'?"),
        ("algo.advanced.round=1", "algo.advanced.round is not a key of algo.advanced; "
         "did you mean 'rounds'?"),
        ("algo.advanced=3", "algo.advanced must be a node of keys, not 3"),
        ("algo.advanced.weights=[1,x]", "algo.advanced.weights must be a list of floats, "
         "not [1, 'x']"),
        ("env.parts.0.size=x", "env.parts[0].size must be an integer, not 'x'"),
        ("model.lora={rank:x}", "model.lora.rank must be an integer, not 'x'"),
        ("stepss=1", "stepss is not a setting; did you mean 'steps'?"),
        ("steps=many", "steps must be an integer, not 'many'"),
        ("~algo.clip", "algo.clip is missing; give it as algo.clip=VALUE"),
        ("model=hf", "model.path is missing; give it as model.path=VALUE"),
        ("model.path=${env.nowhere}", "model cannot be resolved: "
         "Interpolation key 'env.nowhere' not found"),
        ("algo._target_=sample_nodes.Nothing", "algo._target_ 'sample_nodes.Nothing' cannot be "
         "imported (module 'sample_nodes' has no attribute 'Nothing'); correct the name"),
        ("algo._target_=pathlib.Path", "algo._target_ 'pathlib.Path' is not a dataclass; "
         "decorate it with @dataclass"),
        ("loud", "override 'loud' cannot be read; write it as key=value"),
        ("algo.clip=1,2", "override 'algo.clip=1,2' names several values; give one, "
         "or a list as [a,b]"),
    ],
)  # fmt: skip
def test_one_mistake_is_one_line_that_names_it(override: str, line: str):
    assert line in refusal(override)


def test_all_mistakes_are_reported_together():
    lines = refusal("algo.clip=abc", "algo.clipp=1", "steps=many", "model=hf")
    assert len(lines) == 4


def test_unknown_options_are_reported_together_with_other_mistakes():
    lines = refusal("env=worldd", "algo=third", "algo.clip=1", "steps=many", "model.dtypes=x")
    assert [line.split()[0] for line in lines][:2] == ["env", "algo"]
    assert any(line.startswith("steps must") for line in lines)
    assert any(line.startswith("model.dtypes is not") for line in lines)
    assert not any(line.startswith("algo.clip") for line in lines)


def test_check_gives_values_their_declared_type():
    cfg = check(compose(["algo.clip=1", "steps='7'"]))
    assert (cfg.algo.clip, type(cfg.algo.clip), cfg.steps) == (1.0, float, 7)


def test_checked_configuration_refuses_unknown_attributes():
    with pytest.raises(AttributeError):
        check(compose([])).stepss  # noqa: B018


def test_build_constructs_nested_nodes_and_takes_given_objects():
    cfg = check(compose([]))
    engine = object()
    world = build(cfg.env, engine=engine)
    assert world.engine is engine
    assert (world.part.size, [part.size for part in world.parts], world.helper.size) == (
        3,
        [1, 2],
        7,
    )
    assert (world.folder, world.shape) == (Path("some/where"), (2, 3))


def test_build_works_on_an_unchecked_node_and_resolves_it():
    cfg = compose(["rollout.size=${steps}"])
    assert build(cfg.rollout).size == 10


def test_given_values_win_over_the_node():
    assert build(compose([]).rollout, size=5).size == 5


def test_build_refuses_what_check_refuses():
    with pytest.raises(UserError, match="did you mean 'size'"):
        build({"_target_": "sample_nodes.Part", "sizes": 1})


def test_build_refuses_a_node_without_target():
    with pytest.raises(UserError, match="model has no _target_"):
        build(compose([]).model)


def test_optional_nested_dataclass_is_null_or_built():
    lora = "model.lora={rank:8,alpha:16,targets:[q_proj]}"
    assert as_dataclass(compose([]).model, ModelConfig).lora is None
    built = as_dataclass(check(compose([lora])).model, ModelConfig)
    assert built.lora is not None
    assert (built.lora.rank, built.lora.alpha, built.lora.targets) == (8, 16, ["q_proj"])


def test_config_dir_adds_a_users_groups(tmp_path: Path):
    mine = tmp_path / "my groups" / "algo"
    mine.mkdir(parents=True)
    (mine / "third.yaml").write_text("# my own\ndefaults: [first, _self_]\nclip: 0.9\n")
    cfg = check(compose(["algo=third"], mine.parent))
    assert cfg.algo.clip == 0.9
    assert options("algo", mine.parent) == {"first": "the first of two", "second": "",
                                                   "third": "my own"}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a: [", r"while parsing a flow node .*mine.yaml"),
        (b"a: b: c", r"mapping values are not allowed here in .*mine.yaml"),
        (b"a: \x00", "unacceptable character"),
        (b"# \xff\na: 1", "codec can't decode byte 0xff"),
        (b"defaults:\n  - ", "Unsupported type in defaults"),
        (b"1e999", "Invalid loaded object type: float"),
        (b"a: " + b"[" * 3000, "recursion"),
    ],
)
def test_a_group_file_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, content: bytes, sentence: str
):
    mine = tmp_path / "groups" / "algo" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(content)
    with pytest.raises(UserError, match=f"cannot be composed: .*{sentence}") as caught:
        compose(["algo=mine"], mine.parents[1])
    assert "\n" not in str(caught.value)
    assert "mine" in options("algo", mine.parents[1])


def test_missing_config_dir_is_refused():
    with pytest.raises(UserError, match="'nowhere' is not a folder"):
        compose([], Path("nowhere"))


def test_recipes_and_ablations_are_listed_with_comments():
    assert options("recipe") == {"quick": "a short one", "quicker": ""}
    assert options("ablation") == {"ungated": "without the gate", "short": ""}


def test_stored_configuration_loads_equal_and_takes_overrides(tmp_path: Path):
    first = check(compose(["algo.clip=0.3"]))
    OmegaConf.save(first, tmp_path / "stored.yaml")
    again = check(load(tmp_path / "stored.yaml", []))
    assert again == first
    assert check(load(tmp_path / "stored.yaml", ["steps=3"])).steps == 3


def test_group_override_of_a_stored_configuration_is_refused(tmp_path: Path):
    OmegaConf.save(compose([]), tmp_path / "stored.yaml")
    with pytest.raises(UserError, match="'algo=second' chooses a group"):
        load(tmp_path / "stored.yaml", ["algo=second"])


@pytest.mark.parametrize("text", ["[1, 2]", "{", ""])
def test_unreadable_stored_configuration_is_refused(tmp_path: Path, text: str):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(UserError):
        check(load(tmp_path / "bad.yaml", []))


@pytest.mark.parametrize("text", ["", "s", "choices: 3", "choices: ${steps}"])
def test_a_stored_configuration_without_choices_is_refused(tmp_path: Path, text: str):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(UserError, match=r"bad.yaml' does not say what was chosen; name"):
        load(tmp_path / "bad.yaml", ["search=tot"])


def test_missing_stored_configuration_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "none.yaml", [])


def test_own_conf_folder_wins_over_the_shipped_one(conf: Path, monkeypatch: pytest.MonkeyPatch):
    assert conf_folder() == conf.resolve()
    monkeypatch.chdir(conf.parent.parent)
    assert conf_folder() != conf.resolve()


@pytest.mark.parametrize(
    "target, remedy",
    [
        ("agentrl_cli.algos.nlac.NLAC", "write agentrl_cli.algos.NLAC"),
        ("agentrl_cli.algos.nlac.algorithm.NLAC", "write agentrl_cli.algos.NLAC"),
        ("agentrl_cli.collect.PlayCollector", "write agentrl_cli.rollout.PlayCollector"),
        ("agentrl_cli.algos.stepagent.Implicit", "write agentrl_cli.algos.StepAgentImplicit"),
        ("agentrl_cli.envs.tau.env.Tau", "write agentrl_cli.envs.TauBench"),
    ],
)
def test_a_target_that_names_a_file_is_told_its_public_name(target: str, remedy: str):
    errors: list[str] = []
    assert validate_target({"_target_": target}, "algo", errors) is None
    assert errors == [f"algo._target_ '{target}' is no public name; {remedy}"]


def test_a_new_file_of_the_package_needs_no_public_name():
    assert not is_private("agentrl_cli.envs.math.grader.Grade")


def test_a_stored_configuration_of_before_0_2_is_one_sentence(tmp_path: Path):
    (tmp_path / "config.yaml").write_text(
        "algo: {_target_: agentrl_cli.algos.grpo.GRPO, kl: 0.0}\n"
    )
    (tmp_path / "checkpoints" / "step-000024").mkdir(parents=True)
    with pytest.raises(UserError) as refused:
        load(tmp_path / "config.yaml", [])
    (line,) = str(refused.value).splitlines()
    assert f"init={tmp_path}" in line and "step-000024/models/policy" in line
