"""Files: JSON objects, JSON lines, atomic replacement, locks."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeGuard

from filelock import FileLock, Timeout

from agentrl_cli.core.errors import UserError

FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
MAX_YAML_DEPTH = 100


@contextmanager
def explain_write_errors(
    folder: Path, instead: str = "copy the run elsewhere and resume it there"
) -> Iterator[None]:
    """Raise a UserError that names `folder` and a remedy if writing fails inside."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            require_no_file(folder, instead)
        reason = error.strerror or str(error)
        first = "make it writable" if error.errno in FORBIDDEN else "free space there"
        message = f"'{folder}' cannot be written ({reason}); {first} or {instead}"
        raise UserError(message, code="not-writable") from error


def require_no_file(folder: Path, instead: str = "name a folder") -> None:
    """Raise UserError if a file stands in the place of the folder or of one that holds it."""
    for place in (folder, *folder.parents):
        if is_file(place):
            line = f"'{folder}' cannot be written, because '{place}' is a file"
            raise UserError(f"{line}; {instead}", code="not-a-folder")


@contextmanager
def try_lock(lock: FileLock) -> Iterator[bool]:
    """Yield whether the lock was acquired; it is held inside. Create the lock with
    `fallback_to_soft=False`, so that it ends with this process. Raises OSError if its file cannot
    be created."""
    Path(lock.lock_file).touch()
    acquired = nullcontext()
    try:
        acquired = lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    except OSError:  # a file system without locks, so no process can hold one
        pass
    with acquired:
        yield True


def is_free(lock: Path) -> bool:
    """Return whether no process holds the lock of an existing file; False if that is unknown, as on
    a file system without locks."""
    try:
        FileLock(lock, fallback_to_soft=False).acquire(blocking=False).lock.release()
    except OSError:  # includes Timeout
        return False
    return True


def read_json(file: Path) -> dict[str, Any]:
    """Return the object of a JSON file. Raises UserError if there is none."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("not an object")
    except (OSError, ValueError, RecursionError) as error:
        message = f"'{file}' cannot be read ({error}); name a folder that a run wrote"
        raise UserError(message, code="unreadable-file") from None
    return value


def require_plain_yaml(text: str) -> None:
    """Raise ValueError for YAML with aliases, of which a few lines can fill the memory, or so deep
    that the fast loader would crash. Raises YAMLError for text that is not YAML."""
    import yaml

    depth = 0
    for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > MAX_YAML_DEPTH:
            raise ValueError("it has aliases or is nested too deeply")


def write_json(file: Path, value: dict[str, Any]) -> None:
    """Replace the file by one indented object."""
    replace_text(file, json.dumps(null_if_not_finite(value), indent=2) + "\n")


def read_jsonl(file: Path) -> list[Any]:
    """Return the lines of a file without an incomplete last one. Raises UserError for other
    damage."""
    rows, damaged = read_jsonl_leniently(file)
    if damaged:
        message = f"'{file}' has lines that are not JSON ({damaged}); restore it or remove them"
        raise UserError(message, code="damaged-file")
    return rows


def read_jsonl_leniently(file: Path) -> tuple[list[Any], int]:
    """Return the readable lines of a file and the number of unreadable ones. Blank lines and an
    incomplete last line are ignored, since a running process may be writing it."""
    try:
        lines = [line for line in file.read_bytes().split(b"\n")[:-1] if line.strip()]
    except OSError as error:
        message = f"'{file}' cannot be read ({error.strerror}); check the name"
        raise UserError(message, code="unreadable-file") from None
    rows = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            rows.append(json.loads(line))
    return rows, len(lines) - len(rows)


def write_jsonl(file: Path, rows: Iterable[Any]) -> None:
    """Replace the file by one line per row."""
    replace_text(file, "".join(json_line(row) for row in rows))


def append_jsonl(file: Path, rows: Iterable[Any]) -> None:
    """Append one line per row, or none if the disk fails."""
    data = "".join(json_line(row) for row in rows).encode()
    with file.open("ab", buffering=0) as log:
        size = log.tell()
        try:
            while data:
                data = data[log.write(data) :]
        except OSError:
            with suppress(OSError):
                log.truncate(size)
            raise


def json_line(row: Any) -> str:
    """Return a row as a line of JSON; numbers that are not finite become null."""
    try:
        return json.dumps(row, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(null_if_not_finite(row)) + "\n"


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a JSON value is a number that fits a float."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def is_count(value: Any) -> bool:
    """Return whether a JSON value is an integer of at least 0."""
    return type(value) is int and value >= 0


def null_if_not_finite(value: Any) -> Any:
    """Return the value with None for every number that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: null_if_not_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [null_if_not_finite(item) for item in value]
    return value


def flatten(node: Any, path: str = "", *, keep_empty: bool = False) -> dict[str, Any]:
    """Return a nested mapping as a flat one with dotted keys. Empty mappings inside it are left
    out, or kept as values."""
    flat: dict[str, Any] = {}
    for key, value in node.items():
        name = f"{path}.{key}" if path else str(key)
        is_inner = isinstance(value, dict) and (value or not keep_empty)
        flat |= flatten(value, name, keep_empty=keep_empty) if is_inner else {name: value}
    return flat


def replace_text(file: Path, text: str) -> None:
    """Replace a file atomically. Characters that UTF-8 cannot encode are escaped."""
    replace_bytes(file, text.encode("utf-8", errors="backslashreplace"))


def replace_bytes(file: Path, data: bytes) -> None:
    """Replace a file atomically. A link in its place is replaced and not followed."""
    partial = file.with_name(f".{file.name[:80]}.{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as new:  # which follows no link
            new.write(data)
        sync(partial)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def replace_folder(partial: Path, final: Path) -> None:
    """Rename `partial` to `final`, after moving an existing `final` out of the way."""
    aside = final.with_name(f".{final.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    if final.exists():
        final.rename(aside)
    partial.rename(final)
    sync(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file or the entries of a folder to disk, if the file system supports it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def is_folder(path: Path) -> bool:
    """Return whether the path is a folder; False for a name that no folder can have."""
    return os.path.isdir(path)


def is_file(path: Path) -> bool:
    """Return whether the path is a file; False for a name that no file can have."""
    return os.path.isfile(path)


def require_own(file: Path, folder: Path) -> None:
    """Raise UserError if something else than a file of this folder has the name of the file: a link
    out of the folder, a device or a pipe."""
    if os.path.lexists(file) and not (is_file(file) and is_inside(file, folder)):
        line = f"'{file}' is not a file of '{folder}'; put a copy in its place, or remove it"
        raise UserError(line, code="link-out-of-run")


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path lies in a folder after all links are resolved."""
    return path.resolve().is_relative_to(folder.resolve())


def count_lines(file: Path) -> int:
    """Return the number of complete lines, 0 if the file does not exist."""
    if not file.exists():
        return 0
    with file.open("rb") as log:
        return sum(block.count(b"\n") for block in iter(lambda: log.read(1 << 20), b""))


def truncate(file: Path, lines: int) -> None:
    """Cut a log back to its first `lines` lines. Raises UserError if it has fewer."""
    kept, size = 0, 0
    if file.exists():
        with file.open("rb") as log:
            for line in islice(log, lines):
                kept, size = kept + line.endswith(b"\n"), size + len(line)
    if kept < lines:
        message = f"'{file}' has {kept} lines but the checkpoint needs {lines}; restore it"
        raise UserError(message, code="log-too-short")
    if file.exists() and file.stat().st_size > size:
        with explain_write_errors(file.parent), file.open("r+b") as log:
            log.truncate(size)
