"""What a model thinks aloud before it answers is no part of its answer."""

from __future__ import annotations

import re

TAGS = "think|thinking|thought|reasoning"
OPENED = re.compile(rf"<(?:{TAGS})>", re.IGNORECASE)
CLOSED = re.compile(rf"</(?:{TAGS})>", re.IGNORECASE)


def without_thinking(text: str) -> str:
    """The text behind the last thinking that ended, up to one that did not; linear in the text."""
    ends = [closed.end() for closed in CLOSED.finditer(text)]
    text = text[ends[-1] :] if ends else text
    opened = OPENED.search(text)
    return text[: opened.start()] if opened else text
