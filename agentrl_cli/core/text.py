"""Helpers for the text of environments and models."""

from __future__ import annotations


def with_article(noun: str) -> str:
    """Return `a poet` or `an explorer` for a noun in lower case."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def encodable(text: str) -> str:
    """Return the text with ? for lone surrogates, which JSON allows and tokenizers reject."""
    return text.encode("utf-8", "replace").decode()
