"""Who may import whom (the architecture's dependency direction); what the help must not load."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "agentrl_cli"
FILES = sorted(PACKAGE.rglob("*.py"))
LEAVES = {"types", "errors", "settings", "jsonl"}
WORLD = {"types", "errors"}  # what parts that configuration does not reach may know
MAY = {  # what a part may import besides itself, at its top or inside a function
    "__init__": set(),
    "types": set(),
    "errors": set(),
    "settings": {"errors"},
    "jsonl": {"errors"},
    "index": {"errors", "jsonl", "types"},
    "provenance": set(),
    "schema": set(),
    "config": {"errors", "jsonl", "schema", "settings"},
    "envs": WORLD | {"report.statistics"},
    "generators": WORLD,
    "models": LEAVES | {"algos.base"},
    "losses": {"models.policy"},
    "chat": WORLD,
    "buffer": WORLD | {"jsonl"},
    "demos": WORLD | {"chat", "envs.base"},
    "experts": LEAVES | {"config", "envs.base"},
    "rollout": WORLD | {"chat", "generators.base", "envs.base"},
    "collect": WORLD | {"chat", "generators.base", "envs.base", "rollout"},
    "algos": WORLD
    | {
        "generators.base",
        "losses",
        "buffer",
        "models.policy",
        "models.packable",
        "models.shadow",
        "rollout",
    },
    "corpora": WORLD
    | {"algos.nlac", "algos.language", "chat", "collect", "envs", "find", "models.load", "run"},
    "optimizer": {"algos.base"},
    "learner": WORLD | {"algos.base", "models", "optimizer"},
    "meta": {"errors", "jsonl"},
    "lock": set(),
    "examples": set(),
    "run": LEAVES | {"index", "lock", "meta", "provenance"},
    "find": {"errors", "jsonl", "run"},
    "loggers": WORLD,
    "report": WORLD | {"algos.language", "find", "index", "jsonl", "run"},
    "assemble": LEAVES
    | {"algos.base", "allocator", "buffer", "chat", "config", "demos", "envs.base", "experts"}
    | {"find", "generators.base", "learner", "models.policy", "models.set", "rollout", "run"},
    "search": WORLD | {"generators.base"},
    "evaluate": WORLD
    | {"assemble", "config", "find", "report.statistics", "rollout", "run", "search"},
    "train": LEAVES
    | {"algos.samples", "assemble", "config", "demos", "envs.base", "evaluate", "learner"}
    | {"loggers"}
    | {"find", "models.policy", "report.summary", "rollout", "run"},
    "export": LEAVES | {"algos.base", "config", "find", "models.load", "models.set", "run"},
    "play": WORLD | {"config", "find", "schema", "run", "report", "envs.base", "evaluate"},
    "reproduce": LEAVES | {"config", "run", "schema"},
    "point": {"lock", "report.listing", "run"},
    "sweep": LEAVES | {"config", "find", "point", "report.listing", "report.text", "run"},
    "looking": WORLD
    | {"config", "examples", "find", "jsonl", "envs.math", "schema", "run", "report"},
    "cli": WORLD
    | {
        "evaluate",
        "examples",
        "experts",
        "export",
        "looking",
        "play",
        "reproduce",
        "sweep",
        "train",
    },
}
ENGINES = {"accelerate", "hydra", "omegaconf", "vllm", "wandb"}
NEVER = {  # what a file may not even name for type checkers
    "types": ENGINES | {"torch", "transformers"},
    "envs": ENGINES | {"torch", "transformers", "tokenizers"},
    "algos": ENGINES | {"agentrl_cli.envs", "agentrl_cli.run", "transformers", "peft"},
    "losses": ENGINES | {"transformers", "peft"},
    "rollout": ENGINES | {"torch", "transformers"},
    "models": ENGINES,
    "generators": ENGINES,
}
HEAVY = {"torch", "transformers", "hydra", "omegaconf", "wandb", "rich.console"}


def part(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def named(node: ast.stmt) -> list[str]:
    """The modules that an import statement names; `from a import b` is a.b where that is a file."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom) or node.module is None:
        return []
    folder = ROOT / node.module.replace(".", "/")
    inner = [a.name for a in node.names if (folder / f"{a.name}.py").exists()]
    return [f"{node.module}.{name}" for name in inner] or [node.module]


def statements(tree: ast.AST, for_types: bool) -> Iterator[ast.stmt]:
    """All statements, at any depth; those under `if TYPE_CHECKING` only when asked for."""
    for node in ast.iter_child_nodes(tree):
        skipped = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if isinstance(node, ast.stmt):
            yield node
        if for_types or not skipped:
            yield from statements(node, for_types)


def imports(file: Path, for_types: bool) -> set[str]:
    """Dotted names of all modules that the file imports, inside functions too."""
    tree = ast.parse(file.read_text())
    return {name for node in statements(tree, for_types) for name in named(node)}


def within(name: str, allowed: set[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in allowed)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_part_imports_only_what_it_may_know(file: Path):
    found = imports(file, for_types=False) - {"agentrl_cli"}
    inner = {n.removeprefix("agentrl_cli.") for n in found if n.startswith("agentrl_cli.")}
    assert {name for name in inner if not within(name, MAY[part(file)] | {part(file)})} == set()
    everything = imports(file, for_types=True)
    assert {name for name in everything if within(name, NEVER.get(part(file), set()))} == set()


def test_nothing_evaluates_text_as_code():
    wild = {"eval", "exec", "compile", "__import__"}
    for file in FILES:
        nodes = ast.walk(ast.parse(file.read_text()))
        called = [node.func for node in nodes if isinstance(node, ast.Call)]
        assert not wild & {name.id for name in called if isinstance(name, ast.Name)}, file


def test_every_algorithm_but_the_base_is_one_file():
    folders = [path.name for path in (PACKAGE / "algos").iterdir() if path.is_dir()]
    assert [name for name in folders if name != "__pycache__"] == []


@pytest.mark.parametrize("verb", [[], ["train"], ["show"], ["list"]])
def test_help_loads_no_heavy_module(verb: list[str]):
    code = (
        "import sys, json\n"
        "from agentrl_cli.cli import app\n"
        f"app({[*verb, '--help']!r}, standalone_mode=False)\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert not loaded & HEAVY
