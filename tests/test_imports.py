"""The floors of the package: who may import whom, and what the help must not load."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_cli.config.validation import public_names
from tests.paths import ROOT

PACKAGE = ROOT / "agentrl_cli"
FILES = sorted(PACKAGE.rglob("*.py"))
FLOORS = (  # a room imports from floors below its own and from itself, for type checkers too
    {"core"},
    {"config", "envs", "generators"},
    {"models", "rollout", "runs"},
    {"algos"},
    {"report", "training"},
    {"exact_values"},
    {"cli"},
    {"api"},
)
ENGINES = {"accelerate", "hydra", "omegaconf", "ray", "vllm", "wandb"}
ENGINE_FILES = {  # an algorithm is the same whoever generates, and whoever plays
    f"agentrl_cli.generators.{file.stem}"
    for file in (PACKAGE / "generators").glob("*.py")
    if file.stem not in ("__init__", "base")
} | {"agentrl_cli.rollout.actors"}
NEVER = {  # what a room may not even name for type checkers
    "core": ENGINES | {"torch", "transformers"},
    "envs": ENGINES | {"torch", "transformers", "tokenizers", "agentrl_cli.config"},
    "rollout": ENGINES - {"ray"} | {"torch", "agentrl_cli.config"},
    "algos": ENGINES | {"transformers", "peft", "torch.distributed", "agentrl_cli.core.distributed"}
    | {f"agentrl_cli.{room}" for room in ("config", "envs", "runs")}
    | ENGINE_FILES,
    "models": ENGINES,
    "generators": ENGINES | {"agentrl_cli.config"},
    "runs": {"agentrl_cli.envs", "torch", "transformers"},
}  # fmt: skip
HEAVY = {"torch", "transformers", "hydra", "omegaconf", "wandb", "rich.console"}


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def named(node: ast.AST) -> list[str]:
    """The modules that an import statement names; `from a import b` is a.b where that is a file."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom) or node.module is None:
        return []
    folder = ROOT / node.module.replace(".", "/")
    inner = [a.name for a in node.names if (folder / f"{a.name}.py").exists()]
    return [f"{node.module}.{name}" for name in inner] or [node.module]


def imports(file: Path) -> set[str]:
    return {name for node in ast.walk(ast.parse(file.read_text())) for name in named(node)}


def rooms(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("agentrl_cli.")}


def within(name: str, forbidden: set[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in forbidden)


def test_every_package_has_a_floor():
    found = {room(file) for file in FILES} - {"__init__"}
    assert sorted(found) == sorted(name for floor in FLOORS for name in floor)
    assert len(found) <= 14


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_import_goes_up(file: Path):
    own, below = room(file), set[str]()
    for floor in FLOORS:
        if own in floor:
            break
        below |= floor
    found = imports(file)
    assert rooms(found) - below - {own} == set()
    assert {name for name in found if within(name, NEVER.get(own, set()))} == set()


def test_one_file_imports_ray():
    knowing = [file for file in FILES if any(within(name, {"ray"}) for name in imports(file))]
    assert knowing == [PACKAGE / "rollout" / "actors.py"]


def test_no_text_is_evaluated_as_code():
    wild = {"eval", "exec", "compile", "__import__"}
    for file in FILES:
        nodes = ast.walk(ast.parse(file.read_text()))
        called = [node.func for node in nodes if isinstance(node, ast.Call)]
        assert not wild & {name.id for name in called if isinstance(name, ast.Name)}, file


def loaded_by(code: str) -> set[str]:
    text = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))\n"
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("verb", [[], ["train"], ["show"], ["list"]])
def test_help_loads_no_heavy_module(verb: list[str]):
    asked = f"app({[*verb, '--help']!r}, standalone_mode=False)"
    assert not loaded_by(f"from agentrl_cli.cli.main import app\n{asked}") & HEAVY


@pytest.mark.slow
def test_wrong_word_is_refused_without_torch():
    refuse = """
from pathlib import Path
from agentrl_cli.cli.evaluate import evaluate_command
from agentrl_cli.cli.main import export
from agentrl_cli.cli.sweep import sweep
from agentrl_cli.cli.train import start
from agentrl_cli.core.errors import UserError

def evaluate(words):
    evaluate_command(None, words)

def begin_sweep(words):
    sweep(words, None, "it", 1, lambda question: True)

def write_model(words):
    export(*words, Path("somewhere"), None)

def refused(verb, text):
    try:
        verb(text.split())
    except UserError as error:
        return print(error)
    raise AssertionError(text)

for text in ("algo=grop env=twentyq", "algo=grpo env=twentyqq", "model=hff", "experiment=nope",
             "stpes=3", "steps=0", "env.truns=3 algo=self_ac", "algo=grpo model=hf",
             "algo=grpo algo.lr=3", "algo=nlac algo.optimizer.lr=three logger.rows=2"):
    for verb in (start, evaluate, begin_sweep):
        refused(verb, text)
refused(begin_sweep, "algo=grpo,nlax seed=0,1")
refused(begin_sweep, "algo=grpo,nlac algo.num_refinements=1 seed=0,1")
refused(start, "algo=grpo init=nope")
refused(write_model, "nope")
"""
    assert not loaded_by(refuse) & {"torch", "transformers", "peft", "wandb"}


def test_public_api_is_imported_lazily():
    light = loaded_by("import agentrl_cli\nassert agentrl_cli.__all__ and agentrl_cli.__version__")
    assert {name for name in light if name.startswith("agentrl_cli")} == {"agentrl_cli"}
    assert not light & (HEAVY | {"numpy", "pydantic"})
    named = loaded_by("from agentrl_cli import *\nassert callable(train) and callable(grade)")
    assert not named & (HEAVY - {"omegaconf"})


@pytest.mark.parametrize("room", ["algos", "envs", "generators", "models", "rollout", "runs"])
def test_public_names_are_imported_lazily(room: str):
    light = f"import agentrl_cli.{room} as room\nassert room.__all__"
    assert not loaded_by(light) & HEAVY


@pytest.mark.parametrize("name", sorted(public_names()))
def test_public_name_can_be_imported(name: str):
    package, _, name = name.rpartition(".")
    assert getattr(importlib.import_module(package), name).__name__ == name
