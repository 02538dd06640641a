"""Damaged configurations: overrides, YAML of a user's own groups, and the stored file of a run.
Each is composed and checked, and in some cases the parts of the run are built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st
from omegaconf import OmegaConf

from agentrl_cli.config.compose import build, check, compose, groups, load, options
from agentrl_cli.core import files
from agentrl_cli.training.build import build_parts
from stress.fuzzing.mutations import SNIPPETS, Draw, any_text, mutated_bytes
from stress.fuzzing.target import Target

PLAYED = (["algo=grpo", "env=twentyq"], ["algo=nlac", "env=arithmetic"],
          ["algo=ppo", "env=tau_mini"], ["algo=self_ac", "env=arithmetic"],
          ["algo=stepagent_inverse", "env=twentyq"],
          ["algo=archer_small", "env=tau_mini"], ["algo=dpo"], ["algo=sft"])  # fmt: skip
VALUES = (
    "", "null", "true", "-1", "0", "1", "2", "3.5", "1e309", "-1e309", "nan", "inf", "-inf",
    "1e-320", "9" * 25,
    "9" * 400, "2147483648", "9223372036854775808", "1_000", "0x1F", "''", "' '", "'${env}'",
    "${oc.env:HOME}",
    "${nosuch}", "${..steps}", "${steps}", "${seed}", "${algo}", "${oc.decode:[}", "${", "[]",
    "[1,2]", "[1,2",
    "{}", "{a: 1}", "{a: {b: [1, null]}}", "{_target_: os.system}", "{_target_: }",
    "{_target_: .x.Y}",
    "{_target_: agentrl_cli.envs.TwentyQ}", "{_target_: agentrl_cli.algos.GRPO}", "???", "é",
    "\U0001f600", "\x00",
    "a b", "1,2", "range(1,3)", "glob(*)", "choice(a,b)", "int(x)", "json_str([)", "float(nan)",
    "$", "\\", "'",
    '"', "a:b", "a=b", "[" * 60, "{a: " * 40 + "1" + "}" * 40, "x" * 300, "/dev/zero", "/", "..",
    "tiny", "small",
    "test", "[test]", "[test,test]", "expert:3", "expert:-1", "expert:x",
    "expert:99999999999999999999", "none",
)  # fmt: skip
NUMBERS = ("-1", "0", "1", "2", "3", "7", "0.5", "1.5", "1e-9", "1e9", "1e308", "nan", "inf",
"-0.0", "100000",
           "2147483647", "2147483648", "9223372036854775807", "9223372036854775808",
           "9" * 30)  # fmt: skip
KEYS = ("algo", "env", "model", "hardware", "hydra", "hydra.run.dir", "hydra/launcher", "choices",
"choices.algo",
        "env@x", "env@_global_", "_target_", "algo._target_", "steps.x", "steps[0]", "a.b.c", "",
        ".", "..", "steps.",
        ".steps", "é", "defaults", "experiment", "search", "logger", "rollout", "data", "eval",
        "lr", "x" * 200,
        "algo.optimizer._target_", "env.llm", "env.llm._target_", "model.lora", "algo.prompts",
        "algo.advanced",
        "algo.improvement_check", "hardware.generator", "override env",
        "override /env@_global_.env")  # fmt: skip
PAGE = 4000  # bytes of a user's own file, which is trusted as code is
AMOUNTS = {"hardware.threads"}  # 1024 of them would slow this machine
PREFIXES = ("", "", "", "", "+", "++", "~", "!")
TREES = (
    "_target_: agentrl_cli.envs.TwentyQ\nworld: small\nturns: 12\nreward: win\nfarewell: graded\n"
    "test_objects: 40\nsplit_seed: 0\nshow_turns_left: true\n",
    "# @package _global_\ndefaults:\n  - override /algo: grpo\n  - override /env: twentyq\n  - "
    "_self_\n"
    "steps: 3\nalgo: {clip: 0.1}\n",
    "defaults:\n  - twentyq\n  - _self_\nturns: 5\n",
    "defaults:\n  - override /rollout@_global_.rollout: solve\n  - _self_\n_target_: "
    "agentrl_cli.envs.MathEnv\n",
    "a: &a {b: 1}\nc: *a\nd: ${a.b}\n",
)  # fmt: skip
Case = tuple[
    str, Any, tuple[str, ...], bool
]  # the kind, the file's bytes, overrides, whether to build


def target(home: Path) -> Target:
    """Return the target of configurations. `home` is a folder for files."""
    checked = [check(compose([*words, "model.weights=null"])) for words in PLAYED]
    flat = [files.flatten(OmegaConf.to_container(cfg)) for cfg in checked]
    stored = [OmegaConf.to_yaml(cfg).encode() for cfg in checked]
    names = {group: sorted(options(group)) for group in groups()}

    @st.composite
    def cases(draw: Draw) -> Case:
        kind = draw(st.sampled_from(("overrides", "overrides", "group", "file", "file", "build")))
        number = draw(st.integers(0, len(PLAYED) - 1))
        known = flat[number]
        if kind == "file":
            change = _changed_leaf(draw, known) if draw(st.booleans()) else None
            content = change or draw(mutated_bytes(stored[number]))
            return kind, content, tuple(_overrides(draw, known, names, 1)), False
        if kind == "group":
            tree = draw(mutated_bytes(draw(st.sampled_from(TREES)).encode()))
            return kind, tree[:PAGE], (draw(st.sampled_from(("env=fuzz", "+env=fuzz"))),), False
        if kind == "build" and draw(st.integers(0, 3)) == 0:
            key = draw(st.sampled_from(sorted(known.keys() - AMOUNTS)))
            return (
                "overrides",
                b"",
                (*PLAYED[number], f"{key}={draw(st.sampled_from(NUMBERS))}"),
                True,
            )
        return "overrides", b"", (*PLAYED[number][:1], *_overrides(draw, known, names, 3)), False

    def run(case: Case) -> None:
        kind, content, overrides, builds = case
        folder = None
        if kind == "file":
            (home / "config.yaml").write_bytes(content)
            checked = check(load(home / "config.yaml", list(overrides)))
        else:
            if kind == "group":
                folder = home / "groups"
                (folder / "env").mkdir(parents=True, exist_ok=True)
                (folder / "env" / "fuzz.yaml").write_bytes(content)
            more = ["model.weights=null"] if builds else []
            checked = check(compose([*overrides, *more], [folder] if folder else None))
        _built(checked, builds)

    return Target(cases(), run, _named)


def _built(cfg: Any, whole: bool) -> None:
    """Build the environment and the algorithm of a checked configuration, or all parts of a
    run."""
    if whole:
        build_parts(cfg, None)
        return
    build(cfg.env)
    build(cfg.algo)
    build(cfg.rollout)


def _overrides(
    draw: Draw, known: dict[str, Any], names: dict[str, list[str]], most: int
) -> list[str]:
    """Return up to `most` overrides with a wrong key, value or form."""
    return [_override(draw, known, names) for _ in range(draw(st.integers(0, most)))]


def _override(draw: Draw, known: dict[str, Any], names: dict[str, list[str]]) -> str:
    way = draw(st.integers(0, 9))
    if way == 0:
        return draw(any_text())
    if way == 1:
        group = draw(st.sampled_from(sorted(names)))
        return f"{draw(st.sampled_from(PREFIXES))}{group}={_option(draw, names[group])}"
    key = draw(st.sampled_from(sorted(known) if way < 8 else KEYS))
    if way == 2:
        key = f"{key}{draw(st.sampled_from(('x', '.x', '.', '[0]', '@y', ' ')))}"
    return f"{draw(st.sampled_from(PREFIXES))}{key}={_value(draw)}"


def _option(draw: Draw, names: list[str]) -> str:
    """Return an option, which usually exists."""
    if draw(st.integers(0, 2)):
        return draw(st.sampled_from(names))
    return draw(st.sampled_from(("nosuch", "null", "[twentyq]", "../config", "small/x", *names)))


def _value(draw: Draw) -> str:
    return draw(st.one_of(st.sampled_from(VALUES), st.sampled_from(NUMBERS), any_text()))


def _changed_leaf(draw: Draw, known: dict[str, Any]) -> bytes:
    """Return a stored configuration as YAML, with one or two leaves changed."""
    tree: dict[str, Any] = {}
    for key, value in known.items():
        *path, last = key.split(".")
        node = tree
        for name in path:
            node = node.setdefault(name, {})
        node[last] = value
    leaves = (VALUES, NUMBERS, SNIPPETS)
    given = {}
    for number in range(draw(st.integers(1, 2))):
        *path, last = draw(st.sampled_from(sorted(known))).split(".")
        node = tree
        for name in path:
            node = node[name]
        node[last] = f"qqfuzz{number}qq"
        given[node[last]] = draw(st.sampled_from(draw(st.sampled_from(leaves))))
    text = yaml.safe_dump(tree, sort_keys=False)
    for mark, value in given.items():
        text = text.replace(mark, value)
    return text.encode("utf-8", "surrogatepass")


def _named(case: Case) -> list[str]:
    """Return the keys and values of the case. A refusal must contain one of these words."""
    kind, _, overrides, _ = case
    if kind != "overrides":
        return []
    keys = [text.partition("=")[0].strip("+~!").partition("@")[0] for text in overrides]
    ends = [end for key in keys for end in (key.partition(".")[0], key.rpartition(".")[2])]
    values = [text.partition("=")[2] for text in overrides]
    return [*ends, *overrides, *values, *map(_as_read, values), "override", "composed"]


def _as_read(value: str) -> str:
    """Return a number as it is shown after reading: 1e9 is 1000000000.0."""
    try:
        return str(float(value))
    except ValueError:
        return value
