"""Terminal output. Text from models, environments and files cannot move the cursor."""

from __future__ import annotations

import os
import sys

LONG = 1000  # number of items from which progress is printed


def safe(text: str) -> str:
    """Return the text with escapes for all characters that are not printable, except newlines."""
    return "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in text)


def echo(text: object, *, err: bool = False, end: str = "\n") -> None:
    """Print a text to stdout or stderr with `safe`."""
    print(safe(str(text)), file=sys.stderr if err else sys.stdout, end=end, flush=True)


def echo_err(text: str) -> None:
    """Print a text to stderr, or discard this and all later output if stderr is closed."""
    try:
        echo(text, err=True)
    except OSError:
        sys.stdout = sys.stderr = open(os.devnull, "w")
    except RuntimeError:  # a signal arrived during a write to this stream
        pass


def echo_progress(name: str, done: int, count: int) -> None:
    """Print the progress of long work to stderr after each tenth of it."""
    if count >= LONG and done % (count // 10) == 0:
        echo(f"{name}: {done:,} of {count:,}", err=True)


def _escape(character: str) -> str:
    return " " if character == "\t" else character.encode("unicode_escape").decode()
