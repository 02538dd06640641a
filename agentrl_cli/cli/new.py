"""`agentrl new env|algo NAME`: a package of one's own that works as it stands, to be changed."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.metadata import requires
from pathlib import Path

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError

SKELETON = Path(__file__).parent / "skeleton"
KINDS = {
    "env": "agentrl train algo=grpo env={name} model.weights=null steps=1",
    "algo": "agentrl train algo={name} env=twentyq steps=1",
}


def write_package(kind: str, name: str, parent: Path = Path(".")) -> tuple[Path, str]:
    """The new folder, and the command that trains with what it holds. Raises UserError for another
    kind, a name that is no module's, and a folder that there is."""
    if kind not in KINDS:
        raise UserError(f"'{kind}' cannot be written; choose env or algo")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UserError(f"'{name}' is no name of a module; use small letters, digits and _")
    if name in sys.stdlib_module_names or name in _dependencies():
        raise UserError(f"'{name}' is a module that Python or agentrl needs; choose another name")
    folder = parent / name
    if folder.exists():
        raise UserError(f"'{folder}' exists; choose another name")
    texts = {
        "pyproject.toml": "pyproject.toml.txt",
        f"{name}/{kind}.py": f"{kind}.py.txt",
        f"conf/{kind}/{name}.yaml": f"{kind}.yaml.txt",
        f"tests/test_{name}.py": f"{kind}_test.py.txt",
    }
    with files.explain_write_errors(parent, "go to another folder"):
        for path, source in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            text = (SKELETON / source).read_text(encoding="utf-8")
            (folder / path).write_text(_named(text, name), encoding="utf-8")
        (folder / name / "__init__.py").write_text("")
    return folder, f"{KINDS[kind].format(name=name)} --config-dir {folder}/conf"


def _dependencies() -> set[str]:
    """Names of packages that agentrl asks for, extras included, as modules are spelt."""
    found = (re.match(r"[\w.-]+", text) for text in requires("agentrl-cli") or ())
    return {match[0].lower().replace("-", "_") for match in found if match}


def _named(text: str, name: str) -> str:
    """The text with the module's name, and the class's made of it."""
    class_name = "".join(part.capitalize() for part in name.split("_"))
    return text.replace("CLASS", class_name).replace("NAME", name)
