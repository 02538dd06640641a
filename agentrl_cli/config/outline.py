"""The fields of this package's dataclasses, read from their source. A configuration is checked
against these outlines before the classes are imported, which takes seconds for those that need
torch. Nothing is run here: names, types and whether there is a default are all that is read."""

from __future__ import annotations

import ast
import builtins
import importlib
from dataclasses import field, is_dataclass, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from agentrl_cli.config.schema import PACKAGE, hint, public_names

ROOT = Path(__file__).parents[2]


def outlined(node: Any) -> Any:
    """A node of configuration, in which each `_target_` that is a public name is its outline."""
    if isinstance(node, list):
        return [outlined(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: outlined(value) for key, value in node.items()}
    if "_target_" in node:
        found["_target_"] = outline(str(node["_target_"])) or node["_target_"]
    return found


def outline(target: str) -> type | None:
    """A dataclass with the fields of the one that a public name names: the same names, types and
    demands. None for any other target."""
    if target not in public_names().values():
        return None
    module, _, name = target.rpartition(".")
    found = _meaning(module, name)
    return found if is_dataclass(found) and isinstance(found, type) else None


@cache
def _meaning(module: str, name: str) -> Any:
    """What a name at the top of a module stands for among types: the outline of a dataclass, a type
    of Python's own library, or `object` for any other class or function. Raises KeyError where the
    module does not define it when it runs."""
    defined = _definitions(module)
    if name not in defined and hasattr(builtins, name):
        return getattr(builtins, name)
    found = defined[name]
    if isinstance(found, ast.stmt):
        return _outline(module, found) if _is_dataclass(found) else object
    if isinstance(found, ast.expr):
        return _kind(module, found)
    source, original = found
    if source.partition(".")[0] == PACKAGE:
        return _meaning(source, original)
    is_light = source in ("typing", "pathlib", "collections.abc", "dataclasses", "pydantic")
    return getattr(importlib.import_module(source), original) if is_light else object


def _outline(module: str, node: ast.ClassDef) -> type:
    """A dataclass like that of the source, on the outlines of those that it is derived from."""
    plain = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    named = [base.id for base in plain if isinstance(base, ast.Name)]
    bases: list[Any] = [_meaning(module, name) for name in named]
    found = [
        (part.target.id, _kind(module, part.annotation), field(**_default(part)))
        for part in node.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    ]
    derived_from: tuple[Any, ...] = tuple(filter(is_dataclass, bases))
    return make_dataclass(node.name, found, bases=derived_from, kw_only=True)


def _default(part: ast.AnnAssign) -> dict[str, Any]:
    """What `dataclasses.field` takes for a field with such a value: None stands for any default."""
    if part.value is None:
        return {}
    if not isinstance(part.value, ast.Call) or not _is_call(part.value, "field"):
        return {"default": None}
    given = {word.arg: word.value for word in part.value.keywords}
    has_default = "default" in given or "default_factory" in given
    init = given.get("init")
    is_set = not (isinstance(init, ast.Constant) and init.value is False)
    return {"init": is_set} | ({"default": None} if has_default else {})


def _kind(module: str, annotation: ast.expr) -> Any:
    """The type that an annotation means; `object` where a name of it is for type checkers only."""
    if ast.unparse(annotation).startswith("Annotated[") and isinstance(annotation, ast.Subscript):
        return _kind(module, annotation.slice.elts[0])  # pyright: ignore
    names = {}
    for name in (part.id for part in ast.walk(annotation) if isinstance(part, ast.Name)):
        if name in _definitions(module) or hasattr(builtins, name):
            names[name] = _meaning(module, name)
    return hint(ast.unparse(annotation), names)


@cache
def _definitions(module: str) -> dict[str, Any]:
    """By name what stands at the top of a module: a class or function, a value, or the module and
    the name of what is imported."""
    path = ROOT.joinpath(*module.split("."))
    stub, package = path / "__init__.pyi", path / "__init__.py"
    file = next((file for file in (stub, package) if file.is_file()), path.with_suffix(".py"))
    home = module if path.is_dir() else module.rpartition(".")[0]
    found: dict[str, Any] = {}
    for part in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(part, ast.ClassDef | ast.FunctionDef):
            found[part.name] = part
        elif isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
            found[part.targets[0].id] = part.value
        elif isinstance(part, ast.ImportFrom):
            source = f"{home}.{part.module}" if part.level else str(part.module)
            found |= {item.asname or item.name: (source, item.name) for item in part.names}
    return found


def _is_dataclass(node: ast.stmt) -> TypeGuard[ast.ClassDef]:
    marks = node.decorator_list if isinstance(node, ast.ClassDef) else []
    return any(_is_call(mark, "dataclass") for mark in marks)


def _is_call(node: ast.expr, name: str) -> bool:
    """Whether a function of that name is called, or named as a decorator."""
    called = node.func if isinstance(node, ast.Call) else node
    return isinstance(called, ast.Name) and called.id == name
