"""Small helpers for text that worlds write and models sample."""

from __future__ import annotations


def with_article(noun: str) -> str:
    """`a poet`, `an explorer`; `noun` is in lower case and not empty."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def encodable(text: str) -> str:
    """The text with ? for lone surrogates, which JSON can spell and no tokenizer can encode."""
    return text.encode("utf-8", "replace").decode()
