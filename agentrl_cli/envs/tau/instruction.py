"""Reads the templated instructions of retail's train tasks: who the customer is, what it wants.

Free text, as in dev and test, is refused with one sentence. Nothing is evaluated.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any

from agentrl_cli.core.errors import UserError

HEAD = re.compile(
    r"Your name is (?P<name>[^.]+?) and your "
    r"(?:zip code is (?P<zip>\d+)|email is (?P<email>\S+))\. You are [^.]*\.\s*"
)
ORDER, PAYMENT = r"(?P<order>#W\d+)", r"(?P<payment>\w+_\d+)"
NAME, OPTIONS = r"[A-Z][\w '()-]*?", r"\{[^{}]*\}"
ITEMS = rf"(?P<items>(?:{NAME}(?: {OPTIONS})?(?: to {OPTIONS})?; )+)"
CLAUSES = {
    "cancel": rf"Cancel order {ORDER} because (?P<reason>[a-z ]+)\.\s*",
    "return": rf"Return {ORDER} via {PAYMENT}: {ITEMS}",
    "payment": rf"For {ORDER}, change payment to {PAYMENT}\.\s*",
    "address": rf"For {ORDER}, change address to (?P<address>{OPTIONS})(?: \([^)]*\))?\.\s*",
    "modify": rf"For {ORDER}, modify {ITEMS}via {PAYMENT}\.\s*",
    "exchange": rf"For {ORDER}, exchange {ITEMS}via {PAYMENT}\.\s*",
}
PATTERNS = {kind: re.compile(text) for kind, text in CLAUSES.items()}
ITEM = re.compile(rf"({NAME})(?: ({OPTIONS}))?(?: to ({OPTIONS}))?; ")

LITERAL_ERRORS = (
    ValueError, TypeError, AttributeError, SyntaxError, MemoryError, RecursionError,
)  # fmt: skip


@dataclass(frozen=True)
class Item:
    """A product by name, with the options it has and those it shall have instead."""

    name: str
    options: dict[str, str]
    wanted: dict[str, str]


@dataclass(frozen=True)
class Request:
    """One wish: cancel, return, payment, address, modify or exchange, for one order."""

    kind: str
    order: str
    payment: str = ""
    reason: str = ""
    address: dict[str, str] = field(default_factory=dict)
    items: tuple[Item, ...] = ()


@dataclass(frozen=True)
class Instruction:
    """A customer; `zip` or `email` is empty where the customer does not know it."""

    name: str
    zip: str
    email: str
    requests: tuple[Request, ...]


def parse_instruction(text: str) -> Instruction:
    """The instruction that the text spells. Raises UserError for any other text."""
    head = HEAD.match(text)
    requests, at = [], head.end() if head else 0
    while head and at < len(text.rstrip()):
        matches = ((kind, pattern.match(text, at)) for kind, pattern in PATTERNS.items())
        kind, match = next((pair for pair in matches if pair[1]), ("", None))
        if match is None:
            break
        try:
            requests.append(_parse_request(kind, match))
        except LITERAL_ERRORS:
            break
        at = match.end()
    if head is None or at < len(text.rstrip()) or not requests:
        raise UserError(
            f"the scripted user cannot follow the instruction '{text[:60]}…'; it follows the train "
            "tasks of retail, so choose env.user=llm, human or silent for others"
        )
    return Instruction(head["name"], head["zip"] or "", head["email"] or "", tuple(requests))


def _parse_request(kind: str, match: re.Match[str]) -> Request:
    parts = match.groupdict()
    items = tuple(
        Item(name.strip(), _parse_options(options), _parse_options(wanted))
        for name, options, wanted in ITEM.findall(parts.get("items", ""))
    )
    return Request(
        kind, parts["order"], parts.get("payment", ""), parts.get("reason", ""),
        _parse_options(parts.get("address", "")), items,
    )  # fmt: skip


def _parse_options(text: str) -> dict[str, str]:
    """The mapping that a text spells, all values as text; empty for no text."""
    value: Any = ast.literal_eval(text) if text else {}
    return {str(key): str(item) for key, item in value.items()}
