"""Who may import whom (the architecture's dependency direction); what the help must not load."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "agentrl_cli"
LEAVES = {"types", "errors", "settings", "jsonl"}
MAY = {
    "types": set(),
    "errors": set(),
    "settings": set(),
    "jsonl": {"errors"},
    "provenance": set(),
    "schema": set(),
    "envs": LEAVES | {"envs"},
    "generators": LEAVES | {"generators", "models"},
    "models": LEAVES | {"models", "algos"},
    "losses": {"models"},
    "chat": LEAVES,
    "buffer": LEAVES,
    "algos": LEAVES | {"algos", "losses", "chat", "buffer", "generators", "models", "rollout"},
    "optimizer": LEAVES | {"models", "algos"},
    "learner": LEAVES | {"models", "algos", "optimizer"},
    "rollout": LEAVES | {"chat", "generators", "envs"},
    "collect": LEAVES | {"chat", "generators", "envs", "rollout"},
    "config": LEAVES | {"schema"},
    "run": LEAVES | {"provenance"},
    "loggers": LEAVES,
    "report": LEAVES | {"run", "report"},
    "play": LEAVES | {"config", "schema", "run", "report", "envs"},
}
FORBIDDEN = {
    "envs": {"torch", "transformers", "tokenizers", "omegaconf", "hydra"},
    "algos": {"hydra", "omegaconf", "accelerate", "vllm", "wandb"},
    "types": {"torch"},
    "cli": {"torch", "transformers", "hydra", "omegaconf", "rich", "wandb"},
}


def imports(file: Path) -> set[str]:
    """Dotted names that the file imports when loaded: not for type checkers, not in functions."""
    found: set[str] = set()
    for node in _running(ast.parse(file.read_text()).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "agentrl_cli":
            found |= {f"agentrl_cli.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def _running(body: list[ast.stmt]) -> list[ast.stmt]:
    plain = [node for node in body if not isinstance(node, ast.If | ast.FunctionDef | ast.ClassDef)]
    tried = [inner for node in body if isinstance(node, ast.Try) for inner in node.body]
    return plain + tried


def part(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_part_imports_only_what_it_may_know(file: Path):
    names = imports(file)
    inner = {name.split(".")[1] for name in names if name.startswith("agentrl_cli.")}
    outer = {name.split(".")[0] for name in names}
    assert not outer & FORBIDDEN.get(part(file), set())
    if part(file) in MAY:
        assert inner - {"__version__"} <= MAY[part(file)]


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
    assert not loaded & {"torch", "transformers", "hydra", "omegaconf", "wandb", "rich.console"}
