"""Suggestions for mistyped names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, names: Iterable[str]) -> str:
    """Return the end of an error: `; did you mean 'x'?`, or all names if none is similar."""
    choices = sorted(names)
    close = difflib.get_close_matches(word, choices, n=1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; choose one of {', '.join(choices)}" if choices else "; it takes none"
