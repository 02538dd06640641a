"""Composing, checking and building: every mistake is refused by name, all of them together."""

from __future__ import annotations

import shlex
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
    parse_overrides,
)
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.config.validation import settings_class
from agentrl_cli.core.errors import UserError
from tests.builders.conf_folder import FILES, NODES
from tests.builders.errors import user_error


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
    cfg = check(compose(["algo=second"]))
    assert (cfg.steps, cfg.algo.clip_eps, cfg.model.weights) == (10, 0.4, "some/where")
    assert dict(cfg.choices) == {"env": "world", "algo": "second", "model": "tiny",
                                 "recipe": None, "ablation": None}  # fmt: skip
    with pytest.raises(AttributeError):
        cfg.stepss  # noqa: B018


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
    ("override", "key", "remedy"),
    [
        ("env=worldd", "env 'worldd'", "world"),
        ("env={part: 1}", "env '{'part': 1}'", "world"),
        ("algo.clip_eps=abc", "algo.clip_eps", "'abc'"),
        ("algo.epochs=1.5", "algo.epochs", "1.5"),
        ("algo.clip_eps='0.1'", "algo.clip_eps", "'0.1'"),
        ("algo.require_optimal=maybe", "algo.require_optimal", "'maybe'"),
        ("algo.kind=medium", "algo.kind", "'soft' or 'hard'"),
        (f"algo.clip_eps={10**400}", "algo.clip_eps", "10000"),
        ("algo.clip_esp=1", "'algo.clip_esp'", "'algo.clip_eps'"),
        ("algo.advanced.round=1", "'algo.advanced.round'", "'algo.advanced.rounds'"),
        ("algo.advanced=3", "algo.advanced", "3"),
        ("algo.advanced._target_=x.Y", "algo.advanced._target_", "Advanced"),
        ("algo.advanced.weights=[1,x]", "algo.advanced.weights[1]", "'x'"),
        ("env.parts.0.size=x", "env.parts[0].size", "'x'"),
        ("env.helper.size=x", "env.helper.size", "'x'"),
        ("model.lora={rank:x}", "model.lora.rank", "'x'"),
        ("model.lora={rank:0,alpha:1,targets:[]}", "model.lora.rank", "greater than or equal to 1"),
        ("stepss=1", "'stepss'", "'steps'"),
        ("steps=0", "steps", "0"),
        ("~algo.clip_eps", "algo.clip_eps", "algo.clip_eps=VALUE"),
        ("~env", "env", "agentrl list env"),
        ("model.path=${env.nowhere}", "model", "'env.nowhere'"),
        ("algo._target_=sample_nodes.Nothing", "algo._target_", "'sample_nodes.Nothing'"),
        ("algo._target_=pathlib.Path", "algo._target_", "@dataclass"),
        ("algo._target_=agentrl_cli.algos.grpo.GRPO", "algo._target_", "agentrl_cli.algos.GRPO"),
    ],
)
def test_mistake_is_one_line_with_its_key(override: str, key: str, remedy: str):
    lines = [line for line in refusal(override) if key in line and remedy in line]
    assert len(lines) == 1


def test_all_mistakes_are_reported_together():
    lines = refusal("env=worldd", "algo=third", "algo.clip_eps=1", "steps=many", "model.dtypes=x")
    assert [line.split()[0] for line in lines][:2] == ["env", "algo"]
    assert any(line.startswith("steps must") for line in lines)
    assert any("'model.dtypes'" in line for line in lines)
    assert not any("algo.clip_eps" in line for line in lines)


def test_check_gives_values_their_declared_type():
    cfg = check(compose(["algo.clip_eps=1", "name=7"]))
    assert (cfg.algo.clip_eps, type(cfg.algo.clip_eps), cfg.name) == (1.0, float, "7")


def test_settings_class_beside_a_class_is_its_schema(tmp_path: Path):
    """The class itself is not imported before its settings are valid."""
    assert settings_class("sample_nodes.Light").__name__ == "LightConfig"  # type: ignore[union-attr]
    with pytest.raises(UserError) as error:
        check(compose(["algo=light", "algo.low=3", "algo.high=2"]))
    assert error.value.code == "low-above-high"
    assert build(check(compose(["algo=light"])).algo).low == 1


def test_build_constructs_nested_nodes_and_takes_given_objects():
    cfg = check(compose([]))
    engine = object()
    world = build(cfg.env, engine=engine)
    assert world.engine is engine
    sizes = [part.size for part in (world.part, *world.parts, world.helper)]
    assert sizes == [3, 1, 2, 7]
    assert (world.folder, world.shape) == (Path("some/where"), (2, 3))


def test_build_resolves_and_injects():
    cfg = compose(["rollout.size=${steps}"])
    assert (build(cfg.rollout).size, build(cfg.rollout, size=5).size) == (10, 5)
    with user_error("unknown-key", "sizes"):
        build({"_target_": "sample_nodes.Part", "size": 1, "sizes": 1})
    with user_error("unknown-target", "model"):
        build(cfg.model)


def test_optional_nested_dataclass_is_null_or_built():
    lora = "model.lora={rank:8,alpha:16,targets:[q_proj]}"
    assert as_dataclass(compose([]).model, ModelConfig).lora is None
    built = as_dataclass(check(compose([lora])).model, ModelConfig)
    assert built.lora is not None
    assert (built.lora.rank, built.lora.alpha, built.lora.targets) == (8, 16, ["q_proj"])


def test_config_dir_adds_a_users_groups(tmp_path: Path):
    mine = tmp_path / "my groups" / "algo"
    mine.mkdir(parents=True)
    (mine / "third.yaml").write_text("# my own\ndefaults: [first, _self_]\nclip_eps: 0.9\n")
    cfg = check(compose(["algo=third"], [mine.parent]))
    assert cfg.algo.clip_eps == 0.9
    own = {"first": "the first of two", "light": "", "second": "", "third": "my own"}
    assert options("algo", [mine.parent]) == own


def test_several_folders_add_their_groups(tmp_path: Path):
    for name in ("third", "fourth"):
        (tmp_path / name / "algo").mkdir(parents=True)
        text = f"defaults: [first, _self_]\nclip_eps: 0.{len(name)}\n"
        (tmp_path / name / "algo" / f"{name}.yaml").write_text(text)
    both = [tmp_path / "third", tmp_path / "fourth"]
    chosen = [check(compose([f"algo={name}"], both)).algo.clip_eps for name in ("third", "fourth")]
    assert chosen == [0.5, 0.6]
    (tmp_path / "fourth" / "algo" / "third.yaml").write_text("{}")
    for folders, whose in (([*both], str(both[0])), ([tmp_path / "taken"], "agentrl")):
        taken = folders[-1] / "algo" / "first.yaml"
        if whose == "agentrl":
            taken.parent.mkdir(parents=True)
            taken.write_text("{}")
        with pytest.raises(UserError, match=whose) as caught:
            options("algo", folders)
        assert caught.value.code == "option-exists"


@pytest.mark.parametrize(
    "content",
    [b"a: [", b"a: b: c", b"a: \x00", b"# \xff\na: 1", b"defaults:\n  - ", b"1e999",
     b"a: " + b"[" * 3000],
)  # fmt: skip
def test_unreadable_group_file_is_one_line(tmp_path: Path, content: bytes):
    mine = tmp_path / "groups" / "algo" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(content)
    with pytest.raises(UserError) as caught:
        compose(["algo=mine"], [mine.parents[1]])
    assert caught.value.code == "cannot-compose" and "\n" not in str(caught.value)
    assert "mine" in options("algo", [mine.parents[1]])


def test_recipes_and_ablations_are_listed_with_comments():
    assert options("recipe") == {"quick": "a short one", "quicker": ""}
    assert options("ablation") == {"ungated": "without the gate", "short": ""}


def test_stored_configuration_loads_equal(tmp_path: Path):
    file = tmp_path / "stored.yaml"
    first = check(compose(["algo.clip_eps=0.3"]))
    OmegaConf.save(first, file)
    assert check(load(file, [])) == first
    assert check(load(file, ["steps=3"])).steps == 3
    with user_error("group-of-stored", "algo=second"):
        load(file, ["algo=second"])


@pytest.mark.parametrize("text", ["[1, 2]", "{", None])
def test_unreadable_stored_configuration_is_refused(tmp_path: Path, text: str | None):
    if text is not None:
        (tmp_path / "bad.yaml").write_text(text)
    with user_error("unreadable-configuration", tmp_path / "bad.yaml"):
        load(tmp_path / "bad.yaml", [])


@pytest.mark.parametrize("text", ["", "s", "choices: 3", "choices: ${steps}"])
def test_configuration_without_choices_is_refused(tmp_path: Path, text: str):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(UserError):
        load(tmp_path / "bad.yaml", ["search=tot"])


def test_own_conf_folder_wins_over_the_shipped_one(conf: Path):
    assert conf_folder() == conf.resolve()
    (conf / "algo").rename(conf / "other")  # a folder of another program
    assert conf_folder() != conf.resolve()


@pytest.mark.parametrize(
    "value",
    [
        "a=b", "/d/step=3 (copy)/x.jsonl", "a~b", "a#b", "a[b]", "f(x)", "/d/naïve", "日本", "x{1}",
        "a&b;c!d^e`f<g>",
    ],
)  # fmt: skip
def test_value_is_the_text_as_written(value: str):
    (item,) = parse_overrides([f"model.path={value}"])
    assert item.value() == value


def test_text_that_looks_like_a_number_stays_text():
    given = ["name=1e3", "model.path=007", "runs=1_000", "init=true"]
    cfg = check(compose(["algo=second", *given]))
    assert [cfg.name, cfg.model.path, cfg.runs, cfg.init] == ["1e3", "007", "1_000", "true"]


@pytest.mark.parametrize("value", ["[a", "a,b", "it's", 'a "b"', "{a", "[a=b]", "'a", "a\\'b"])
def test_ambiguous_value_is_refused_with_its_quoted_form(value: str):
    with pytest.raises(UserError) as caught:
        parse_overrides([f"model.path={value}"])
    assert caught.value.code == "invalid-override"
    (item,) = parse_overrides(shlex.split(str(caught.value).partition("quote it: ")[2]))
    assert item.value() == value


def test_spaces_around_a_key_do_not_count():
    (item,) = parse_overrides(["seed = 1"])
    assert (item.key_or_group, item.value()) == ("seed", 1)
    with pytest.raises(UserError) as caught:
        parse_overrides(["seed..x=1"])
    assert "quote" not in str(caught.value)  # it would not help


def test_home_folder_is_expanded_in_paths(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/of")
    cfg = check(compose(["algo=second", "model.path=~/x=1", "runs=~"]))
    assert (cfg.model.path, cfg.runs) == ("/home/of/x=1", "/home/of")
    assert check(compose(["algo=second", "model.path=a~/x"])).model.path == "a~/x"
