"""The database of an episode, tool calls as τ-bench answers them, and the tools of both domains.

The database is a copy-on-write view: an episode copies only the records that it changes. Records
are JSON values. Only a record that `Table.edit` returned may be changed in place.

Any exception that a tool raises becomes an observation that begins with `Error:`, and the text is
part of the benchmark. In the original, tools are methods `invoke` called by keyword. Here they are
functions with the names of such methods, so Python raises the same errors for wrong arguments.
"""

from __future__ import annotations

import ast
import copy
import inspect
import json
import operator
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from typing import Any

Record = dict[str, Any]
Tool = Callable[..., str]
ALLOWED_CHARACTERS = "0123456789+-*/(). "
MAX_BITS = 1 << 20  # total bits of all intermediate integers; no float holds nearly as many
OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Pow: operator.pow, ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}  # fmt: skip


class SharedTable(dict[str, Record]):
    """A table that all episodes share and none changes."""

    @cached_property
    def texts(self) -> dict[str, str]:
        return {key: canonical_text(record) for key, record in self.items()}


Tables = Mapping[str, SharedTable]


class Table(ChainMap[str, Record]):
    """One table of an episode: the changed records before the shared ones. Reading returns shared
    records; `edit` returns a private copy; a new record is assigned."""

    def __init__(self, base: SharedTable) -> None:
        super().__init__({}, base)
        self.changed, self.base = self.maps[0], base

    def edit(self, key: str) -> Record:
        """Return the episode's own copy of a record. Raises KeyError for an unknown key."""
        if key not in self.changed:
            self.changed[key] = copy.deepcopy(self.base[key])
        return self.changed[key]

    def touched(self) -> dict[str, str]:
        """Return the canonical text of every record that differs from the shared table."""
        texts = {key: canonical_text(record) for key, record in self.changed.items()}
        before = {key: canonical_text(self.base[key]) for key in texts if key in self.base}
        return {key: text for key, text in texts.items() if text != before.get(key)}


class Database:
    """All tables of an episode, by name."""

    def __init__(self, tables: Tables) -> None:
        self.tables = {name: Table(base) for name, base in tables.items()}

    def __getitem__(self, name: str) -> Table:
        return self.tables[name]

    def find(self, table: str, key: Any, noun: str) -> Record:
        """Return a shared record. Raises ValueError("NOUN not found") for an unknown key."""
        if key not in self[table]:
            raise ValueError(f"{noun} not found")
        return self[table][key]

    def touched(self) -> dict[str, dict[str, str]]:
        """Return the differences from the shared tables. Two views of the same tables are equal if
        and only if these are equal, so the reward needs no hash of the whole state."""
        found = {name: table.touched() for name, table in self.tables.items()}
        return {name: texts for name, texts in found.items() if texts}

    def digest(self) -> str:
        """Return τ-bench's hash of the whole state, in hexadecimal."""
        changed = {
            n: {k: canonical_text(r) for k, r in t.changed.items()} for n, t in self.tables.items()
        }
        texts = {name: table.base.texts | changed[name] for name, table in self.tables.items()}
        return sha256(_pairs({name: _pairs(t) for name, t in texts.items()}).encode()).hexdigest()


def canonical_text(value: object) -> str:
    """Return the text that τ-bench hashes: Python's text of nested tuples, mappings as pairs sorted
    by key, lists in order. So 250 and 250.0, or True and 1, differ."""
    if isinstance(value, dict):
        return _pairs({key: canonical_text(item) for key, item in value.items()})
    return _tuple(list(map(canonical_text, value))) if isinstance(value, list) else repr(value)


def _pairs(texts: Mapping[str, str]) -> str:
    return _tuple([f"({key!r}, {texts[key]})" for key in sorted(texts)])


def _tuple(parts: list[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


@dataclass(frozen=True, eq=False)
class Domain:
    """A customer service: its tables, tools, policy and tasks by split. `writes` are the names of
    the tools that change the database; `terminal_tool` ends an episode."""

    name: str
    tables: Tables
    tools: Mapping[str, Tool]
    writes: frozenset[str]
    schemas: tuple[dict[str, Any], ...]
    policy: str
    tasks: Mapping[str, tuple[dict[str, Any], ...]]
    terminal_tool: str = "transfer_to_human_agents"

    def __post_init__(self) -> None:
        for tool in self.tools.values():
            tool.__qualname__ = f"{tool.__name__.title().replace('_', '')}.invoke"


def call_tool(domain: Domain, database: Database, name: str, arguments: dict[str, Any]) -> str:
    """Call a tool and return the observation. Never raises for the content of the arguments."""
    if name not in domain.tools:
        return f"Unknown action {name}"
    tool = domain.tools[name]
    if "data" in arguments:  # in the original, the database is a keyword of this name
        method = f"tau_bench.envs.{domain.name}.tools.{tool.__name__}.{tool.__qualname__}()"
        return f"Error: {method} got multiple values for keyword argument 'data'"
    try:
        return tool(database, **copy.deepcopy(arguments))
    except Exception as error:
        return f"Error: {error}".partition(". Did you mean")[0]  # which Python 3.13 appends


@cache
def parameters(tool: Tool) -> tuple[str, ...]:
    """Return the names of a tool's arguments, without the database."""
    return tuple(inspect.signature(tool).parameters)[1:]


# --- The tools of both domains, and the value of an arithmetic expression ------------------------


def calculate(data: Database, expression: Any) -> str:
    if not all(char in ALLOWED_CHARACTERS for char in expression):
        raise ValueError("invalid characters in expression")
    return str(round(float(evaluate(expression)), 2))


def think(data: Database, thought: Any) -> str:
    return ""


def transfer_to_human_agents(data: Database, summary: Any) -> str:
    return "Transfer successful"


def get_user_details(data: Database, user_id: Any) -> str:
    return json.dumps(data.find("users", user_id, "user"))


SHARED_TOOLS: tuple[Tool, ...] = (calculate, get_user_details, think, transfer_to_human_agents)


def evaluate(expression: object) -> Any:
    """Return the value of an expression of digits, points, parentheses and + - * /, without `eval`.

    Raises the error that Python would raise: SyntaxError, TypeError, ZeroDivisionError, MemoryError
    (powers nested too deeply), and OverflowError, also for integers that would take too long.
    """
    if not isinstance(expression, str):
        raise TypeError("eval() arg 1 must be a string, bytes or code object")
    try:
        tree = ast.parse(expression.lstrip(" \t"), "<string>", "eval")
    except RecursionError:  # Python's own limit, with the message of `eval`
        raise RecursionError("maximum recursion depth exceeded during compilation") from None
    # Wholes before parts and right before left, to be evaluated in reverse. There is no recursion,
    # because long chains are valid input.
    nodes, todo = list[tuple[ast.AST, int]](), list[ast.AST]([tree.body])
    while todo:
        node = todo.pop()
        parts = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr | ast.keyword)]
        nodes.append((node, len(parts)))
        todo += parts
    values: list[Any] = []
    bits = 0
    for node, count in reversed(nodes):
        start = len(values) - count
        values[start:] = [_apply(node, values[start:])]
        bits += values[-1].bit_length() if isinstance(values[-1], int) else 0
        if bits > MAX_BITS:
            raise OverflowError("int too large to convert to float")
    return values.pop()


def _apply(node: ast.AST, values: list[Any]) -> Any:
    """Return the value of a node from those of its parts."""
    if isinstance(node, ast.BinOp | ast.UnaryOp):
        if isinstance(node.op, ast.Pow) and all(isinstance(value, int) for value in values):
            base, exponent = values
            if exponent > 0 and base.bit_length() * exponent > MAX_BITS and abs(base) > 1:
                raise OverflowError("int too large to convert to float")
        return OPERATORS[type(node.op)](*values)
    if isinstance(node, ast.Call):  # `2(3)`, `2(*3)` and `2(**3)`; no comma, so one argument
        called, argument = values[0], values[1] if len(values) > 1 else ()
        kind = type(argument).__name__
        if node.keywords:
            raise TypeError(f"{called} argument after ** must be a mapping, not {kind}")
        if node.args and isinstance(node.args[0], ast.Starred) and argument != ():
            raise TypeError(f"{called} argument after * must be an iterable, not {kind}")
        raise TypeError(f"'{type(called).__name__}' object is not callable")
    if isinstance(node, ast.Starred | ast.keyword):
        return values[0]
    if isinstance(node, ast.Tuple) and not node.elts:
        return ()
    if isinstance(node, ast.Constant):
        return node.value
    raise SyntaxError("invalid syntax (<string>, line 1)")
