"""The expert: from line to line of the proof, as a reader would who knows where to look. In the
small encyclopedia it recites before it acts, as the embedded model does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from agentrl_cli.envs.wiki.actions import MAX_ARGUMENT
from agentrl_cli.envs.wiki.browser import NEXT, PREVIOUS, Browser
from agentrl_cli.envs.wiki.pages import Encyclopedia, Line, link_key
from agentrl_cli.envs.wiki.progress import Search

FAR = 2  # parts of a page that are turned rather than passed over


def expert_actions(search: Search, pages: Encyclopedia) -> Iterator[str]:
    """Actions until the episode is over. Each page of the proof is reached by a link of what is
    open, one step back, or a search; its lines are seen before they are saved."""
    recites = pages.number_last and bool(search.task["answers"])
    for thought, action in _turns(search, pages):
        yield f"{thought}\n{action}" if recites else action


def _turns(search: Search, pages: Encyclopedia) -> Iterator[tuple[str, str]]:
    """Actions, each with what is recited before it: the line that it acts by, or what it looks
    for."""
    lines = [step[0] for step in search.proof]
    for title, group in groupby(lines, key=lambda line: line[0]):
        numbers = sorted({number for _, number in group})
        thought = _look_for(pages, (title, numbers[0]))
        yield from ((thought, action) for action in _reach(search, pages, title))
        for number in numbers:
            yield from ((thought, action) for action in _turn_to(search, pages, number))
        if not search.over:
            shown = pages.numbered(pages.pages[title])
            recited = " ".join(shown[number - 1] for number in numbers)
            yield recited, f"SAVE {' '.join(map(str, numbers))}"
    answers = search.task["answers"]
    if not search.over and answers:
        yield f"{_compared(pages, lines)}It is {answers[0]}.", f"SUBMIT {answers[0]}"
    elif not search.over:
        yield "", "SUBMIT"


def _compared(pages: Encyclopedia, lines: list[Line]) -> str:
    """The years that a proof compares, as the embedded model does; "" where it compares none."""
    found = [(line[0], re.fullmatch(r"The year is (\d+)\.", pages.text(line))) for line in lines]
    years = [f"{title} {year[1]}" for title, year in found if year is not None]
    return f"Of {', '.join(years)}. " if len(years) > 1 else ""


def _look_for(pages: Encyclopedia, line: Line) -> str:
    """What is looked for, by a line like `The mother is Dalo.`; "" where lines have other forms."""
    return f"Look for the {pages.text(line).split()[1]} of {line[0]}." if pages.number_last else ""


def _reach(search: Search, pages: Encyclopedia, title: str) -> Iterator[str]:
    """Open the page; its title is searched for at the second time."""
    browser, words = search.browser, search.task.get("topic", title)
    while not search.over and (browser.view is None or browser.view.title != title):
        if browser.view is not None and (part := browser.part_with(pages, title)) is not None:
            shown = browser.view.part
            turn = NEXT if shown < part else PREVIOUS
            yield f"OPEN {_link_to(browser, pages, title)}" if shown == part else f"OPEN {turn}"
        elif len(browser.views) > 1 and title in browser.links(pages, browser.views[-2]).values():
            yield "BACK"
        else:
            yield f"SEARCH {words}"
            words = title


def _link_to(browser: Browser, pages: Encyclopedia, title: str) -> str:
    """The text of a link to the page: its title where that is one."""
    links = browser.links(pages)
    if links.get(link_key(title)) == title:
        return title
    return next(text for text, target in links.items() if target == title)


def _turn_to(search: Search, pages: Encyclopedia, number: int) -> Iterator[str]:
    """Turn the open page to the part with this line; one that is far away is found by its words."""
    browser = search.browser
    while not search.over and browser.view is not None:
        part = (number - 1) // browser.page_lines
        if browser.view.part == part:
            return
        if abs(browser.view.part - part) > FAR:
            words = pages.text((browser.view.title, number))
            yield f"FIND {words[:MAX_ARGUMENT]}"
            return
        yield f"OPEN {NEXT if browser.view.part < part else PREVIOUS}"
