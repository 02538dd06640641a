"""A user's list of words as the objects of a world: JSON, CSV or text. Nothing in it is run."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

from agentrl_cli.core.errors import UserError

FORMATS = {
    ".json": "{category: [[name, variant, ...], ...]}, or a list of names",
    ".csv": "a line `name,category,variants` and one for each object, variants parted by |",
    ".txt": "one object a line, its variants behind commas; [category] on lines of their own",
}
NAME_COLUMNS = ("name", "word", "object", "keyword")
Words = dict[str, tuple[str, list[str]]]
Row = tuple[str, list[str]]  # category, and the name with its variants behind it


def read_words(path: str) -> Words:
    """From each object's name to its category and its variants, all in lower case. Raises UserError
    for what cannot be read, for an empty list and for a name or variant of two objects."""
    suffix = Path(path).suffix.lower()
    read = {".json": _json_rows, ".csv": _csv_rows, ".txt": _text_rows}[suffix]
    try:
        rows = read(Path(path).read_text(encoding="utf-8-sig"))
        lower = [(group, [name.strip().lower() for name in names]) for group, names in rows]
        counts = Counter(name for _, names in lower for name in dict.fromkeys(names))
        if twice := [name for name, count in counts.items() if count > 1]:
            raise ValueError(f"'{twice[0]}' names two objects")
        words = {names[0]: (group, names[1:]) for group, names in lower}
    except (OSError, ValueError, AttributeError, LookupError, TypeError, csv.Error) as error:
        line = f"cannot read the word list {path}: {error}"
        raise UserError(f"{line}; its form is {FORMATS[suffix]}") from error
    if not all(words) or not words:
        raise UserError(f"the word list {path} lacks names: give every object one, and one object")
    return words


def _json_rows(text: str) -> list[Row]:
    """Rows of a JSON list of names, or of a mapping from categories to such lists."""
    lists: Any = json.loads(text)
    groups: Any = {"words": lists} if isinstance(lists, list) and lists else lists
    return [(group, _names(row)) for group, members in groups.items() for row in members]


def _names(row: Any) -> list[str]:
    return [row] if isinstance(row, str) else list(row)


def _csv_rows(text: str) -> list[Row]:
    """Rows of a CSV file; without a header that names a column, the first column holds names."""
    lines = [line for line in csv.reader(text.splitlines()) if any(line)]
    header = [cell.strip().lower() for cell in lines[0]] if lines else []
    named = next((header.index(name) for name in NAME_COLUMNS if name in header), None)
    if named is None:
        return [("words", [cell for cell in line if cell.strip()]) for line in lines]
    rows = [dict(zip(header, line, strict=False)) for line in lines[1:]]
    return [
        (
            row.get("category", "").strip().lower() or "words",
            [row[header[named]], *filter(None, row.get("variants", "").split("|"))],
        )
        for row in rows
    ]


def _text_rows(text: str) -> list[Row]:
    """Rows of a text file; empty lines and those that begin with # are left out."""
    rows: list[Row] = []
    category = "words"
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            category = line[1:-1].strip() or "words"
        elif line and not line.startswith("#"):
            rows.append((category, [name for name in line.split(",") if name.strip()]))
    return rows
