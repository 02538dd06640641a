"""A mediocre scripted clerk of the small shop: the level that its embedded base imitates.

It sees what an agent sees and nothing else. Each conversation draws anew which rules it breaks.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, fields

from agentrl_cli.envs.tau.mini import ITEMS

SHOWN = re.compile(r"^(\d+) (pending|delivered|cancelled|returned): (.+)\.$")
WISH = re.compile(r"\bmy (\w+)")
NEEDED = {"cancel": "pending", "return": "delivered"}


@dataclass(frozen=True, kw_only=True)
class Habits:
    """Chances that a conversation's clerk: makes up a zip, acts on an order it has not looked at,
    does not ask for more, leaves an item out, does not ask yes or no, ignores an order's status,
    tells a wrong status."""

    invent: float
    hasty: float
    no_more: float
    forget: float
    no_ask: float
    ignore: float
    misstate: float


@dataclass
class Notes:
    """What the clerk knows, and which habits it has in this conversation."""

    habits: frozenset[str]
    zip: str = ""
    orders: list[str] | None = None
    seen: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    kind: str = ""
    item: str = ""
    more: list[str] = field(default_factory=list)
    asked: bool = False
    allowed: bool = False
    over: bool = False


@dataclass(frozen=True)
class Clerk:
    """Draws conversations' habits and acts by them."""

    habits: Habits

    def draw(self, rng: random.Random) -> frozenset[str]:
        """The habits of one conversation."""
        names = (one.name for one in fields(self.habits))
        return frozenset(name for name in names if rng.random() < getattr(self.habits, name))

    def hear(self, notes: Notes, text: str) -> None:
        """Write what was answered into the notes."""
        wish, shown = WISH.search(text), SHOWN.match(text)
        if wish and wish[1] != notes.item:
            notes.item, notes.more, notes.asked = wish[1], [], False
            notes.allowed = notes.over = False
            kinds = ("return", "cancel", "status")
            notes.kind = next((kind for kind in kinds if kind in text), "return")
        if re.fullmatch(r"It is \d+\.", text):
            notes.zip = text[6:-1]
        elif text.startswith("orders "):
            notes.orders = text.split()[1:]
        elif text.endswith(" too."):
            notes.more = [word for word in re.findall(r"\w+", text) if word in ITEMS]
        elif shown and shown[2] in ("pending", "delivered") and not notes.over:
            notes.seen[shown[1]] = (shown[2], shown[3].split(", "))
        notes.allowed |= text == "Yes."
        notes.over |= bool(re.match(r"\d+ (cancelled|returned)|Error: \d+ is|Error: items", text))

    def act(self, notes: Notes, rng: random.Random) -> str:
        """The next action."""
        if notes.over:
            return "It is finished."
        if not notes.zip:
            if "invent" in notes.habits and notes.orders is None:
                notes.habits -= {"invent"}
                return f"find({rng.randrange(10, 100)})"
            return "What is your zip?"
        if notes.orders is None:
            return f"find({notes.zip})"
        return self._serve(notes, rng)

    def _serve(self, notes: Notes, rng: random.Random) -> str:
        """The next action for the wish, once the orders are known."""
        number = next((n for n, (_, items) in notes.seen.items() if notes.item in items), None)
        left = [n for n in notes.orders or [] if n not in notes.seen]
        if number is None and left and "hasty" not in notes.habits:
            return f"get({left[0]})"
        if number is None:
            number = rng.choice(notes.orders or ["10"])
        status = notes.seen.get(number, ("", []))[0]
        if notes.kind == "status":
            wrong = "pending" if status == "delivered" else "delivered"
            return f"It is {wrong if 'misstate' in notes.habits else status or 'pending'}."
        if status not in ("", NEEDED[notes.kind]) and "ignore" not in notes.habits:
            return "transfer()"
        return self._write(notes, number)

    def _write(self, notes: Notes, number: str) -> str:
        if notes.kind == "return" and not notes.asked and "no_more" not in notes.habits:
            notes.asked = True
            return "Is there more?"
        more = notes.more[:-1] if "forget" in notes.habits else notes.more
        items = ", ".join([notes.item, *more])
        what = f"Return {items} of {number}" if notes.kind == "return" else f"Cancel {number}"
        if not notes.allowed and "no_ask" not in notes.habits:
            notes.habits |= {"no_ask"}  # once is enough: it does not ask twice
            return f"{what}: yes or no?"
        return f"return({number}, {items})" if notes.kind == "return" else f"cancel({number})"
