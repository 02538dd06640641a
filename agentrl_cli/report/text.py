"""Text for a terminal: nothing that a model or a world wrote may move the cursor."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import chain, count

LABEL_WIDTH = 10


def safe(text: str) -> str:
    """The text with every character that is not printable, newlines apart, written as an escape."""
    return "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in text)


def labelled(label: str, text: str, width: int = 100) -> list[str]:
    """`  label     text`, wrapped, later lines aligned with the first."""
    head = f"  {safe(label):<{LABEL_WIDTH}}"
    room = max(width - len(head), 20)
    paragraphs = safe(text).split("\n") or [""]
    lines = [part for paragraph in paragraphs for part in textwrap.wrap(paragraph, room) or [""]]
    return [(head if i == 0 else " " * len(head)) + line for i, line in enumerate(lines)]


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Columns padded to their widest cell."""
    cells = [[safe(cell).replace("\n", " ") for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells
    ]


def number_duplicates(names: Iterable[str], suffix: str) -> list[str]:
    """The names, made different: equal ones get a suffix like `-{}` with a number from 2 on."""
    distinct: dict[str, None] = {}
    for name in names:
        numbered = chain([name], (name + suffix.format(number) for number in count(2)))
        distinct[next(candidate for candidate in numbered if candidate not in distinct)] = None
    return list(distinct)


def _escape(character: str) -> str:
    return " " if character == "\t" else character.encode("unicode_escape").decode()
