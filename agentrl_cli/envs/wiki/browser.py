"""The text browser: parse an action and show pages. It is independent of the task.

An action is the last line of the agent's text: SEARCH words, OPEN link, FIND words, BACK, SAVE
lines, or SUBMIT answer. Lower case, a colon after the verb, `Action:` before it, and brackets
around the argument are accepted. Asterisks and backticks around the action or its verb are ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from agentrl_cli.envs.wiki.pages import WORD, Encyclopedia, Line, link_key

VERBS = ("search", "open", "find", "back", "save", "submit")
FORM = re.compile(
    rf"\s*(?:action\s*:\s*)?({'|'.join(VERBS)})\b[*`]*\s*:?[*`]*\s*(.*)", re.IGNORECASE
)
IN_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
RANGE = re.compile(r"(\d{1,6})(?:\s*-\s*(\d{1,6}))?")
LINE_LIST = re.compile(r"(?:lines?\b)?[\d\s,\-]*(?:and[\d\s,\-]*)*", re.IGNORECASE)
MAX_ARGUMENT = 400  # characters
MAX_LINES = 100  # of one SAVE
MAX_SHOWN = 60  # characters of the agent's own words in an observation
NEXT, PREVIOUS = "next", "previous"
NEEDED = {"search": "words", "find": "words", "open": "a link", "save": "the numbers of lines"}


@dataclass(frozen=True)
class Action:
    """A verb in lower case ("" for an unknown action) and its argument."""

    verb: str
    argument: str = ""


def parse(text: str) -> Action:
    """Return the action in the last line that is not empty. Never raises."""
    last = text.strip().rpartition("\n")[2].strip().strip("*`")
    found = FORM.fullmatch(last[: 2 * MAX_ARGUMENT])
    if found is None:
        return Action("")
    argument = found[2].strip()[:MAX_ARGUMENT]
    if whole := IN_BRACKETS.fullmatch(argument):
        argument = whole[1].strip()
    return Action(found[1].lower(), argument)


def line_numbers(argument: str) -> list[int]:
    """Return the numbers of `3`, `1 4`, `1, 2 and 5` or `2-4` in order, at most MAX_LINES + 1 of a
    range, and [] for other text. Never raises."""
    if not LINE_LIST.fullmatch(argument := argument.strip("(). ")):
        return []
    numbers: list[int] = []
    for first, last in RANGE.findall(argument):
        end = min(int(last or first), int(first) + MAX_LINES)
        numbers += range(int(first), end + 1)
    return list(dict.fromkeys(numbers))


@dataclass(frozen=True)
class View:
    """One part of the page `title`, or of search results if `title` is ""."""

    title: str = ""
    results: tuple[str, ...] = ()
    part: int = 0


@dataclass
class Browser:
    """Shows `page_lines` lines of a page or `page_results` results of a search at a time. `views`
    is the history, with the open view last; `saved` holds the saved lines in order."""

    page_lines: int
    page_results: int
    views: list[View] = field(default_factory=list)
    saved: list[Line] = field(default_factory=list)

    @property
    def view(self) -> View | None:
        return self.views[-1] if self.views else None

    def act(self, pages: Encyclopedia, verb: str, argument: str) -> tuple[str, bool]:
        """Return the observation of any verb but submit, and whether the action was valid."""
        if verb == "back":
            if len(self.views) < 2:
                return "There is nothing to go back to.", False
            self.views.pop()
            return self.render(pages), True
        if not argument:
            return f"{verb.upper()} needs {NEEDED[verb]}.", False
        if verb == "search":
            self.views.append(View(results=pages.search(argument)))
            return self.render(pages), True
        if verb == "open":
            return self._open(pages, argument)
        view = self.view
        if view is None or not view.title:
            return "No page is open.", False
        if verb == "find":
            return self._find(pages, view.title, argument), True
        return self._save(pages, view.title, argument)

    def render(self, pages: Encyclopedia) -> str:
        """Return the open view: a heading and one line for each line or result."""
        view = self.view
        if view is None:
            return "Nothing is open."
        if not view.title and not view.results:
            return "No page found."
        if page := pages.pages.get(view.title):
            heading, rows = page.heading, pages.numbered(page)
        else:
            count = len(view.results)
            heading = f"{count} {'page' if count == 1 else 'pages'}"
            rows = [pages.pages[title].heading + "." for title in view.results]
        size, parts = self._size(view), self._parts(pages, view)
        shown = rows[view.part * size : (view.part + 1) * size]
        where = f", page {view.part + 1} of {parts}" if parts > 1 else ""
        turns = [f"[{PREVIOUS}]"] * (view.part > 0) + [f"[{NEXT}]"] * (view.part + 1 < parts)
        return "\n".join([f"{heading}{where}.", *shown, *[" ".join(turns)][: len(turns)]])

    def links(self, pages: Encyclopedia, view: View | None = None) -> dict[str, str | None]:
        """Return the links of a view (the open one by default), by `link_key`."""
        view = view or self.view
        if view is None:
            return {}
        size = self._size(view)
        shown = slice(view.part * size, (view.part + 1) * size)
        if not view.title:
            titles = view.results[shown]
            names = [(pages.pages[title].heading, title) for title in titles]
            return {link_key(name): to for name, to in [*names, *zip(titles, titles, strict=True)]}
        page = pages.pages[view.title]
        if len(page.lines) <= size:
            return dict(page.links)
        text = "\n".join(page.lines[shown]).casefold()
        return {key: to for key, to in page.links.items() if key in text}

    def part_with(self, pages: Encyclopedia, title: str) -> int | None:
        """Return the part of the open view that links to a page, preferably the shown one."""
        view = self.view
        if view is None:
            return None
        parts = sorted(range(self._parts(pages, view)), key=lambda part: part != view.part)
        views = (replace(view, part=part) for part in parts)
        return next((v.part for v in views if title in self.links(pages, v).values()), None)

    def _size(self, view: View) -> int:
        return self.page_lines if view.title else self.page_results

    def _parts(self, pages: Encyclopedia, view: View) -> int:
        rows = pages.pages[view.title].lines if view.title else view.results
        return -(-len(rows) // self._size(view))

    def _open(self, pages: Encyclopedia, link: str) -> tuple[str, bool]:
        view, key, links = self.view, link_key(link), self.links(pages)
        key = key if key in links else key.rstrip(".")
        if key in links:
            title = links[key]
            if title is None:
                return f"The link {clipped(link)} leads to no page.", True
            self.views.append(View(title))
            return self.render(pages), True
        step = {NEXT: 1, PREVIOUS: -1}.get(key, 0)
        if view is None or not step or not 0 <= view.part + step < self._parts(pages, view):
            return f"There is no link {clipped(link)} here.", False
        self.views[-1] = replace(view, part=view.part + step)
        return self.render(pages), True

    def _find(self, pages: Encyclopedia, title: str, words: str) -> str:
        """Return the lines of the open page, from all its parts, that contain all the words."""
        wanted = {word.casefold() for word in WORD.findall(words)}
        rows = pages.numbered(pages.pages[title])
        found = [row for row in rows if wanted <= {word.casefold() for word in WORD.findall(row)}]
        if not wanted or not found:
            return f"No line has {clipped(words)}."
        more = [f"{len(found)} lines have it."] if len(found) > self.page_lines else []
        return "\n".join([*found[: self.page_lines], *more])

    def _save(self, pages: Encyclopedia, title: str, argument: str) -> tuple[str, bool]:
        numbers, lines = line_numbers(argument), pages.pages[title].lines
        if not numbers:
            return "SAVE needs the numbers of lines.", False
        missing = [number for number in numbers if not 1 <= number <= len(lines)]
        if missing:
            return f"There is no line {missing[0]} here.", False
        if len(numbers) > MAX_LINES:
            return f"SAVE takes {MAX_LINES} lines at most.", False
        new = [(title, n) for n in numbers if (title, n) not in self.saved]
        self.saved += new
        if len(new) == 1:
            return f"Saved: {lines[new[0][1] - 1]}", True
        return (f"Saved {len(new)} lines." if new else "Saved before."), True


def clipped(text: str) -> str:
    """Return the start of the agent's words in one line, without lone surrogates."""
    text = " ".join(text.encode("utf-8", "replace").decode().split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
