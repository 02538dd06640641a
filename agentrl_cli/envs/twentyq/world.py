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
from typing import Any

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.text import with_article
from agentrl_cli.core.types import derive_seed
from agentrl_cli.envs.base import require_split

WORLD_NAMES = ("small", "full")
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
Words = dict[str, tuple[str, list[str]]]
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

    def category(self, object: str) -> str:
        return self.categories[object]

    def question(self, attribute: str) -> str:
        return self.texts[attribute][0]

    def phrasings(self, attribute: str) -> tuple[tuple[str, bool], ...]:
        """Return all questions for an attribute as (text, negated), negations last."""
        plain = self.texts[attribute]
        return tuple([(t, False) for t in plain] + [(negate(t), True) for t in plain])

    def guess(self, object: str) -> str:
        return f"Is it {self.nouns[object]}?"

    def matching(self, known: Sequence[tuple[str, str]]) -> list[str]:
        """Return the objects that fit all known (attribute, answer) pairs."""
        return [
            name
            for name, answers in self.answers.items()
            if all(answers[attribute] == answer for attribute, answer in known)
        ]

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


@lru_cache(maxsize=16)
def load_world(name: str) -> World:
    """Return the world `small` or `full`, or a word list, which has no attributes. Raises UserError
    otherwise."""
    if Path(name).suffix.lower() not in FORMATS:
        return _from_table(name)
    words = read_words(name)
    counted = {  # the form that takes an article: "pair of shoes" for "shoes" if it is a variant
        word: next((text for text in rest if text.startswith("pair of ")), word)
        for word, (_, rest) in words.items()
    }
    return World(
        name=name,
        objects=tuple(words),
        attributes=(),
        categories={word: group for word, (group, _) in words.items()},
        nouns={word: with_article(text) for word, text in counted.items()},
        variants={word: tuple(rest) for word, (_, rest) in words.items()},
        texts={},
        answers={word: {} for word in words},
    )


def _from_table(name: str) -> World:
    """Return the objects and attributes of the table; those of `small` are marked by a star."""
    if name not in WORLD_NAMES:
        line = f"unknown world {name!r}; use 'small', 'full' or the path of a word list"
        raise UserError(line, code="unknown-world")
    rows = [[part.strip() for part in line.split("|")] for line in _lines("attributes.txt")]
    keys = {key.lstrip("* ") for key, *_ in rows}
    chosen = [(key, texts) for key, *texts in rows if name == "full" or key.startswith("*")]
    texts = {key.lstrip("* "): tuple(texts) for key, texts in chosen}
    category, defaults = "", dict[str, str]()
    things = dict[str, tuple[str, str, tuple[str, ...], dict[str, str]]]()
    for line in _lines("objects.txt"):
        if line.startswith("["):
            category, _, rest = line[1:].partition("]")
            defaults = _cells(rest, keys)
        elif match := OBJECT_LINE.fullmatch(line):
            cells = {**defaults, **_cells(match["cells"], keys)}
            variants = [part.strip() for part in (match["variants"] or "").split(",") if part]
            noun = match["noun"] or with_article(match["name"])
            if match["small"] or name == "full":
                things[match["name"]] = (category, noun, tuple(variants), cells)
        else:
            raise ValueError(f"objects.txt: cannot read {line!r}")
    return World(
        name=name,
        objects=tuple(things),
        attributes=tuple(texts),
        categories={thing: group for thing, (group, *_) in things.items()},
        nouns={thing: noun for thing, (_, noun, *_) in things.items()},
        variants={thing: variants for thing, (_, _, variants, _) in things.items()},
        texts=texts,
        answers={
            thing: {key: cells.get(key, "no") for key in texts}
            for thing, (*_, cells) in things.items()
        },
    )


def negate(text: str) -> str:
    """Return the negated question, with "not" after the subject."""
    return SUBJECT.sub(r"\1 not", text)


def _lines(file: str) -> list[str]:
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and line[0] != "#"]


def _cells(text: str, keys: set[str]) -> dict[str, str]:
    cells = {word.lstrip("-~"): CELL_SIGNS.get(word[0], "yes") for word in text.split()}
    if unknown := cells.keys() - keys:
        raise ValueError(f"objects.txt: unknown attributes {sorted(unknown)}")
    return cells


def read_words(path: str) -> Words:
    """Return the category and variants of each name, in lower case. Raises UserError for an
    unreadable or empty list, and for a name of two objects."""
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
        raise UserError(f"{line}; expected {FORMATS[suffix]}", code="bad-word-list") from error
    if not all(words) or not words:
        line = f"the word list {path} is empty or has an object without a name"
        raise UserError(f"{line}; name every object", code="bad-word-list")
    return words


def _json_rows(text: str) -> list[Row]:
    """Read a JSON list of names, or a mapping from categories to such lists."""
    lists: Any = json.loads(text)
    groups: Any = {"words": lists} if isinstance(lists, list) and lists else lists
    return [(group, _names(row)) for group, members in groups.items() for row in members]


def _names(row: Any) -> list[str]:
    return [row] if isinstance(row, str) else list(row)


def _csv_rows(text: str) -> list[Row]:
    """Read CSV. Without a header that names a column, the first column holds the names."""
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
    rows: list[Row] = []
    category = "words"
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            category = line[1:-1].strip() or "words"
        elif line and not line.startswith("#"):
            rows.append((category, [name for name in line.split(",") if name.strip()]))
    return rows
