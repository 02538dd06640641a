"""What stands in a run's meta.json."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError

REQUIRED: dict[str, Any] = {"status": str, "created": str, "history": list}
OPTIONAL: dict[str, Any] = {"choices": dict, "seed": int, "git": dict | None}


def read_meta(file: Path) -> dict[str, Any]:
    """A run's meta.json. Raises UserError for a file that cannot be read or says too little."""
    meta = files.read_json(file)
    wrong = [key for key, kind in REQUIRED.items() if not isinstance(meta.get(key), kind)]
    given = {key: kind for key, kind in OPTIONAL.items() if key in meta}
    wrong += [key for key, kind in given.items() if not isinstance(meta[key], kind)]
    if wrong:
        missing = ", ".join(wrong)
        raise UserError(f"'{file}' does not say a run's {missing}; name a folder that a run wrote")
    return meta


def status_change(status: str, error: str | None = None) -> dict[str, Any]:
    """The entries that a change of status sets, the new part of the history among them."""
    return {"status": status, "error": error, "history": [{"status": status, "time": now()}]}


def now() -> str:
    """The time, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
