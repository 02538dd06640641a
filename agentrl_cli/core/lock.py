"""One process at a time: a lock on a file, which the system takes back when its holder dies."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(file: Path) -> Iterator[bool]:
    """Whether nobody else holds the file's lock; if so, held until the end. What is in the file
    stays; one that is not there is made."""
    with file.open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks: nobody can hold one
            pass
        yield True
