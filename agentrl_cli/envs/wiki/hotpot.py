"""Questions with their paragraphs in the public JSON forms of HotpotQA and 2WikiMultiHopQA.

The paragraphs of all questions make one encyclopedia. A paragraph links to the others of its
questions whose titles it names, for the files hold no links.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

from agentrl_cli.envs.wiki.folder import TITLE_LENGTH, clean, not_taken, pieces
from agentrl_cli.envs.wiki.pages import Encyclopedia, Page, encyclopedia_of, link_key

MOST_LINKS = 200  # of a paragraph that many questions share
Sentences = tuple[str, ...]


class Paragraphs:
    """Collects the paragraphs of questions: of two with the same title, but for case, and other
    sentences the later one has a number behind its title."""

    def __init__(self) -> None:
        self.titles: dict[tuple[str, Sentences], str] = {}
        self.taken: set[str] = set()
        self.beside: dict[str, dict[str, None]] = {}
        self.places: dict[str, list[list[int]]] = {}

    def add(self, row: dict[str, Any]) -> dict[str, str]:
        """Take in a question's paragraphs; from each title in its row to that of its page.
        ValueError says what is wrong with them."""
        found: dict[str, str] = {}
        for title, sentences in _paragraphs(row.get("context")):
            key = (clean(title), tuple(map(clean, sentences)))
            found.setdefault(title, self.titles.get(key) or self._take(key))
        for page in found.values():
            others = self.beside[page]
            if len(others) < MOST_LINKS:
                others |= {title: None for title in found.values() if title != page}
        return found

    def _take(self, key: tuple[str, Sentences]) -> str:
        self.titles[key] = title = not_taken(key[0][:TITLE_LENGTH] or "Untitled", self.taken)
        self.beside[title] = {}
        counts, begin, places = [len(pieces(sentence)) for sentence in key[1]], 1, []
        for count in counts:
            places.append([*range(begin, begin + count)])
            begin += count
        self.places[title] = places
        return title

    def proof(self, row: dict[str, Any], titles: dict[str, str]) -> list[list[list[Any]]]:
        """The supporting facts as steps of a proof. Facts beyond the end of their paragraph, of
        which the public files have some, are left out. ValueError for a form that is none."""
        steps = []
        for title, number in _pairs(row.get("supporting_facts"), "supporting_facts", "sent_id"):
            page = titles.get(title)
            if not isinstance(number, int):
                raise ValueError(f"a supporting fact is {str([title, number])[:60]}")
            if page is None:
                raise ValueError(f"no paragraph is called '{title[:60]}', as a supporting fact is")
            lines = self.places[page][number : number + 1] if number >= 0 else []
            steps += [[[page, line] for line in lines[0]]] if lines and lines[0] else []
        return [step for i, step in enumerate(steps) if step not in steps[:i]]

    def encyclopedia(self) -> Encyclopedia:
        """All that was taken in."""
        return encyclopedia_of(
            _linked(title, sentences, self.beside[title])
            for (_, sentences), title in self.titles.items()
        )


def _linked(title: str, sentences: Sentences, others: Iterable[str]) -> Page:
    """A paragraph that marks the titles of these other pages where it names them."""
    text, links = "\n".join(sentences), dict[str, str | None]()
    for other in sorted(others, key=len, reverse=True):
        if other in text:
            named = rf"(?<![\[\w]){re.escape(other)}(?![\]\w])"
            text, count = re.subn(named, lambda found: f"[{found[0]}]", text, count=1)
            if count:
                links[link_key(other)] = other
    lines = chain.from_iterable(map(pieces, text.split("\n")))
    return Page(title, "", tuple(lines) or ("This page is empty.",), links)


def _paragraphs(context: Any) -> list[tuple[str, list[str]]]:
    found = []
    for title, sentences in _pairs(context, "context", "sentences"):
        if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
            raise ValueError(f"the paragraph '{title[:40]}' is no list of sentences")
        found.append((title, sentences))
    return found


def _pairs(value: Any, name: str, second: str) -> list[tuple[str, Any]]:
    """[[title, …], …] or, as data sets have it, {"title": […], SECOND: […]}."""
    if isinstance(value, dict):
        titles, others = value.get("title"), value.get(second)
        if isinstance(titles, list) and isinstance(others, list) and len(titles) == len(others):
            value = list(zip(titles, others, strict=True))
    if not isinstance(value, list) or not all(map(_is_pair, value)):
        raise ValueError(f"its '{name}' is no list of pairs")
    return [(row[0], row[1]) for row in value]


def _is_pair(row: Any) -> bool:
    return isinstance(row, list | tuple) and len(row) == 2 and isinstance(row[0], str)
