"""Read τ-bench's tables, tasks, policies and tool schemas from a user's folder. None of it ships.

The folder is a checkout of the benchmark (its Python files are parsed and never run), or it holds
the same data as JSON: DOMAIN/TABLE.json, tasks_SPLIT.json, tools.json and policy.md.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError, create_model

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.envs.tau import airline, retail
from agentrl_cli.envs.tau.tools import Domain, SharedTable

SPLITS = ("train", "dev", "test")  # τ-bench's names
DOMAIN_FOLDERS = ("", "tau_bench/envs/", "envs/")  # possible parents of a domain's folder
READ_ERRORS = (OSError, ValueError, LookupError, TypeError, SyntaxError, RecursionError)


class Action(BaseModel):
    """A tool call of the ground truth."""

    name: str
    kwargs: dict[str, Any]


class TaskRow(BaseModel):
    """One task of the benchmark's files."""

    user_id: str
    instruction: str
    actions: list[Action]
    outputs: list[str]


# Only fields that are read outside tool calls: a wrong type inside a tool is an observation.
Order = create_model("Order", items=(list, ...))
Product = create_model("Product", name=(str, ...), variants=(dict, ...))
Flyer = create_model("Flyer", name=(dict, ...), email=(str, ...))
Shopper = create_model("Shopper", __base__=Flyer, address=(dict, ...))
TABLES: dict[str, dict[str, Any]] = {
    "retail": {"orders": Order, "products": Product, "users": Shopper},
    "airline": {"flights": dict, "reservations": dict, "users": Flyer},
}


@lru_cache(maxsize=8)
def load_domain(name: str, folder: str) -> Domain:
    """Load `retail` or `airline` from a folder. Raises UserError for missing or invalid files."""
    source = Path(os.path.expanduser(folder))
    places = (source / f"{parent}{name}" for parent in DOMAIN_FOLDERS)
    root = next(filter(files.is_folder, places), None)
    if root is None:
        raise UserError(
            f"'{folder}' holds no τ-bench data for {name}; set env.data to a checkout of "
            "sierra-research/tau-bench, or to a folder with the same data as JSON",
            code="missing-data",
        )
    module = retail if name == "retail" else airline
    tables = {
        table: SharedTable(
            _read(_existing(root, f"{table}.json", f"data/{table}.json"), dict[str, record])
        )
        for table, record in TABLES[name].items()
    }
    if (root / "tools.json").is_file():
        schemas = _read(root / "tools.json", list[dict])
    else:
        tool_files = sorted((root / "tools").glob("[!_]*.py"))
        schemas = [_read(file, dict, _returned_schema) for file in tool_files]
    return Domain(
        name=name,
        tables=tables,
        tools={tool.__name__: tool for tool in (*module.READS, *module.WRITES)},
        writes=frozenset(tool.__name__ for tool in module.WRITES),
        schemas=tuple(schemas),
        policy=_read(_existing(root, "policy.md", "wiki.md"), str, str),
        tasks={split: tuple(_tasks(root, split, tables["users"])) for split in SPLITS},
    )


def _tasks(root: Path, split: str, users: SharedTable) -> list[dict[str, Any]]:
    """Return the tasks of a split, each with its position as `id`; [] without a file."""
    file = _existing(root, f"tasks_{split}.json", f"tasks_{split}.py")
    if not file.is_file():
        return []
    rows = _read(file, list[TaskRow], json.loads if file.suffix == ".json" else _longest_list)
    for i, row in enumerate(rows):
        if row["user_id"] not in users:
            raise _unreadable(file, f"user {row['user_id']!r} of task {i} is in no table")
    return [
        {"id": i} | {key: row[key] for key in TaskRow.model_fields} for i, row in enumerate(rows)
    ]


def _existing(root: Path, *names: str) -> Path:
    return next((root / name for name in names if (root / name).is_file()), root / names[0])


def _read(file: Path, kind: Any, parse: Callable[[str], Any] = json.loads) -> Any:
    """Return the parsed content of a file, which must be of this type."""
    try:
        value = parse(file.read_text(encoding="utf-8"))
        TypeAdapter(kind).validate_python(value, strict=True)
        return value
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise _unreadable(file, f"{place}: {first['msg']}") from None
    except READ_ERRORS as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _unreadable(file, reason) from None


def _unreadable(file: Path, reason: str) -> UserError:
    line = f"τ-bench file '{file}' cannot be read ({reason}); correct the folder in env.data"
    return UserError(line, code="invalid-data")


def _longest_list(text: str) -> Any:
    statements = ast.parse(text).body
    assigned = [node.value for node in statements if isinstance(node, ast.Assign | ast.AnnAssign)]
    lists = [value for value in assigned if isinstance(value, ast.List)]
    return _literal(max(lists, key=lambda value: len(value.elts)))


def _returned_schema(text: str) -> Any:
    """Return the literal that the function `get_info` of a module returns."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    for node in functions:
        for line in node.body if node.name == "get_info" else []:
            if isinstance(line, ast.Return):
                return _literal(line.value)
    raise ValueError("it has no function get_info that returns its schema")


def _literal(node: ast.AST | None) -> Any:
    """Return the value of a literal; `Name(key=value)` is read as a mapping."""
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return dict(zip(map(_literal, node.keys), map(_literal, node.values), strict=True))
    if isinstance(node, ast.Call):
        return {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    if isinstance(node, ast.expr):
        return ast.literal_eval(node)
    raise ValueError("not a literal")
