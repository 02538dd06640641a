"""A copy-on-write view over shared tables: an episode copies only the records that it changes.

Records are JSON values and are never changed in place unless `edit` handed them out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from typing import Any

Record = dict[str, Any]


class SharedTable(dict[str, Record]):
    """A shared table; nobody changes it."""

    @cached_property
    def texts(self) -> dict[str, str]:
        """The canonical text of every record, worked out once."""
        return {key: canonical_text(record) for key, record in self.items()}


Tables = Mapping[str, Mapping[str, Record]]


class Table(Mapping[str, Record]):
    """One table: reading gives shared records, `edit` a private copy that may be changed."""

    def __init__(self, base: Mapping[str, Record]) -> None:
        self.base = base if isinstance(base, SharedTable) else SharedTable(base)
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
        """The record as this episode's own. KeyError where there is none."""
        if key not in self.changed:
            self.changed[key] = copy.deepcopy(self.base[key])
        return self.changed[key]

    def add(self, key: str, record: Record) -> None:
        """Put a new record at the end."""
        self.changed[key] = record

    def touched(self) -> dict[str, str]:
        """The canonical text of every record that differs from the shared one."""
        before = {key: canonical_text(self.base[key]) for key in self.changed if key in self.base}
        now = {key: canonical_text(record) for key, record in self.changed.items()}
        return {key: text for key, text in now.items() if text != before.get(key)}

    def text(self) -> str:
        """The canonical text of the whole table."""
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
        """A shared record by its key. ValueError says that the `noun` is not there."""
        if key not in self[table]:
            raise ValueError(f"{noun} not found")
        return self[table][key]

    def touched(self) -> dict[str, dict[str, str]]:
        """What differs from the shared tables. Two views of the same tables are equal exactly where
        this is: the verdict needs no hash of everything."""
        found = {name: table.touched() for name, table in self.tables.items()}
        return {name: texts for name, texts in found.items() if texts}

    def digest(self) -> str:
        """τ-bench's hash of the whole state, in hexadecimal."""
        whole = _tuple([f"({name!r}, {self.tables[name].text()})" for name in sorted(self.tables)])
        return sha256(whole.encode()).hexdigest()


def canonical_text(value: object) -> str:
    """The text that τ-bench hashes, Python's of nested tuples: mappings as pairs by key, lists in
    order; so 250 and 250.0, or True and 1, differ."""
    if isinstance(value, dict):
        return _tuple([f"({key!r}, {canonical_text(value[key])})" for key in sorted(value)])
    return _tuple(list(map(canonical_text, value))) if isinstance(value, list) else repr(value)


def _tuple(parts: list[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
