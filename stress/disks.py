"""Full and broken disks: every change of a file in a folder fails, in this process only."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stress.kills import CHANGES, changes_file

FREES = ("os.remove", "os.rmdir", "os.truncate")  # operations that a full disk allows


@dataclass
class Disk:
    """Refuses changes of files under `folder` with the error `code`, after the first `room`
    changes."""

    folder: Path
    code: int
    room: int
    changed: list[str] = field(default_factory=list)

    def on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Count or refuse an event of Python's audit."""
        frees = event in FREES and self.code == errno.ENOSPC
        if event not in (*CHANGES, "os.utime") or frees or not changes_file(event, arguments):
            return
        if str(self.folder) in str(arguments[0]):
            self.changed.append(str(arguments[0]))
            if len(self.changed) > self.room:
                raise OSError(self.code, os.strerror(self.code))


_disks: list[Disk] = []  # an audit hook cannot be removed, so this one looks for the current disk


def _ask(event: str, arguments: tuple[Any, ...]) -> None:
    for disk in _disks:
        disk.on_event(event, arguments)


sys.addaudithook(_ask)


@contextmanager
def refusing(folder: Path, code: int, room: int = 0) -> Iterator[Disk]:
    """In this context, changes of files under `folder` fail after the first `room` changes."""
    _disks.append(Disk(folder, code, room))
    try:
        yield _disks[-1]
    finally:
        _disks.clear()
