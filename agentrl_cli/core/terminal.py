"""Text for a terminal: nothing that a model, a world or a file wrote may move the cursor."""

from __future__ import annotations

import sys


def safe(text: str) -> str:
    """The text with every character that is not printable, newlines apart, written as an escape."""
    return "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in text)


def say(text: object, *, err: bool = False, end: str = "\n") -> None:
    """Print a text, made safe, to stdout or stderr."""
    print(safe(str(text)), file=sys.stderr if err else sys.stdout, end=end, flush=True)


def _escape(character: str) -> str:
    return " " if character == "\t" else character.encode("unicode_escape").decode()
