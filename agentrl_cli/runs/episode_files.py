"""Episode files: one episode per line, searched without keeping all episodes in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode

LINE_START = b'{"id": "'  # of a line that this module wrote
NO_EPISODE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class EpisodeEntry:
    """The position of an episode in its file, in bytes, and its outcome. `annotated`: a critic has
    written about its turns."""

    id: str
    task: str
    start: int
    size: int
    success: bool
    turns: int
    annotated: bool


def write(file: Path, episodes: list[Episode]) -> None:
    files.write_jsonl(file, [episode.to_json() for episode in episodes])


def search(file: Path, ref: str = "") -> Iterator[EpisodeEntry]:
    """Yield the episodes with an id that starts with `ref`, in the order of the file. Other lines
    are not parsed, and an incomplete last line is skipped. Raises UserError if the file does not
    hold episodes."""
    wanted = LINE_START + json.dumps(ref)[1:-1].encode()
    start = 0
    try:
        with file.open("rb") as lines:
            for line in lines:
                other = line.startswith(LINE_START) and not line.startswith(wanted)
                if not other and line.endswith(b"\n") and line.strip():
                    entry = _entry(json.loads(line), start, len(line))
                    if entry.id.startswith(ref):
                        yield entry
                start += len(line)
    except OSError as error:
        message = f"'{file}' cannot be read ({error.strerror}); check the name"
        raise UserError(message, code="unreadable-file") from None
    except NO_EPISODE as error:
        raise _no_episodes(file, error) from None


def read(file: Path, entry: EpisodeEntry) -> Episode:
    """Return one episode. Raises UserError if the file does not hold it."""
    with file.open("rb") as lines:
        lines.seek(entry.start)
        line = lines.read(entry.size)
    try:
        return Episode.from_json(json.loads(line))
    except NO_EPISODE as error:
        raise _no_episodes(file, error) from None


def read_all(file: Path) -> list[Episode]:
    """Return the episodes of a file. Raises UserError if a line is not an episode."""
    rows = files.read_jsonl(file)
    try:
        return [Episode.from_json(row) for row in rows]
    except NO_EPISODE as error:
        raise _no_episodes(file, error) from None


def _no_episodes(file: Path, error: Exception) -> UserError:
    message = f"'{file}' does not hold episodes ({error}); name an episode file"
    return UserError(message, code="not-episodes")


def _entry(row: dict[str, Any], start: int, size: int) -> EpisodeEntry:
    turns, task = row["turns"], row["task"]["id"]
    success = bool(turns and not row["error"] and turns[-1]["info"].get("success", False))
    annotated = any("critic" in turn["info"] or "value" in turn["info"] for turn in turns)
    if not isinstance(row["id"], str) or not isinstance(task, str):
        raise TypeError("its id or its task is not a text")
    return EpisodeEntry(row["id"], task, start, size, success, len(turns), annotated)
