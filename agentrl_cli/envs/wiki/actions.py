"""Reads what an agent writes: one of six actions, in the last line of its text.

SEARCH words · OPEN link · FIND words · BACK · SAVE lines · SUBMIT answer. Small letters, a colon
behind the verb, `Action:` before it, and brackets around what follows are read as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

VERBS = ("search", "open", "find", "back", "save", "submit")
ALONE = ("back",)  # verbs that take nothing
FORM = re.compile(rf"\s*(?:action\s*:\s*)?({'|'.join(VERBS)})\b\s*:?\s*(.*)", re.IGNORECASE)
IN_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
RANGE = re.compile(r"(\d{1,6})(?:\s*-\s*(\d{1,6}))?")
LINE_LIST = re.compile(r"(?:lines?\b)?[\d\s,\-]*(?:and[\d\s,\-]*)*", re.IGNORECASE)
MAX_ARGUMENT = 400  # characters of what follows a verb
MAX_LINES = 100  # of one SAVE


@dataclass(frozen=True)
class Action:
    """A verb in small letters ("" where the text names none) and what follows it."""

    verb: str
    argument: str = ""


def parse(text: str) -> Action:
    """The action in the last line that says anything. Never raises."""
    lines = text.strip().rpartition("\n")
    found = FORM.fullmatch(lines[2].strip()[: 2 * MAX_ARGUMENT])
    if found is None:
        return Action("")
    argument = found[2].strip()[:MAX_ARGUMENT]
    if whole := IN_BRACKETS.fullmatch(argument):
        argument = whole[1].strip()
    return Action(found[1].lower(), argument)


def line_numbers(argument: str) -> list[int]:
    """The numbers of `3`, `1 4`, `1, 2 and 5` or `2-4` in their order, of a range one more than
    MAX_LINES at most; [] where it is none of these. Never raises."""
    if not LINE_LIST.fullmatch(argument):
        return []
    numbers: list[int] = []
    for first, last in RANGE.findall(argument):
        end = min(int(last or first), int(first) + MAX_LINES)
        numbers += range(int(first), end + 1)
    return list(dict.fromkeys(numbers))
