"""Helpers for the text of environments and models."""

from __future__ import annotations

import re

TAGS = "think|thinking|thought|reasoning"
OPENED = re.compile(rf"<(?:{TAGS})>", re.IGNORECASE)
CLOSED = re.compile(rf"</(?:{TAGS})>", re.IGNORECASE)


def with_article(noun: str) -> str:
    """Return `a poet` or `an explorer` for a noun in lower case."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def encodable(text: str) -> str:
    """Return the text with ? for lone surrogates, which JSON allows and tokenizers reject."""
    return text.encode("utf-8", "replace").decode()


def without_thinking(text: str) -> str:
    """Return the text after the last closed reasoning block, up to one that is not closed."""
    ends = [closed.end() for closed in CLOSED.finditer(text)]
    text = text[ends[-1] :] if ends else text
    opened = OPENED.search(text)
    return text[: opened.start()] if opened else text
