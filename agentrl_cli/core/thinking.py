"""Removal of reasoning blocks from the replies of models."""

from __future__ import annotations

import re

TAGS = "think|thinking|thought|reasoning"
OPENED = re.compile(rf"<(?:{TAGS})>", re.IGNORECASE)
CLOSED = re.compile(rf"</(?:{TAGS})>", re.IGNORECASE)


def without_thinking(text: str) -> str:
    """Return the text after the last closed reasoning block, up to one that is not closed."""
    ends = [closed.end() for closed in CLOSED.finditer(text)]
    text = text[ends[-1] :] if ends else text
    opened = OPENED.search(text)
    return text[: opened.start()] if opened else text
