"""Text for a terminal: nothing that a model, a world or a file wrote may move the cursor."""

from __future__ import annotations

import os
import sys

LONG = 1000  # pieces of work from which on a person is told how far it has come


def safe(text: str) -> str:
    """The text with every character that is not printable, newlines apart, written as an escape."""
    return "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in text)


def say(text: object, *, err: bool = False, end: str = "\n") -> None:
    """Print a text, made safe, to stdout or stderr."""
    print(safe(str(text)), file=sys.stderr if err else sys.stdout, end=end, flush=True)


def tell(text: str) -> None:
    """Say it on stderr; where that is gone, as with a closed terminal, nobody is told any more."""
    try:
        say(text, err=True)
    except OSError:
        sys.stdout = sys.stderr = open(os.devnull, "w")
    except RuntimeError:  # a signal came while this stream was being written
        pass


def tell_tenths(what: str, done: int, count: int) -> None:
    """Say on stderr, after each tenth of a long piece of work, how far it has come."""
    if count >= LONG and done % (count // 10) == 0:
        say(f"{what}: {done:,} of {count:,}", err=True)


def _escape(character: str) -> str:
    return " " if character == "\t" else character.encode("unicode_escape").decode()
