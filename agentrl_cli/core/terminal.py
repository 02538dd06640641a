"""Terminal output. Text from models, environments and files cannot move the cursor."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from contextlib import suppress

LEAST_WIDTH = 20  # of wrapped text, in characters
LONG = 1000  # number of items from which progress is printed


def safe(text: str) -> str:
    """Return the text with escapes for all characters that are not printable, except newlines."""
    return "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in text)


def echo(text: object, *, err: bool = False, end: str = "\n") -> None:
    """Print a text to stdout or stderr with `safe`. If stderr is lost, this and all later messages
    are discarded. Raises OSError if stdout is lost."""
    stream = sys.stderr if err else sys.stdout
    if stream is None:  # it was closed when this process began
        return
    try:
        print(safe(str(text)), file=stream, end=end, flush=True)
    except OSError:
        if not err:
            raise
        sys.stderr = open(os.devnull, "w")


def echo_err(text: str) -> None:
    """Print a text to stderr from a place where a signal may arrive."""
    with suppress(RuntimeError):  # it arrived during a write to this stream
        echo(text, err=True)


def has_lost_stdout() -> bool:
    """Return whether nothing more can be written to stdout. If so, all later output is discarded;
    otherwise a new line is printed."""
    try:
        echo("")
        return False
    except OSError:
        sys.stdout = open(os.devnull, "w")
        return True


def terminal_width() -> int | None:
    """Return the columns of the terminal, or None if stdout is not one."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if is_terminal else None


def wrapped(text: str, width: int | None, column: int = 0) -> list[str]:
    """Return the lines of a text that begins at `column` of a terminal. Without a width there is
    one line."""
    if width is None:
        return [text]
    return textwrap.wrap(text, max(width - column, LEAST_WIDTH), break_on_hyphens=False) or [""]


def echo_progress(name: str, done: int, count: int) -> None:
    """Print the progress of long work to stderr after each tenth of it."""
    if count >= LONG and done % (count // 10) == 0:
        echo(f"{name}: {done:,} of {count:,}", err=True)


def _escape(character: str) -> str:
    return " " if character == "\t" else character.encode("unicode_escape").decode()
