"""The expert: reach each line of the proof by a link, one step back, or a search, then answer.

In the small encyclopedia it writes a thought before it acts, as the embedded model does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from agentrl_cli.envs.wiki.browser import MAX_ARGUMENT, NEXT, PREVIOUS
from agentrl_cli.envs.wiki.pages import Encyclopedia, Line, link_key

if TYPE_CHECKING:
    from agentrl_cli.envs.wiki.env import Search

MAX_PARTS_TURNED = 2  # a line further away is found by its words


def expert_actions(search: Search, pages: Encyclopedia) -> Iterator[str]:
    """Yield actions until the episode is over. Every line is shown before it is saved."""
    has_thoughts = pages.number_last and bool(search.task["answers"])
    for thought, action in _turns(search, pages):
        yield f"{thought}\n{action}" if has_thoughts else action


def _turns(search: Search, pages: Encyclopedia) -> Iterator[tuple[str, str]]:
    """Yield actions, each with its thought: the line that it acts on, or the plan to find it."""
    lines = [step[0] for step in search.proof]
    for title, group in groupby(lines, key=lambda line: line[0]):
        numbers = sorted({number for _, number in group})
        plan = ""
        if pages.number_last:  # a line has the form `The mother is Dalo.`
            plan = f"Look for the {pages.text((title, numbers[0])).split()[1]} of {title}."
        yield from ((plan, action) for action in _reach(search, pages, title))
        for number in numbers:
            yield from ((plan, action) for action in _turn_to(search, pages, number))
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
    """Return the years that a proof compares, or "" if there are fewer than two."""
    found = [(line[0], re.fullmatch(r"The year is (\d+)\.", pages.text(line))) for line in lines]
    years = [f"{title} {year[1]}" for title, year in found if year is not None]
    return f"Of {', '.join(years)}. " if len(years) > 1 else ""


def _reach(search: Search, pages: Encyclopedia, title: str) -> Iterator[str]:
    """Open the page. A second search uses its title."""
    browser, words = search.browser, search.task.get("topic", title)
    while not search.over and (browser.view is None or browser.view.title != title):
        part = browser.part_with(pages, title)
        if browser.view is not None and part is not None:
            links = browser.links(pages)
            if browser.view.part != part:
                yield f"OPEN {NEXT if browser.view.part < part else PREVIOUS}"
            elif links.get(link_key(title)) == title:
                yield f"OPEN {title}"
            else:
                yield f"OPEN {next(text for text, target in links.items() if target == title)}"
        elif len(browser.views) > 1 and title in browser.links(pages, browser.views[-2]).values():
            yield "BACK"
        else:
            yield f"SEARCH {words}"
            words = title


def _turn_to(search: Search, pages: Encyclopedia, number: int) -> Iterator[str]:
    """Turn the open page to the part with this line; a distant line is found by its words."""
    browser = search.browser
    while not search.over and browser.view is not None:
        part = (number - 1) // browser.page_lines
        if browser.view.part == part:
            return
        if abs(browser.view.part - part) > MAX_PARTS_TURNED:
            yield f"FIND {pages.text((browser.view.title, number))[:MAX_ARGUMENT]}"
            return
        yield f"OPEN {NEXT if browser.view.part < part else PREVIOUS}"
