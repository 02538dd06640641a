"""Reads τ-bench's tables, tasks, policies and schemas from a user's folder; nothing of it ships.

The folder is a checkout of the benchmark, whose Python files are read as data and never run, or
holds the same as JSON: DOMAIN/TABLE.json, tasks_SPLIT.json, tools.json and policy.md.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.envs.tau import airline, retail
from agentrl_cli.envs.tau.calls import Tool
from agentrl_cli.envs.tau.database import SharedTable, Tables
from agentrl_cli.envs.tau.shared import TERMINAL_TOOL

TABLES: dict[str, dict[str, dict[str, type]]] = {  # each with the fields that need no tool to read
    "retail": {
        "orders": {"items": list},
        "products": {"name": str, "variants": dict},
        "users": {"name": dict, "email": str, "address": dict},
    },
    "airline": {"flights": {}, "reservations": {}, "users": {"name": dict, "email": str}},
}
TOOLS: dict[str, tuple[tuple[Tool, ...], tuple[Tool, ...]]] = {
    "retail": (retail.READS, retail.WRITES),
    "airline": (airline.READS, airline.WRITES),
}
READ_ERRORS = (
    OSError, ValueError, LookupError, TypeError, AttributeError, SyntaxError, RecursionError,
)  # fmt: skip
TASK_KEYS = ("user_id", "instruction", "actions", "outputs")
TYPE_NAMES = {dict: "mapping", list: "list", str: "text"}
SPLITS = ("train", "dev", "test")  # as τ-bench calls them
DOMAIN_FOLDERS = ("", "tau_bench/envs/", "envs/")  # where a domain's folder may lie


@dataclass(frozen=True, eq=False)
class Domain:
    """A service: its tables, tools, policy and tasks by split. `writes` names the tools that change
    the database, `terminal_tool` the one that ends an episode."""

    name: str
    tables: Tables
    tools: Mapping[str, Tool]
    writes: frozenset[str]
    schemas: tuple[dict[str, Any], ...]
    policy: str
    tasks: Mapping[str, tuple[dict[str, Any], ...]]
    terminal_tool: str = TERMINAL_TOOL


@lru_cache(maxsize=8)
def load_domain(name: str, folder: str) -> Domain:
    """The domain `retail` or `airline` from a folder. Raises UserError where that lacks it."""
    root = _domain_folder(name, Path(os.path.expanduser(folder)))
    reads, writes = TOOLS[name]
    tables = {table: _table(root, table, fields) for table, fields in TABLES[name].items()}
    return Domain(
        name=name,
        tables=tables,
        tools={tool.__name__: tool for tool in (*reads, *writes)},
        writes=frozenset(tool.__name__ for tool in writes),
        schemas=tuple(_schemas(root)),
        policy=_read_file(_first_existing(root / "policy.md", root / "wiki.md"), str),
        tasks={split: tuple(_tasks(root, split, tables["users"])) for split in SPLITS},
    )


def _domain_folder(name: str, folder: Path) -> Path:
    for place in DOMAIN_FOLDERS:
        if files.is_folder(folder / f"{place}{name}"):
            return folder / f"{place}{name}"
    raise UserError(
        f"'{folder}' holds no τ-bench data for {name}; give env.data the folder of a checkout of "
        "sierra-research/tau-bench, or one with the same as JSON"
    )


def _table(root: Path, name: str, fields: dict[str, type]) -> SharedTable:
    file = _first_existing(root / f"{name}.json", root / "data" / f"{name}.json")
    return _read_file(file, lambda text: SharedTable(_parse_table(json.loads(text), fields)))


def _parse_table(table: Any, fields: dict[str, type]) -> dict[str, Any]:
    """A table whose records have the fields. TypeError where one is broken."""
    for number, record in _require_type("the table", table, dict).items():
        _require_type(f"record {number!r}", record, dict)
        for name, kind in fields.items():
            _require_type(f"{name} of record {number!r}", record.get(name), kind)
    return table


def _require_type(what: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{what} is {str(value)[:40]!r} and no {TYPE_NAMES[kind]}")
    return value


def _tasks(root: Path, split: str, users: SharedTable) -> list[dict[str, Any]]:
    """The tasks of a split, each with its number as `id`; none where the domain lacks the split."""
    plain, python = root / f"tasks_{split}.json", root / f"tasks_{split}.py"
    if plain.is_file():
        return _read_file(plain, lambda text: _parse_tasks(json.loads(text), users))
    if python.is_file():
        return _read_file(python, lambda text: _parse_tasks(_longest_list(text), users))
    return []


def _parse_tasks(tasks: Any, users: SharedTable) -> list[dict[str, Any]]:
    """Tasks with the keys that matter. KeyError or TypeError where one is missing or wrong."""
    kept = [{"id": i, **{key: task[key] for key in TASK_KEYS}} for i, task in enumerate(tasks)]
    for task in kept:
        about = f"of task {task['id']}"
        _require_type(f"the instruction {about}", task["instruction"], str)
        for output in _require_type(f"outputs {about}", task["outputs"], list):
            _require_type(f"an output {about}", output, str)
        for action in _require_type(f"actions {about}", task["actions"], list):
            _require_type(f"an action's name {about}", action["name"], str)
            _require_type(f"an action's arguments {about}", action["kwargs"], dict)
        if task["user_id"] not in users:
            raise ValueError(f"user {task['user_id']!r} {about} is in no table")
    return kept


def _schemas(root: Path) -> list[dict[str, Any]]:
    if (root / "tools.json").is_file():
        return _read_file(root / "tools.json", lambda text: _parse_schemas(json.loads(text)))
    files = sorted((root / "tools").glob("[!_]*.py"))
    return [_read_file(file, _returned_schema) for file in files]


def _parse_schemas(schemas: Any) -> list[dict[str, Any]]:
    _require_type("the file", schemas, list)
    return [_require_type("a schema", schema, dict) for schema in schemas]


def _longest_list(text: str) -> list[dict[str, Any]]:
    """The longest list literal that a module assigns."""
    statements = ast.parse(text).body
    assigned = [node.value for node in statements if isinstance(node, ast.Assign | ast.AnnAssign)]
    lists = [value for value in assigned if isinstance(value, ast.List)]
    return _literal(max(lists, key=lambda value: len(value.elts)))


def _returned_schema(text: str) -> dict[str, Any]:
    """What the function `get_info` of a module returns."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == "get_info":
            (returned,) = (line.value for line in node.body if isinstance(line, ast.Return))
            return _literal(returned)
    raise ValueError("no get_info in it")


def _literal(node: ast.AST | None) -> Any:
    """The value of a literal in which `Name(key=value)` stands for a mapping."""
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = map(_literal, node.keys)
        return dict(zip(keys, map(_literal, node.values), strict=True))
    if isinstance(node, ast.Call):
        return {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    if isinstance(node, ast.expr):
        return ast.literal_eval(node)
    raise ValueError("not a literal")


def _first_existing(*files: Path) -> Path:
    return next((file for file in files if file.is_file()), files[0])


def _read_file(file: Path, read: Callable[[str], Any]) -> Any:
    try:
        return read(file.read_text(encoding="utf-8"))
    except READ_ERRORS as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"τ-bench file '{file}' cannot be read ({first}); mend the folder that env.data names"
        ) from None
