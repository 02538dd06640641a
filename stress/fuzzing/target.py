"""Targets of the fuzzer, and the required form of a refusal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from agentrl_cli.core.errors import EpisodeError, UserError

REFUSALS = (UserError, EpisodeError)
REMEDY = re.compile(r"[;:] | must be ")


@dataclass(frozen=True)
class Target:
    """A part of the product. `run` processes a case of `cases` as the product does. It may
    raise only `refusals`, and each must contain one of the texts that `named` returns for the
    case."""

    cases: st.SearchStrategy[Any]
    run: Callable[[Any], None]
    named: Callable[[Any], Iterable[str]]
    refusals: tuple[type[Exception], ...] = REFUSALS


class Unfit(AssertionError):
    """A refusal without the required words, or an output that is not fit for a terminal."""


def check_refusal(error: Exception, named: Iterable[str]) -> None:
    """Raise Unfit if a refusal names nothing of its case or has no remedy."""
    text = str(error)
    texts = [name for name in named if name]
    if "Traceback" in text or not text.strip():
        raise Unfit(f"no sentence: {text!r}")
    if texts and not any(name in text for name in texts):
        raise Unfit(f"names none of {texts}: {text!r}")
    if isinstance(error, UserError) and not REMEDY.search(text):
        raise Unfit(f"no remedy: {text!r}")
