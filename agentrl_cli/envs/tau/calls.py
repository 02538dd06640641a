"""Calls a tool as τ-bench does: whatever goes wrong is an observation that begins with `Error:`.

Its tools are methods called by keyword, so a wrong argument is answered by Python itself. That text
is part of the benchmark; it is composed here, in the words of Python 3.11, on every version.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from agentrl_cli.envs.tau.database import Database

Tool = Callable[..., str]


def call_tool(
    tools: Mapping[str, Tool], domain: str, data: Database, name: str, arguments: dict[str, Any]
) -> str:
    """The observation that the call brings. Never raises for what the arguments hold."""
    if name not in tools:
        return f"Unknown action {name}"
    error = argument_error(tools[name], domain, arguments)
    if error:
        return f"Error: {error}"
    try:
        return tools[name](data, **copy.deepcopy(arguments))
    except Exception as raised:
        return f"Error: {raised}"


def argument_error(tool: Tool, domain: str, arguments: dict[str, Any]) -> str:
    """What Python says of a call whose argument names do not fit; "" where they do."""
    needed = parameters(tool)
    method = f"{_class_name(tool)}.invoke()"
    if "data" in arguments:
        module = f"tau_bench.envs.{domain}.tools.{tool.__name__}"
        return f"{module}.{method} got multiple values for keyword argument 'data'"
    for name in arguments:
        if name not in needed:
            return f"{method} got an unexpected keyword argument '{name}'"
    missing = [f"'{name}'" for name in needed if name not in arguments]
    if not missing:
        return ""
    plural, names = "s" if len(missing) > 1 else "", _join_with_and(missing)
    return f"{method} missing {len(missing)} required positional argument{plural}: {names}"


@cache
def parameters(tool: Tool) -> tuple[str, ...]:
    """The names of a tool's arguments, the database left out."""
    return tuple(inspect.signature(tool).parameters)[1:]


def _class_name(tool: Tool) -> str:
    return "".join(word.capitalize() for word in tool.__name__.split("_"))


def _join_with_and(names: list[str]) -> str:
    if len(names) < 3:
        return " and ".join(names)
    return f"{', '.join(names[:-1])}, and {names[-1]}"
