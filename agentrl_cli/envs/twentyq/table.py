"""Reads the table: objects.txt and attributes.txt. What a world does with it is world.py's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from agentrl_cli.core.text import with_article

CELL_SIGNS = {"-": "no", "~": "sometimes"}
OBJECT_LINE = re.compile(
    r'(?P<small>\* )?(?P<name>[^"(:]+?)( "(?P<noun>[^"]+)")?'
    r"( \((?P<variants>[^)]+)\))?:(?P<cells>.*)"
)
SUBJECT = re.compile(r"^(\w+ (?:it|you|people))\b")


@dataclass(frozen=True)
class Attribute:
    """What an object can have, lack or have sometimes; `texts[0]` is its canonical question."""

    key: str
    texts: tuple[str, ...]
    small: bool


@dataclass(frozen=True)
class Thing:
    """An object: noun phrase ("a dog"), other names, and its answers where they are not "no"."""

    name: str
    category: str
    noun: str
    variants: tuple[str, ...]
    cells: dict[str, str]
    small: bool


@lru_cache(maxsize=1)
def attributes() -> tuple[Attribute, ...]:
    """The attributes in the order of the file."""
    return tuple(_attribute(line) for line in _lines("attributes.txt"))


@lru_cache(maxsize=1)
def things() -> tuple[Thing, ...]:
    """The objects in the order of the file. Raises ValueError for a line that does not parse."""
    keys, found = {attribute.key for attribute in attributes()}, []
    category, defaults = "", {}
    for line in _lines("objects.txt"):
        if line.startswith("["):
            category, _, rest = line[1:].partition("]")
            defaults = _cells(rest, keys)
        else:
            found.append(_thing(line, category, defaults, keys))
    return tuple(found)


def negate(text: str) -> str:
    """The negated form of a question: "not" goes behind the subject."""
    return SUBJECT.sub(r"\1 not", text)


def _lines(file: str) -> list[str]:
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and line[0] != "#"]


def _attribute(line: str) -> Attribute:
    key, *texts = (part.strip() for part in line.split("|"))
    return Attribute(key.lstrip("* "), tuple(texts), key.startswith("*"))


def _thing(line: str, category: str, defaults: dict[str, str], keys: set[str]) -> Thing:
    match = OBJECT_LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"objects.txt: cannot read {line!r}")
    name, noun = match["name"], match["noun"] or with_article(match["name"])
    variants = tuple(part.strip() for part in (match["variants"] or "").split(",") if part)
    cells = {**defaults, **_cells(match["cells"], keys)}
    return Thing(name, category, noun, variants, cells, bool(match["small"]))


def _cells(text: str, keys: set[str]) -> dict[str, str]:
    cells = {word.lstrip("-~"): CELL_SIGNS.get(word[0], "yes") for word in text.split()}
    if unknown := cells.keys() - keys:
        raise ValueError(f"objects.txt: unknown attributes {sorted(unknown)}")
    return cells
