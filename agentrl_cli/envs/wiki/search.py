"""Search by BM25 over titles and texts, by SQLite's full-text index in memory.

SQLite comes with Python, is kept for decades to come, and gives the same order for the same pages
and words; words are compared by their stems and without accents.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from threading import Lock

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.text import encodable

WORD = re.compile(r"\w+")
MAX_WORDS, MAX_WORD = 16, 40  # of a search: words, and characters of each
MAX_FOUND = 50  # titles of a search
TITLE_WEIGHT = 8.0  # a word in a title counts as so many in the text


class SearchIndex:
    """An index of (title, text) pairs, which threads may share. UserError without FTS5."""

    def __init__(self, pages: Iterable[tuple[str, str]]) -> None:
        rows = list(pages)
        self.titles = [title for title, _ in rows]
        self._lock = Lock()
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self._connection.execute(
                "create virtual table pages using fts5("
                "title, text, content='', tokenize='porter unicode61 remove_diacritics 2')"
            )
        except sqlite3.OperationalError as error:
            raise UserError(
                f"this Python's SQLite has no full-text search ({error}); use one that has FTS5"
            ) from None
        self._connection.executemany(
            "insert into pages(rowid, title, text) values (?, ?, ?)",
            ((i, *_storable(row)) for i, row in enumerate(rows)),
        )

    def search(self, words: str) -> tuple[str, ...]:
        """At most MAX_FOUND titles of pages with any of the words, the best first, of equally good
        ones the first in the encyclopedia."""
        found = list(dict.fromkeys(word[:MAX_WORD] for word in WORD.findall(_storable_text(words))))
        if not found:
            return ()
        order = f"bm25(pages, {TITLE_WEIGHT}, 1.0), rowid"
        statement = f"select rowid from pages where pages match ? order by {order} limit ?"
        with self._lock:
            query = " OR ".join(self._telling(found[:MAX_WORDS]))
            rows = self._connection.execute(statement, (query, MAX_FOUND)).fetchall()
        return tuple(self.titles[row] for (row,) in rows)

    def _telling(self, words: list[str]) -> list[str]:
        """The words, quoted, without those that more than half of the pages have: BM25 gives such a
        word no weight, and it costs a look at every page. The rarest one where all are such."""
        quoted = [f'"{word}"' for word in words]
        if len(quoted) == 1:
            return quoted
        count = "select count(*) from pages where pages match ?"
        pages = [self._connection.execute(count, (word,)).fetchone()[0] for word in quoted]
        known = [(n, word) for n, word in zip(pages, quoted, strict=True) if n]
        rare = [word for n, word in known if n <= len(self.titles) / 2]
        return rare or [min(known)[1] if known else quoted[0]]


def _storable(row: tuple[str, str]) -> tuple[str, str]:
    return _storable_text(row[0]), _storable_text(row[1])


def _storable_text(text: str) -> str:
    """The text as SQLite can store it: without lone surrogates and null characters."""
    return encodable(text).replace("\0", " ")
