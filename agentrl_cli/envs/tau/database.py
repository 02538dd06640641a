"""A copy-on-write view of shared tables: an episode copies only the records that it changes.

Records are JSON values. Only a record that `Table.edit` returned may be changed in place.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from typing import Any

Record = dict[str, Any]


class SharedTable(dict[str, Record]):
    """A table that all episodes share and none changes."""

    @cached_property
    def texts(self) -> dict[str, str]:
        """The canonical text of every record."""
        return {key: canonical_text(record) for key, record in self.items()}


Tables = Mapping[str, SharedTable]


class Table(Mapping[str, Record]):
    """One table of an episode. Reading returns shared records; `edit` returns a private copy."""

    def __init__(self, base: SharedTable) -> None:
        self.base = base
        self.changed: dict[str, Record] = {}

    def __getitem__(self, key: str) -> Record:
        return self.changed[key] if key in self.changed else self.base[key]

    def __contains__(self, key: object) -> bool:
        return key in self.base or key in self.changed

    def __iter__(self) -> Iterator[str]:
        yield from self.base
        yield from (key for key in self.changed if key not in self.base)

    def __len__(self) -> int:
        return len(self.base) + sum(key not in self.base for key in self.changed)

    def edit(self, key: str) -> Record:
        """Return the episode's own copy of a record. Raises KeyError for an unknown key."""
        if key not in self.changed:
            self.changed[key] = copy.deepcopy(self.base[key])
        return self.changed[key]

    def add(self, key: str, record: Record) -> None:
        """Append a new record."""
        self.changed[key] = record

    def touched(self) -> dict[str, str]:
        """Return the canonical text of every record that differs from the shared table."""
        texts = {key: canonical_text(record) for key, record in self.changed.items()}
        before = {key: canonical_text(self.base[key]) for key in texts if key in self.base}
        return {key: text for key, text in texts.items() if text != before.get(key)}

    def text(self) -> str:
        """Return the canonical text of the whole table."""
        changed = {key: canonical_text(record) for key, record in self.changed.items()}
        texts = self.base.texts | changed
        return _tuple([f"({key!r}, {texts[key]})" for key in sorted(texts)])


class Database:
    """All tables of an episode, by name."""

    def __init__(self, tables: Tables) -> None:
        self.tables = {name: Table(base) for name, base in tables.items()}

    def __getitem__(self, name: str) -> Table:
        return self.tables[name]

    def find(self, table: str, key: Any, noun: str) -> Record:
        """Return a shared record. Raises ValueError("NOUN not found") for an unknown key."""
        if key not in self[table]:
            raise ValueError(f"{noun} not found")
        return self[table][key]

    def touched(self) -> dict[str, dict[str, str]]:
        """Return the differences from the shared tables. Two views of the same tables are equal if
        and only if these are equal, so the reward needs no hash of the whole state."""
        found = {name: table.touched() for name, table in self.tables.items()}
        return {name: texts for name, texts in found.items() if texts}

    def digest(self) -> str:
        """Return τ-bench's hash of the whole state, in hexadecimal."""
        whole = _tuple([f"({name!r}, {self.tables[name].text()})" for name in sorted(self.tables)])
        return sha256(whole.encode()).hexdigest()


def canonical_text(value: object) -> str:
    """Return the text that τ-bench hashes: Python's text of nested tuples, mappings as pairs sorted
    by key, lists in order. So 250 and 250.0, or True and 1, differ."""
    if isinstance(value, dict):
        return _tuple([f"({key!r}, {canonical_text(value[key])})" for key in sorted(value)])
    return _tuple(list(map(canonical_text, value))) if isinstance(value, list) else repr(value)


def _tuple(parts: list[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
