"""Episode files: one episode a line, and an index file of where every episode lies and how it
ended, so that one episode of a large file is opened without reading the others. A file without its
index (or with one that belongs to other bytes) is scanned instead."""

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
LINE_START = b'{"id": "'  # of what this module wrote


@dataclass(frozen=True)
class EpisodeEntry:
    """Where an episode lies in its file (in bytes), and what the index says of it."""

    id: str
    task: str
    start: int
    size: int
    success: bool
    reward: float
    turns: int
    annotated: bool  # by a critic


def write(file: Path, episodes: list[Episode]) -> None:
    """Replace the file by one line for each episode, and its index."""
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
    """Delete an episode file and its index."""
    index_file(file).unlink(missing_ok=True)
    file.unlink()


def index_file(file: Path) -> Path:
    """Where the index of an episode file lies."""
    return file.with_suffix(".index.json")


def search(file: Path, ref: str = "") -> Iterator[EpisodeEntry]:
    """The episodes whose id starts with `ref`, in the order of the file. Of a file without its
    index the others are skipped unread."""
    index = _read_index(file)
    entries = index if index is not None else _scan(file, ref)
    return (entry for entry in entries if entry.id.startswith(ref))


def count(file: Path) -> int:
    """How many episodes a file holds."""
    index = _read_index(file)
    if index is not None:
        return len(index)
    return files.count_lines(file)


def read(file: Path, entry: EpisodeEntry) -> Episode:
    """One episode. Raises UserError where the file does not hold it."""
    with file.open("rb") as lines:
        lines.seek(entry.start)
        return _episode(file, _row(file, lines.read(entry.size)))


def read_all(file: Path) -> list[Episode]:
    """The episodes of a file. Raises UserError where a line is not an episode."""
    return [_episode(file, row) for row in files.read_jsonl(file)]


def _episode(file: Path, row: dict[str, Any]) -> Episode:
    try:
        return Episode.from_json(row)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _no_episodes(file, error) from None


def _read_index(file: Path) -> list[EpisodeEntry] | None:
    """The entries of the index; None without one that fits the file's bytes."""
    if not index_file(file).is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(index_file(file).read_text())
        fits = content["version"] == INDEX_VERSION and content["bytes"] == file.stat().st_size
        entries = [EpisodeEntry(*row) for row in content["episodes"]] if fits else None
        return entries if entries is None or all(map(_is_entry, entries)) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_entry(entry: EpisodeEntry) -> bool:
    """Whether an index's values are of the types that a reader relies on."""
    counts = (entry.start, entry.size, entry.turns)
    texts = isinstance(entry.id, str) and isinstance(entry.task, str)
    whole = all(type(count) is int and 0 <= count < 2**53 for count in counts)
    return texts and whole and isinstance(entry.success, bool) and files.is_number(entry.reward)


def _scan(file: Path, ref: str) -> Iterator[EpisodeEntry]:
    """Entries read off the lines; those whose id does not start with `ref` are skipped unread. A
    line cut off at the end is left out."""
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
        raise UserError(f"'{file}' cannot be read ({error.strerror}); check the name") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _no_episodes(file, error) from None


def _row(file: Path, line: bytes) -> dict[str, Any]:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _no_episodes(file, error) from None


def _no_episodes(file: Path, error: Exception) -> UserError:
    return UserError(f"'{file}' does not hold episodes ({error}); name an episode file")


def _entry(row: dict[str, Any], start: int, size: int) -> EpisodeEntry:
    """An episode's entry from its JSON values, without building its turns."""
    turns, task = row["turns"], row["task"]["id"]
    success = bool(turns and turns[-1]["info"].get("success", False))
    reward = float(sum(turn["reward"] for turn in turns))
    annotated = any("critic" in turn["info"] or "value" in turn["info"] for turn in turns)
    entry = EpisodeEntry(row["id"], task, start, size, success, reward, len(turns), annotated)
    if not _is_entry(entry):
        raise TypeError("its id or its task is no text")
    return entry
