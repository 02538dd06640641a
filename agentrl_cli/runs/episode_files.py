"""Episode files: one episode per line, and an index with the position and outcome of each, so that
a single episode can be read from a large file. A file without a valid index is scanned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode

INDEX_VERSION = 1
LINE_START = b'{"id": "'  # of a line that this module wrote


@dataclass(frozen=True)
class EpisodeEntry:
    """The position of an episode in its file, in bytes, and its outcome. `annotated`: a critic has
    written about its turns."""

    id: str
    task: str
    start: int
    size: int
    success: bool
    reward: float
    turns: int
    annotated: bool


def write(file: Path, episodes: list[Episode]) -> None:
    """Replace the file and its index."""
    index_file(file).unlink(missing_ok=True)
    rows = [episode.to_json() for episode in episodes]
    lines = [files.json_line(row) for row in rows]
    files.replace_text(file, "".join(lines))
    sizes = [len(line.encode()) for line in lines]
    starts = accumulate(sizes, initial=0)
    entries = [astuple(_entry(*line)) for line in zip(rows, starts, sizes, strict=False)]
    content = {"version": INDEX_VERSION, "bytes": sum(sizes), "episodes": entries}
    files.replace_text(index_file(file), files.json_line(content))


def remove(file: Path) -> None:
    index_file(file).unlink(missing_ok=True)
    file.unlink()


def index_file(file: Path) -> Path:
    return file.with_suffix(".index.json")


def search(file: Path, ref: str = "") -> Iterator[EpisodeEntry]:
    """Yield the episodes with an id that starts with `ref`, in the order of the file. Raises
    UserError if the file does not hold episodes."""
    index = _read_index(file)
    entries = index if index is not None else _scan(file, ref)
    return (entry for entry in entries if entry.id.startswith(ref))


def count(file: Path) -> int:
    index = _read_index(file)
    return files.count_lines(file) if index is None else len(index)


def read(file: Path, entry: EpisodeEntry) -> Episode:
    """Return one episode. Raises UserError if the file does not hold it."""
    with file.open("rb") as lines:
        lines.seek(entry.start)
        return _episode(file, _row(file, lines.read(entry.size)))


def read_all(file: Path) -> list[Episode]:
    """Return the episodes of a file. Raises UserError if a line is not an episode."""
    return [_episode(file, row) for row in files.read_jsonl(file)]


def _episode(file: Path, row: dict[str, Any]) -> Episode:
    try:
        return Episode.from_json(row)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _no_episodes(file, error) from None


def _read_index(file: Path) -> list[EpisodeEntry] | None:
    """Return the entries of the index, or None if it is missing, damaged or of other bytes."""
    try:
        content: dict[str, Any] = json.loads(index_file(file).read_text())
        if content["version"] != INDEX_VERSION or content["bytes"] != file.stat().st_size:
            return None
        entries = [EpisodeEntry(*row) for row in content["episodes"]]
        return entries if all(map(_is_entry, entries)) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_entry(entry: EpisodeEntry) -> bool:
    counts = (entry.start, entry.size, entry.turns)
    texts = isinstance(entry.id, str) and isinstance(entry.task, str)
    whole = all(type(count) is int and 0 <= count < 2**53 for count in counts)
    return texts and whole and isinstance(entry.success, bool) and files.is_number(entry.reward)


def _scan(file: Path, ref: str) -> Iterator[EpisodeEntry]:
    """Yield entries from the lines themselves. Lines with another id are not parsed, and an
    incomplete last line is skipped."""
    wanted = LINE_START + json.dumps(ref)[1:-1].encode()
    start = 0
    try:
        with file.open("rb") as lines:
            for line in lines:
                other = line.startswith(LINE_START) and not line.startswith(wanted)
                if not other and line.endswith(b"\n"):
                    yield _entry(_row(file, line), start, len(line))
                start += len(line)
    except OSError as error:
        message = f"'{file}' cannot be read ({error.strerror}); check the name"
        raise UserError(message, code="unreadable-file") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _no_episodes(file, error) from None


def _row(file: Path, line: bytes) -> dict[str, Any]:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _no_episodes(file, error) from None


def _no_episodes(file: Path, error: Exception) -> UserError:
    message = f"'{file}' does not hold episodes ({error}); name an episode file"
    return UserError(message, code="not-episodes")


def _entry(row: dict[str, Any], start: int, size: int) -> EpisodeEntry:
    """Return the entry of an episode from its JSON values. Raises TypeError if they are not one."""
    turns, task = row["turns"], row["task"]["id"]
    success = bool(turns and turns[-1]["info"].get("success", False))
    reward = float(sum(turn["reward"] for turn in turns))
    annotated = any("critic" in turn["info"] or "value" in turn["info"] for turn in turns)
    entry = EpisodeEntry(row["id"], task, start, size, success, reward, len(turns), annotated)
    if not _is_entry(entry):
        raise TypeError("its id or its task is not a text")
    return entry
