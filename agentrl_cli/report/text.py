"""Lines and tables of text for a terminal, made safe there."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import chain, count

from agentrl_cli.core.terminal import safe

LABEL_WIDTH = 10


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
