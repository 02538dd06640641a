"""Lines and tables of text for a terminal, made safe there."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from itertools import chain, count

from agentrl_cli.core.terminal import safe

LABEL_WIDTH = 10
MIN_ROOM, BELOW = 20, 4  # what a text needs beside its label, and its indent where it stands below


def labelled(label: str, text: str, width: int = 100) -> list[str]:
    """`  label     text`, wrapped, later lines aligned with the first; where a terminal is too
    narrow for both beside each other, the text stands below."""
    head = f"  {safe(label):<{LABEL_WIDTH}}"
    is_beside = width - len(head) >= MIN_ROOM
    indent = len(head) if is_beside else BELOW
    room = max(width - indent, MIN_ROOM // 2)
    paragraphs = safe(text).split("\n") or [""]
    lines = [part for paragraph in paragraphs for part in textwrap.wrap(paragraph, room) or [""]]
    lines = [" " * indent + line for line in lines]
    return [head + lines[0][indent:], *lines[1:]] if is_beside else [head.rstrip(), *lines]


def painted(lines: Iterable[str], styles: Mapping[str, str]) -> str:
    """Lines of labels and texts with the codes of a terminal's colours: each label's lines in its
    style, all else as it is."""
    from rich.console import Console
    from rich.text import Text

    console, style = Console(highlight=False, soft_wrap=True), ""
    with console.capture() as captured:
        for line in lines:
            word = line.split(" ", 1)[0] or line[2 : 2 + LABEL_WIDTH].strip()
            style = styles.get(word, "") if word else style
            console.print(Text(line, style=style))
    return captured.get()


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
