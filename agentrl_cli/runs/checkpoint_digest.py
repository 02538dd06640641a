"""The record of a checkpoint, run.json: its step, the length of the metrics, a digest of every
file. `read` validates the whole record, since a folder may come from elsewhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.files import is_count

RECORD = "run.json"
VERSION = 2  # 1, of agentrl 0.1, has byte lengths of logs and no digests
KEYS = {"version", "step", "metric_lines", "files", "digest"}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint. `metric_lines` is None if it can be played but not trained, as in version 1.
    `digests` maps file names to SHA-256."""

    folder: Path
    step: int
    metric_lines: int | None
    digests: dict[str, str]

    def verify(self, *parts: str) -> None:
        """Raise UserError for the first file that changed after it was saved. `parts` are prefixes
        that limit the check to some files."""
        for name, digest in self.digests.items():
            if (not parts or name.startswith(parts)) and not _matches(self.folder / name, digest):
                line = f"'{self.folder / name}' is not as it was saved"
                message = f"{line}; restore it, or remove this checkpoint"
                raise UserError(message, code="changed-checkpoint")


def write(folder: Path, step: int, metric_lines: int) -> None:
    """Write the record of a complete folder and flush the folder to disk."""
    digests = {str(file.relative_to(folder)): _digest(file) for file in _files(folder)}
    record: dict[str, Any] = {"version": VERSION, "step": step, "metric_lines": metric_lines}
    record["files"] = digests
    files.write_json(folder / RECORD, record | {"digest": _digest_of(record)})
    for path in [*_files(folder), *(path for path in folder.rglob("*") if path.is_dir()), folder]:
        files.sync(path)


def read(folder: Path) -> Checkpoint:
    """Return the checkpoint of a folder. Raises UserError if its record is missing, damaged or not
    a record of this program."""
    record = files.read_json(folder / RECORD)
    if record.get("version") == 1 and is_count(record.get("step")):
        return Checkpoint(folder, record["step"], None, {})
    content = {key: value for key, value in record.items() if key != "digest"}
    if not _is_record(record) or record["digest"] != _digest_of(content):
        line = f"'{folder}' is not a checkpoint of this version, or its {RECORD} is damaged"
        raise UserError(f"{line}; name one that a run wrote", code="invalid-checkpoint")
    for name in record["files"]:
        if "\0" in name or not files.is_inside(folder / name, folder):
            line = f"'{folder / RECORD}' names {name!r}, which is not a file of the checkpoint"
            message = f"{line}; name a checkpoint that a run wrote"
            raise UserError(message, code="invalid-checkpoint")
    return Checkpoint(folder, record["step"], record["metric_lines"], record["files"])


def _is_record(record: dict[str, Any]) -> bool:
    if record.keys() != KEYS or record["version"] != VERSION:
        return False
    names = record["files"]
    texts = isinstance(names, dict) and all(isinstance(text, str) for text in names.values())
    return texts and is_count(record["step"]) and is_count(record["metric_lines"])


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != RECORD)


def _matches(file: Path, digest: str) -> bool:
    try:
        return file.is_file() and _digest(file) == digest
    except OSError:
        return False


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _digest_of(record: dict[str, Any]) -> str:
    """Return the digest of the record itself, since its numbers decide how logs are cut."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
