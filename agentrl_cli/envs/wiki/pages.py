"""Pages of numbered lines with links, and the encyclopedia that holds them: what is there to read.

How pages are made is generator.py's, folder.py's and hotpot.py's work; what is shown of them is
browser.py's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from agentrl_cli.envs.wiki.search import SearchIndex

Line = tuple[str, int]  # a page's title and the number of one of its lines, counted from 1
SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class Page:
    """A page: `summary` follows the title where it is shown, "" for none. `lines` are as shown, and
    `links` lead from a link's text, as `link_key` has it, to a title, or to None: a dead link."""

    title: str
    summary: str
    lines: tuple[str, ...]
    links: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def heading(self) -> str:
        """The title and what the page is about."""
        return f"{self.title}, {self.summary}" if self.summary else self.title


@dataclass(frozen=True, eq=False)
class Encyclopedia:
    """Pages by title; compared by identity. With `number_last` the number of a line stands at its
    end, where a small model can copy it: it reads on from what it knows, and not back."""

    pages: Mapping[str, Page]
    number_last: bool = False

    @cached_property
    def index(self) -> SearchIndex:
        """The search index, built when it is first asked for."""
        return SearchIndex((page.title, " ".join(page.lines)) for page in self.pages.values())

    @cached_property
    def titles(self) -> dict[str, str]:
        """From each title as `link_key` has it to the title."""
        return {link_key(title): title for title in self.pages}

    def search(self, words: str) -> tuple[str, ...]:
        """The titles that BM25 finds for words, best first; a page of this very title comes before
        all."""
        found = self.index.search(words)
        exact = self.titles.get(link_key(words))
        return found if exact is None else (exact, *(title for title in found if title != exact))

    def numbered(self, page: Page) -> list[str]:
        """The lines of a page with their numbers, as they are shown."""
        rows = enumerate(page.lines, start=1)
        if self.number_last:
            return [f"{line.removesuffix('.')} ({number})." for number, line in rows]
        return [f"{number} {line}" for number, line in rows]

    def text(self, line: Line) -> str:
        """What a line says. KeyError or IndexError where there is none."""
        return self.pages[line[0]].lines[line[1] - 1]


def link_key(text: str) -> str:
    """A link's text or a title without case, brackets and more than single spaces."""
    return SPACES.sub(" ", text).strip().strip("[]").strip().casefold()


def encyclopedia_of(pages: Iterable[Page], *, number_last: bool = False) -> Encyclopedia:
    """The encyclopedia of these pages; of several with one title the first."""
    by_title: dict[str, Page] = {}
    for page in pages:
        by_title.setdefault(page.title, page)
    return Encyclopedia(by_title, number_last)
