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

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.envs.tau import airline, retail
from agentrl_cli.envs.tau.tools import Domain, SharedTable

SPLITS = ("train", "dev", "test")  # τ-bench's names
DOMAIN_FOLDERS = ("", "tau_bench/envs/", "envs/")  # possible parents of a domain's folder
READ_ERRORS = (OSError, ValueError, LookupError, TypeError, SyntaxError, RecursionError)
Fields = dict[str, type]
# Only fields that are read outside tool calls: a wrong type inside a tool is an observation.
TABLES: dict[str, dict[str, Fields]] = {
    "retail": {
        "orders": {"items": list},
        "products": {"name": str, "variants": dict},
        "users": {"name": dict, "email": str, "address": dict},
    },
    "airline": {"flights": {}, "reservations": {}, "users": {"name": dict, "email": str}},
}
TASK: Fields = {"user_id": str, "instruction": str, "actions": list, "outputs": list}
ACTION: Fields = {"name": str, "kwargs": dict}


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
    tables = {table: _table(root, table, fields) for table, fields in TABLES[name].items()}
    return Domain(
        name=name,
        tables=tables,
        tools={tool.__name__: tool for tool in (*module.READS, *module.WRITES)},
        writes=frozenset(tool.__name__ for tool in module.WRITES),
        schemas=tuple(_schemas(root)),
        policy=_read(_first_existing(root / "policy.md", root / "wiki.md"), str),
        tasks={split: tuple(_tasks(root, split, tables["users"])) for split in SPLITS},
    )


def _table(root: Path, name: str, fields: Fields) -> SharedTable:
    def parse(text: str) -> SharedTable:
        table = _require("the table", json.loads(text), dict)
        for key, record in table.items():
            _require_fields(f"record {key!r}", record, fields)
        return SharedTable(table)

    return _read(_first_existing(root / f"{name}.json", root / "data" / f"{name}.json"), parse)


def _tasks(root: Path, split: str, users: SharedTable) -> list[dict[str, Any]]:
    """Return the tasks of a split, each with its position as `id`; [] without a file."""
    file = _first_existing(root / f"tasks_{split}.json", root / f"tasks_{split}.py")

    def parse(text: str) -> list[dict[str, Any]]:
        rows = json.loads(text) if file.suffix == ".json" else _longest_list(text)
        for i, row in enumerate(_require("the file", rows, list)):
            _require_fields(f"task {i}", row, TASK)
            for output in row["outputs"]:
                _require(f"an output of task {i}", output, str)
            for action in row["actions"]:
                _require_fields(f"an action of task {i}", action, ACTION)
            if row["user_id"] not in users:
                raise ValueError(f"user {row['user_id']!r} of task {i} is in no table")
        return [{"id": i, **{key: row[key] for key in TASK}} for i, row in enumerate(rows)]

    return _read(file, parse) if file.is_file() else []


def _schemas(root: Path) -> list[dict[str, Any]]:
    def parse(text: str) -> list[dict[str, Any]]:
        schemas = _require("the file", json.loads(text), list)
        return [_require("a schema", schema, dict) for schema in schemas]

    if (root / "tools.json").is_file():
        return _read(root / "tools.json", parse)
    return [_read(file, _returned_schema) for file in sorted((root / "tools").glob("[!_]*.py"))]


def _require_fields(name: str, row: Any, fields: Fields) -> None:
    _require(name, row, dict)
    for field, kind in fields.items():
        _require(f"{field} of {name}", row.get(field), kind)


def _require(name: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {str(value)[:40]!r}, not a {kind.__name__}")
    return value


def _longest_list(text: str) -> Any:
    statements = ast.parse(text).body
    assigned = [node.value for node in statements if isinstance(node, ast.Assign | ast.AnnAssign)]
    lists = [value for value in assigned if isinstance(value, ast.List)]
    return _literal(max(lists, key=lambda value: len(value.elts)))


def _returned_schema(text: str) -> Any:
    """Return the literal that the function `get_info` of a module returns."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == "get_info":
            (returned,) = (line.value for line in node.body if isinstance(line, ast.Return))
            return _literal(returned)
    raise ValueError("it has no function get_info")


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


def _first_existing(*candidates: Path) -> Path:
    return next((file for file in candidates if file.is_file()), candidates[0])


def _read(file: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(file.read_text(encoding="utf-8"))
    except READ_ERRORS as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"τ-bench file '{file}' cannot be read ({reason}); correct the folder in env.data",
            code="invalid-data",
        ) from None
