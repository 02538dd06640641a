"""Pages of numbered lines with links, and the encyclopedia that holds and searches them.

Search is BM25 over titles and texts by SQLite's full-text index in memory. SQLite comes with
Python and returns the same order for the same pages and words. Words are compared by their stems
and without accents.
"""

from __future__ import annotations

import re
import sqlite3
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.text import encodable

Line = tuple[str, int]  # a page's title and the number of one of its lines, counted from 1
SPACES = re.compile(r"\s+")
WORD = re.compile(r"\w+")
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
MAX_WORDS, MAX_WORD = 16, 40  # words of a search, and characters of a word
MAX_FOUND = 50  # titles of a search
TITLE_WEIGHT = 8.0  # of a word in a title; a word in the text has 1


@dataclass(frozen=True)
class Page:
    """A page. `summary` follows the title in headings ("" for none). `links` map a link's text, as
    `link_key` returns it, to a title, or to None for a dead link."""

    title: str
    summary: str
    lines: tuple[str, ...]
    links: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def heading(self) -> str:
        return f"{self.title}, {self.summary}" if self.summary else self.title


@dataclass(frozen=True, eq=False)
class Encyclopedia:
    """Pages by title, compared by identity and shared by threads. With `number_last` the number of
    a line is at its end, because a small model can copy a number only after the words that lead to
    it."""

    pages: Mapping[str, Page]
    number_last: bool = False
    _lock: Lock = field(default_factory=Lock, repr=False)

    @cached_property
    def index(self) -> sqlite3.Connection:
        """The search index, built on first use. Raises UserError if SQLite lacks FTS5."""
        index = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            index.execute(
                "create virtual table pages using fts5("
                "title, text, content='', tokenize='porter unicode61 remove_diacritics 2')"
            )
        except sqlite3.OperationalError as error:
            line = f"this Python's SQLite has no full-text search ({error}); use one with FTS5"
            raise UserError(line, code="missing-fts5") from None
        index.executemany(
            "insert into pages(rowid, title, text) values (?, ?, ?)",
            (
                (i, _storable(page.title), _storable(" ".join(page.lines)))
                for i, page in enumerate(self.pages.values())
            ),
        )
        return index

    @cached_property
    def titles(self) -> dict[str, str]:
        """Titles by their `link_key`."""
        return {link_key(title): title for title in self.pages}

    def search(self, words: str) -> tuple[str, ...]:
        """Return at most MAX_FOUND titles of pages that contain any of the words, and the exact
        title, best first. Pages of equal score keep the order of the encyclopedia."""
        found: tuple[str, ...] = ()
        unique = list(dict.fromkeys(word[:MAX_WORD] for word in WORD.findall(_storable(words))))
        if unique:
            order = f"bm25(pages, {TITLE_WEIGHT}, 1.0), rowid"
            statement = f"select rowid from pages where pages match ? order by {order} limit ?"
            titles = list(self.pages)
            with self._lock:
                query = " OR ".join(self._informative(unique[:MAX_WORDS]))
                rows = self.index.execute(statement, (query, MAX_FOUND)).fetchall()
            found = tuple(titles[row] for (row,) in rows)
        exact = self.titles.get(link_key(words))
        return found if exact is None else (exact, *(title for title in found if title != exact))

    def _informative(self, words: list[str]) -> list[str]:
        """Return the quoted words without those on more than half of the pages, which BM25 gives no
        weight and which make it score every page. If none remains, return the rarest word."""
        quoted = [f'"{word}"' for word in words]
        if len(quoted) == 1:
            return quoted
        count = "select count(*) from pages where pages match ?"
        pages = [self.index.execute(count, (word,)).fetchone()[0] for word in quoted]
        known = [(n, word) for n, word in zip(pages, quoted, strict=True) if n]
        rare = [word for n, word in known if n <= len(self.pages) / 2]
        return rare or [min(known)[1] if known else quoted[0]]

    def numbered(self, page: Page) -> list[str]:
        """Return the lines of a page with their numbers, as they are shown."""
        rows = enumerate(page.lines, start=1)
        if self.number_last:
            return [f"{line.removesuffix('.')} ({number})." for number, line in rows]
        return [f"{number} {line}" for number, line in rows]

    def text(self, line: Line) -> str:
        """Return the text of a line. Raises KeyError or IndexError for an unknown line."""
        return self.pages[line[0]].lines[line[1] - 1]


Row = dict[str, Any]
"""Task data of a question or an article: `id`, `kind`, `question`, `answers` (the first is shown),
and `proof`: for each step a list of lines [title, number], any one of which proves it."""


@dataclass(frozen=True, eq=False)
class WikiData:
    """An encyclopedia with its questions and articles by split, compared by identity."""

    name: str
    encyclopedia: Encyclopedia
    questions: dict[str, list[Row]]
    articles: dict[str, list[Row]]


def encyclopedia_of(pages: Iterable[Page], *, number_last: bool = False) -> Encyclopedia:
    """Return the encyclopedia of these pages; of pages with the same title the first is kept."""
    by_title: dict[str, Page] = {}
    for page in pages:
        by_title.setdefault(page.title, page)
    return Encyclopedia(by_title, number_last)


def link_key(text: str) -> str:
    """Return a link or a title in lower case, without brackets and with single spaces."""
    return SPACES.sub(" ", text).strip().strip("[]").strip().casefold()


def normalise(text: str) -> str:
    """Remove case, punctuation, articles and extra spaces, as SQuAD and HotpotQA do to compare
    answers (Rajpurkar et al. 2016)."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def _storable(text: str) -> str:
    """Replace lone surrogates and null characters, which SQLite cannot store."""
    return encodable(text).replace("\0", " ")
