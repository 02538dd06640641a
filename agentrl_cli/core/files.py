"""Files: JSON as one object or one object a line, replaced whole or only appended to; locks."""

from __future__ import annotations

import errno
import json
import math
import os
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


@contextmanager
def explain_write_errors(
    folder: Path, instead: str = "copy the run elsewhere and resume it there"
) -> Iterator[None]:
    """Turn a failure of the disk into a UserError that names the folder and what helps."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        first = "make it writable" if error.errno in FORBIDDEN else "free space there"
        raise UserError(f"'{folder}' cannot be written ({reason}); {first} or {instead}") from error


@contextmanager
def try_lock(lock: FileLock) -> Iterator[bool]:
    """Whether no other process holds the lock; if so, it is held until the end, or until this
    process dies, so give it `fallback_to_soft=False`. Raises OSError where its file cannot be."""
    Path(lock.lock_file).touch()
    acquired = nullcontext()
    try:
        acquired = lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    except OSError:  # a file system without locks: nobody can hold one
        pass
    with acquired:
        yield True


def is_free(lock: Path) -> bool:
    """Whether no process holds the lock of that file, which must be there; False where that cannot
    be known, as on a file system without locks."""
    try:
        FileLock(lock, fallback_to_soft=False).acquire(blocking=False).lock.release()
    except OSError:  # as Timeout is
        return False
    return True


def read_json(file: Path) -> dict[str, Any]:
    """The one object of a JSON file. Raises UserError where there is none."""
    remedy = "name a folder that a run wrote"
    try:
        value = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"'{file}' cannot be read ({error}); {remedy}") from None
    except RecursionError:
        raise UserError(f"'{file}' cannot be read (it is nested too deeply); {remedy}") from None
    if not isinstance(value, dict):
        raise UserError(f"'{file}' is not a JSON object; {remedy}")
    return value


def write_json(file: Path, value: dict[str, Any]) -> None:
    """Replace the file by one indented object."""
    replace_text(file, json.dumps(null_if_not_finite(value), indent=2) + "\n")


def read_jsonl(file: Path) -> list[Any]:
    """The lines of a file, less one cut off at the end. Raises UserError for other damage."""
    lines = _complete_lines(file)
    try:
        return [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        raise UserError(f"'{file}' is damaged ({error}); restore it or remove the line") from None


def read_jsonl_leniently(file: Path) -> tuple[list[Any], int]:
    """The lines of a file that can be read, and how many cannot; one cut off at the end is not
    counted, since a run that is going may be writing it."""
    rows, lines = [], _complete_lines(file)
    for line in lines:
        with suppress(ValueError, RecursionError):
            rows.append(json.loads(line))
    return rows, len(lines) - len(rows)


def _complete_lines(file: Path) -> list[bytes]:
    try:
        return file.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise UserError(f"'{file}' cannot be read ({error.strerror}); check the name") from None


def write_jsonl(file: Path, rows: Iterable[Any]) -> None:
    """Replace the file by one line for each row."""
    replace_text(file, "".join(json_line(row) for row in rows))


def append_jsonl(file: Path, rows: Iterable[Any]) -> None:
    """Add one line for each row, or where the disk fails none at all."""
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
    """One row as a line; numbers that JSON does not have become null."""
    try:
        return json.dumps(row, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(null_if_not_finite(row)) + "\n"


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value of JSON is a number that a float can hold."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def is_count(value: Any) -> bool:
    """Whether a value of JSON is a whole number from 0."""
    return type(value) is int and value >= 0


def null_if_not_finite(value: Any) -> Any:
    """The value with null for every number that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: null_if_not_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [null_if_not_finite(item) for item in value]
    return value


def flatten(node: Any, path: str = "") -> dict[str, Any]:
    """A nested mapping with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in node.items():
        name = f"{path}.{key}" if path else str(key)
        flat |= flatten(value, name) if isinstance(value, dict) else {name: value}
    return flat


def replace_text(file: Path, text: str) -> None:
    """Replace the file by a text, whole or not at all, also where the machine dies. What is no
    UTF-8, as a name of a file of former times, is written as escapes."""
    partial = file.with_name(f".{file.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        sync(partial)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def replace_folder(partial: Path, final: Path) -> None:
    """Rename into place; what stood there (a save of the same step) is moved aside first."""
    aside = final.with_name(f".{final.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    if final.exists():
        final.rename(aside)
    partial.rename(final)
    sync(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file or the names in a folder are on the disk. Raises OSError where that fails;
    a file system that cannot promise it is not asked for more."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def is_folder(path: Path) -> bool:
    """Whether there is such a folder; a name that no folder can have is none."""
    try:
        return path.is_dir()
    except OSError:
        return False


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path leads into a folder, wherever the links on its way point."""
    return path.resolve().is_relative_to(folder.resolve())


def count_lines(file: Path) -> int:
    """How many whole lines a file has; 0 where there is none."""
    if not file.exists():
        return 0
    with file.open("rb") as log:
        return sum(block.count(b"\n") for block in iter(lambda: log.read(1 << 20), b""))


def truncate(file: Path, lines: int) -> None:
    """Cut a log back to its first lines. Raises UserError where it has fewer."""
    kept, size = 0, 0
    if file.exists():
        with file.open("rb") as log:
            for line in islice(log, lines):
                kept, size = kept + line.endswith(b"\n"), size + len(line)
    if kept < lines:
        raise UserError(f"'{file}' has {kept} lines but the checkpoint needs {lines}; restore it")
    if file.exists() and file.stat().st_size > size:
        with explain_write_errors(file.parent), file.open("r+b") as log:
            log.truncate(size)
