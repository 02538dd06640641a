"""A set of objects for Twenty Questions: attributes, answers, splits.

It is read from our table (objects.txt, attributes.txt) or from a user's word list.
"""

from __future__ import annotations

import csv
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.text import with_article
from agentrl_cli.core.types import derive_seed
from agentrl_cli.envs.base import require_split

VAL_ONE_IN = 4  # `val` has at most one in four of the objects that are not in `test`
CELL_SIGNS = {"-": "no", "~": "sometimes"}
OBJECT_LINE = re.compile(
    r'(?P<small>\* )?(?P<name>[^"(:]+?)( "(?P<noun>[^"]+)")?'
    r"( \((?P<variants>[^)]+)\))?:(?P<cells>.*)"
)
SUBJECT = re.compile(r"^(\w+ (?:it|you|people))\b")
FORMATS = {
    ".json": "{category: [[name, variant, ...], ...]}, or a list of names",
    ".csv": "a line `name,category,variants` and one for each object, variants parted by |",
    ".txt": "one object per line, then its variants after commas; [category] on separate lines",
}
NAME_COLUMNS = ("name", "word", "object", "keyword")
Row = tuple[str, list[str]]  # category, and the name followed by its variants


@dataclass(frozen=True, eq=False)
class World:
    """Objects and their attributes, cached by `load_world` and compared by identity."""

    name: str
    objects: tuple[str, ...]
    attributes: tuple[str, ...]
    categories: Mapping[str, str]
    nouns: Mapping[str, str]
    variants: Mapping[str, tuple[str, ...]]
    texts: Mapping[str, tuple[str, ...]]
    answers: Mapping[str, Mapping[str, str]]

    def __reduce__(self) -> tuple[Callable[[str], World], tuple[str]]:
        return load_world, (self.name,)

    def answer(self, object: str, attribute: str) -> str:
        """Return `yes`, `no` or `sometimes`."""
        return self.answers[object][attribute]

    def question(self, attribute: str) -> str:
        return self.texts[attribute][0]

    def phrasings(self, attribute: str) -> tuple[tuple[str, bool], ...]:
        """Return all questions for an attribute as (text, negated), negations last. A negation has
        "not" after the subject."""
        plain = self.texts[attribute]
        negated = [(SUBJECT.sub(r"\1 not", text), True) for text in plain]
        return (*((text, False) for text in plain), *negated)

    def guess(self, object: str) -> str:
        return f"Is it {self.nouns[object]}?"

    def split(self, split: str, test_objects: int, seed: int, val_objects: int = 0) -> list[str]:
        """Return the objects of a split, in order. Splits are disjoint and stratified by category;
        `val` has at most a quarter of the objects that are not in `test`."""
        require_split(split)
        if not 0 <= test_objects < len(self.objects):
            line = f"env.test_objects is {test_objects}, and world {self.name} allows 0 to"
            raise UserError(f"{line} {len(self.objects) - 1}", code="out-of-range")
        test = set(self._draw(self.objects, test_objects, "split", seed))
        others = [name for name in self.objects if name not in test]
        count = min(val_objects, len(others) // VAL_ONE_IN)
        val = set(self._draw(others, count, "val", seed))
        chosen = {"test": test, "val": val, "train": {*others} - val}[split]
        return [name for name in self.objects if name in chosen]

    def _draw(self, objects: Sequence[str], count: int, split: str, seed: int) -> list[str]:
        """Draw `count` objects, each category its share rounded by the largest remainder."""
        draw = random.Random(derive_seed("twentyq", split, seed))
        members: dict[str, list[str]] = {}
        for name in objects:
            members.setdefault(self.categories[name], []).append(name)
        ranked = []
        for names in members.values():
            share, tie = count * len(names) / len(objects), draw.random()
            shuffled = draw.sample(names, len(names))
            ranked += [(max(0.0, n - share), tie, name) for n, name in enumerate(shuffled, start=1)]
        return [name for *_, name in sorted(ranked)[:count]]


class Thing(NamedTuple):
    """An object; `cells` holds its answers other than no."""

    category: str
    noun: str
    variants: tuple[str, ...]
    cells: dict[str, str]


@lru_cache(maxsize=16)
def load_world(name: str) -> World:
    """Return the world `small` or `full`, or a word list, which has no attributes. Raises UserError
    otherwise."""
    is_list = Path(name).suffix.lower() in FORMATS
    things, texts = (_read_words(name), {}) if is_list else _read_table(name)
    return World(
        name=name,
        objects=tuple(things),
        attributes=tuple(texts),
        categories={key: thing.category for key, thing in things.items()},
        nouns={key: thing.noun for key, thing in things.items()},
        variants={key: thing.variants for key, thing in things.items()},
        texts=texts,
        answers={
            key: {attribute: thing.cells.get(attribute, "no") for attribute in texts}
            for key, thing in things.items()
        },
    )


def _read_table(size: str) -> tuple[dict[str, Thing], dict[str, tuple[str, ...]]]:
    """Return the objects and the texts of attributes; those of `small` are marked by a star."""
    if size not in ("small", "full"):
        line = f"unknown world {size!r}; use 'small', 'full' or the path of a word list"
        raise UserError(line, code="unknown-world")
    rows = [[part.strip() for part in line.split("|")] for line in _lines("attributes.txt")]
    chosen = [row for row in rows if size == "full" or row[0].startswith("*")]
    texts = {key.lstrip("* "): tuple(wordings) for key, *wordings in chosen}
    things, category, shared = dict[str, Thing](), "", dict[str, str]()
    for line in _lines("objects.txt"):
        if line.startswith("["):
            category, _, rest = line[1:].partition("]")
            shared = _cells(rest)
            continue
        match = OBJECT_LINE.fullmatch(line)
        assert match is not None, line
        if match["small"] or size == "full":
            variants = (part.strip() for part in (match["variants"] or "").split(","))
            noun = match["noun"] or with_article(match["name"])
            cells = shared | _cells(match["cells"])
            things[match["name"]] = Thing(category, noun, tuple(filter(None, variants)), cells)
    return things, texts


def _lines(file: str) -> list[str]:
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and line[0] != "#"]


def _cells(text: str) -> dict[str, str]:
    return {word.lstrip("-~"): CELL_SIGNS.get(word[0], "yes") for word in text.split()}


def _read_words(path: str) -> dict[str, Thing]:
    """Return the objects of a word list, in lower case. Raises UserError for an unreadable or empty
    list, and for a name of two objects."""
    suffix = Path(path).suffix.lower()
    read = {".json": _json_rows, ".csv": _csv_rows, ".txt": _text_rows}[suffix]
    things: dict[str, Thing] = {}
    try:
        rows = read(Path(path).read_text(encoding="utf-8-sig"))
        lower = [(group, [name.strip().lower() for name in names]) for group, names in rows]
        counts = Counter(name for _, names in lower for name in dict.fromkeys(names))
        if twice := [name for name, count in counts.items() if count > 1]:
            raise ValueError(f"'{twice[0]}' names two objects")
        if not lower or not all(names[0] for _, names in lower):
            raise ValueError("it is empty or has an object without a name")
        for group, (name, *variants) in lower:
            pairs = (text for text in variants if text.startswith("pair of "))  # of shoes
            things[name] = Thing(group, with_article(next(pairs, name)), tuple(variants), {})
    except (OSError, ValueError, AttributeError, LookupError, TypeError, csv.Error) as error:
        line = f"cannot read the word list {path}: {error}"
        raise UserError(f"{line}; expected {FORMATS[suffix]}", code="bad-word-list") from error
    return things


def _json_rows(text: str) -> list[Row]:
    """Read a JSON list of names, or a mapping from categories to such lists."""
    lists: Any = json.loads(text)
    groups: Any = {"words": lists} if isinstance(lists, list) else lists
    return [
        (group, [row] if isinstance(row, str) else list(row))
        for group, members in groups.items()
        for row in members
    ]


def _csv_rows(text: str) -> list[Row]:
    """Read CSV. Without a header that names a column, the first column holds the names."""
    lines = [line for line in csv.reader(text.splitlines()) if any(line)]
    header = [cell.strip().lower() for cell in lines[0]] if lines else []
    column = next((name for name in NAME_COLUMNS if name in header), None)
    if column is None:
        return [("words", [cell for cell in line if cell.strip()]) for line in lines]
    rows: list[Row] = []
    for row in (dict(zip(header, line, strict=False)) for line in lines[1:]):
        category = row.get("category", "").strip().lower() or "words"
        rows.append((category, [row[column], *filter(None, row.get("variants", "").split("|"))]))
    return rows


def _text_rows(text: str) -> list[Row]:
    rows: list[Row] = []
    category = "words"
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            category = line[1:-1].strip() or "words"
        elif line and not line.startswith("#"):
            rows.append((category, [name for name in line.split(",") if name.strip()]))
    return rows
