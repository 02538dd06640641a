"""`agentrl new env|algo NAME`: write a package that works as it stands, to be changed."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.metadata import requires
from pathlib import Path

from agentrl_cli.config.compose import options
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError

SKELETON = Path(__file__).parent / "skeleton"
COMMANDS = {
    "env": "agentrl train algo=grpo env={name} model.weights=null steps=1",
    "algo": "agentrl train algo={name} env=twentyq steps=1",
}


def write_package(kind: str, name: str, parent: Path = Path(".")) -> tuple[Path, str]:
    """Return the new folder, and the command that trains with its content.

    Raises UserError for an unknown kind, an invalid or used name, and an existing folder.
    """
    folder = parent / name
    if kind not in COMMANDS:
        raise UserError(f"'{kind}' cannot be written; choose env or algo", code="unknown-kind")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        line = f"'{name}' is not a name of a module; use small letters, digits and _"
        raise UserError(line, code="invalid-name")
    packages = (re.match(r"[\w.-]+", text) for text in requires("agentrl-cli") or ())
    used = {match[0].lower().replace("-", "_") for match in packages if match}
    if name in used | sys.stdlib_module_names:
        line = f"'{name}' is a module that Python or agentrl needs; choose another name"
        raise UserError(line, code="used-name")
    if name in options(kind):
        line = f"'{name}' is one of agentrl's own, see `agentrl list {kind}`; choose another name"
        raise UserError(line, code="option-exists")
    if folder.exists():
        raise UserError(f"'{folder}' exists; choose another name", code="exists")
    texts = {
        "pyproject.toml": "pyproject.toml.txt",
        f"{name}/{kind}.py": f"{kind}.py.txt",
        f"conf/{kind}/{name}.yaml": f"{kind}.yaml.txt",
        f"tests/test_{name}.py": f"{kind}_test.py.txt",
    }
    class_name = "".join(part.capitalize() for part in name.split("_"))
    with files.explain_write_errors(parent, "go to another folder"):
        for path, source in texts.items():
            text = (SKELETON / source).read_text(encoding="utf-8")
            text = text.replace("CLASS", class_name).replace("NAME", name)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
        (folder / name / "__init__.py").write_text("")
    return folder, f"{COMMANDS[kind].format(name=name)} --config-dir {folder}/conf"
