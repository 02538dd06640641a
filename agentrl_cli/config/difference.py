"""Describe the differences of two configurations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from agentrl_cli.core import files

MAX_NAMED = 6  # keys in one sentence


def differences(there: Mapping[str, Any], here: Mapping[str, Any], ignored: Collection[str]) -> str:
    """Return `seed 0 there and 1 here, …`, or "" if only `ignored` keys and nodes differ. If the
    option of a group differs, its keys are not listed."""
    left, right = files.flatten(there), files.flatten(here)
    keys = [key for key in {**right, **left} if left.get(key) != right.get(key)]
    keys = [key for key in keys if not any(f"{key}.".startswith(f"{i}.") for i in ignored)]
    groups = [key.removeprefix("choices.") for key in keys if key.startswith("choices.")]
    rest = [key for key in keys if key.partition(".")[0] not in (*groups, "choices")]
    lines = [_line(group, left, right, f"choices.{group}") for group in groups]
    lines += [_line(key, left, right, key) for key in rest]
    more = [f"and {len(lines) - MAX_NAMED} keys more"] if len(lines) > MAX_NAMED else []
    return ", ".join([*lines[:MAX_NAMED], *more])


def _line(name: str, left: dict[str, Any], right: dict[str, Any], key: str) -> str:
    return f"{name} {left.get(key, 'unset')!s} there and {right.get(key, 'unset')!s} here"
