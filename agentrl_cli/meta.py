"""meta.json: what a run says of itself. Only its form is known here; `run` decides what it says."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentrl_cli import jsonl
from agentrl_cli.errors import UserError

FACTS: dict[str, Any] = {"status": str, "created": str, "history": list}  # of every meta.json
MORE: dict[str, Any] = {"choices": dict, "seed": int, "git": dict | None}  # where they are there


def read(file: Path) -> dict[str, Any]:
    """A run's meta.json. Raises UserError for a file that cannot be read or says too little."""
    found = jsonl.read_object(file)
    wrong = [key for key, kind in FACTS.items() if not isinstance(found.get(key), kind)]
    wrong += [key for key in MORE if key in found and not isinstance(found[key], MORE[key])]
    if wrong:
        told = ", ".join(wrong)
        raise UserError(f"'{file}' does not say a run's {told}; name a folder that a run wrote")
    return found


def change(status: str, error: str | None = None) -> dict[str, Any]:
    """The entries that a change of status sets, the new part of the history among them."""
    return {"status": status, "error": error, "history": [{"status": status, "time": now()}]}


def now() -> str:
    """The time, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
