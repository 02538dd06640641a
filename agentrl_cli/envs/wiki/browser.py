"""The text browser: what is open, what was there before, and what is shown of it. Knows no task."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from agentrl_cli.envs.wiki.actions import MAX_LINES, line_numbers
from agentrl_cli.envs.wiki.pages import Encyclopedia, Line, link_key
from agentrl_cli.envs.wiki.search import WORD

NEXT, PREVIOUS = "next", "previous"
MAX_SHOWN = 60  # characters of an agent's own words that are repeated to it


@dataclass(frozen=True)
class View:
    """What is open, at one of its parts: the page `title`; where that is "", search results."""

    title: str = ""
    results: tuple[str, ...] = ()
    part: int = 0


@dataclass
class Browser:
    """Shows `page_lines` lines of a page and `page_results` results of a search at a time. `views`
    are what was opened, the last one what is open; `saved` the lines that were saved, in order."""

    page_lines: int
    page_results: int
    views: list[View] = field(default_factory=list)
    saved: list[Line] = field(default_factory=list)

    @property
    def view(self) -> View | None:
        """What is open."""
        return self.views[-1] if self.views else None

    def act(self, pages: Encyclopedia, verb: str, argument: str) -> tuple[str, bool]:
        """What the browser shows after an action of any verb but submit, and whether it could do
        it."""
        if verb != "back" and not argument:
            return f"{verb.upper()} needs {NEEDED[verb]}.", False
        if verb == "search":
            return self._go(pages, View(results=pages.search(argument))), True
        if verb == "back":
            return self._back(pages)
        if verb == "open":
            return self._open(pages, argument)
        return self._find(pages, argument) if verb == "find" else self._save(pages, argument)

    def render(self, pages: Encyclopedia) -> str:
        """What is open, a heading and a line each for what it shows."""
        view = self.view
        if view is None:
            return "Nothing is open."
        if not view.title and not view.results:
            return "No page found."
        page, count = pages.pages.get(view.title), len(view.results)
        heading = page.heading if page else f"{count} {'page' if count == 1 else 'pages'}"
        rows = (
            pages.numbered(page) if page else [pages.pages[t].heading + "." for t in view.results]
        )
        size = self._size(view)
        shown = rows[view.part * size : (view.part + 1) * size]
        parts = -(-len(rows) // size)
        where = f", page {view.part + 1} of {parts}" if parts > 1 else ""
        turns = [f"[{PREVIOUS}]"] * (view.part > 0) + [f"[{NEXT}]"] * (view.part + 1 < parts)
        return "\n".join([f"{heading}{where}.", *shown, *[" ".join(turns)][: len(turns)]])

    def links(self, pages: Encyclopedia, view: View | None = None) -> dict[str, str | None]:
        """Where what is shown of what is open, or of this view, leads to, by link as `link_key` has
        it."""
        view = view or self.view
        if view is None:
            return {}
        size = self._size(view)
        shown = slice(view.part * size, (view.part + 1) * size)
        if not view.title:
            return {link_key(title): title for title in view.results[shown]}
        page = pages.pages[view.title]
        if len(page.lines) <= size:
            return dict(page.links)
        text = "\n".join(page.lines[shown]).casefold()
        return {key: to for key, to in page.links.items() if key in text}

    def part_with(self, pages: Encyclopedia, title: str) -> int | None:
        """The part of what is open that leads to a page, the shown one first; None for none."""
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

    def _go(self, pages: Encyclopedia, view: View) -> str:
        self.views.append(view)
        return self.render(pages)

    def _back(self, pages: Encyclopedia) -> tuple[str, bool]:
        if len(self.views) < 2:
            return "There is nothing to go back to.", False
        self.views.pop()
        return self.render(pages), True

    def _open(self, pages: Encyclopedia, link: str) -> tuple[str, bool]:
        """Open a link of what is open, or the part of it before or behind the one shown."""
        view, key = self.view, link_key(link)
        links = self.links(pages)
        if key not in links:
            return self._turn_page(pages, view, key, link)
        title = links[key]
        if title is None:
            return f"The link {clipped(link)} leads to no page.", True
        return self._go(pages, View(title)), True

    def _turn_page(
        self, pages: Encyclopedia, view: View | None, key: str, link: str
    ) -> tuple[str, bool]:
        step = {NEXT: 1, PREVIOUS: -1}.get(key, 0)
        if view is None or not step or not 0 <= view.part + step < self._parts(pages, view):
            return f"There is no link {clipped(link)} here.", False
        self.views[-1] = replace(view, part=view.part + step)
        return self.render(pages), True

    def _find(self, pages: Encyclopedia, words: str) -> tuple[str, bool]:
        """The lines of the open page, of all its parts, that hold all the words."""
        view = self.view
        if view is None or not view.title:
            return "No page is open.", False
        wanted = {word.casefold() for word in WORD.findall(words)}
        rows = pages.numbered(pages.pages[view.title])
        found = [row for row in rows if wanted <= {word.casefold() for word in WORD.findall(row)}]
        if not wanted or not found:
            return f"No line has {clipped(words)}.", True
        more = [f"{len(found)} lines have it."] if len(found) > self.page_lines else []
        return "\n".join([*found[: self.page_lines], *more]), True

    def _save(self, pages: Encyclopedia, argument: str) -> tuple[str, bool]:
        view, numbers = self.view, line_numbers(argument)
        if view is None or not view.title:
            return "No page is open.", False
        if not numbers:
            return "SAVE needs the numbers of lines.", False
        lines = pages.pages[view.title].lines
        missing = [number for number in numbers if not 1 <= number <= len(lines)]
        if missing:
            return f"There is no line {missing[0]} here.", False
        if len(numbers) > MAX_LINES:
            return f"SAVE takes {MAX_LINES} lines at most.", False
        new = [(view.title, n) for n in numbers if (view.title, n) not in self.saved]
        self.saved += new
        if not new:
            return "Saved before.", True
        if len(new) > 1:
            return f"Saved {len(new)} lines.", True
        return f"Saved: {lines[new[0][1] - 1]}", True


NEEDED = {"search": "words", "find": "words", "open": "a link", "save": "the numbers of lines"}


def clipped(text: str) -> str:
    """The beginning of what an agent wrote, in one line and without lone surrogates."""
    text = " ".join(text.encode("utf-8", "replace").decode().split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
