"""A mediocre scripted clerk of the small shop: the level that its embedded base imitates.

It sees what an agent sees and nothing else. Each conversation draws anew which errors it makes.
"""

from __future__ import annotations

import random
import re
from dataclasses import asdict, dataclass, field

from agentrl_cli.envs.tau.mini import ITEMS, REQUIRED_STATUS

ORDER_LINE = re.compile(r"^(\d+) (pending|delivered|cancelled|returned): (.+)\.$")
WISH_ITEM = re.compile(r"\bmy (\w+)")


@dataclass(frozen=True, kw_only=True)
class ClerkErrorRates:
    """Probabilities that a conversation's clerk: makes up a zip, acts on an order it has not looked
    at, does not ask for more, leaves an item out, does not ask yes or no, ignores an order's
    status, tells a wrong status."""

    invent: float
    hasty: float
    no_more: float
    forget: float
    no_ask: float
    ignore: float
    misstate: float


@dataclass
class ClerkState:
    """What the clerk knows, and which errors it makes in this conversation. `seen` holds the status
    and the items of each order that it looked at."""

    errors: frozenset[str]
    zip: str = ""
    orders: list[str] | None = None
    seen: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    kind: str = ""
    item: str = ""
    more: list[str] = field(default_factory=list)
    asked_for_more: bool = False
    confirmed: bool = False
    over: bool = False


@dataclass(frozen=True)
class Clerk:
    """Draws conversations' errors and acts by them."""

    error_rates: ClerkErrorRates

    def draw_errors(self, rng: random.Random) -> frozenset[str]:
        """The errors of one conversation."""
        rates = asdict(self.error_rates).items()
        return frozenset(name for name, rate in rates if rng.random() < rate)

    def observe(self, state: ClerkState, text: str) -> None:
        """Take in what was answered."""
        wish, order = WISH_ITEM.search(text), ORDER_LINE.match(text)
        if wish and wish[1] != state.item:
            state.item, state.more, state.asked_for_more = wish[1], [], False
            state.confirmed = state.over = False
            kinds = ("return", "cancel", "status")
            state.kind = next((kind for kind in kinds if kind in text), "return")
        if re.fullmatch(r"It is \d+\.", text):
            state.zip = text[6:-1]
        elif text.startswith("orders "):
            state.orders = text.split()[1:]
        elif text.endswith(" too."):
            state.more = [word for word in re.findall(r"\w+", text) if word in ITEMS]
        elif order and order[2] in ("pending", "delivered") and not state.over:
            state.seen[order[1]] = (order[2], order[3].split(", "))
        state.confirmed |= text == "Yes."
        state.over |= bool(re.match(r"\d+ (cancelled|returned)|Error: \d+ is|Error: items", text))

    def choose_action(self, state: ClerkState, rng: random.Random) -> str:
        """The next action."""
        if state.over:
            return "It is finished."
        if not state.zip:
            if "invent" in state.errors and state.orders is None:
                state.errors -= {"invent"}
                return f"find({rng.randrange(10, 100)})"
            return "What is your zip?"
        if state.orders is None:
            return f"find({state.zip})"
        return self._serve(state, rng)

    def _serve(self, state: ClerkState, rng: random.Random) -> str:
        """The next action for the wish, once the orders are known."""
        number = next((n for n, (_, items) in state.seen.items() if state.item in items), None)
        unseen = [n for n in state.orders or [] if n not in state.seen]
        if number is None and unseen and "hasty" not in state.errors:
            return f"get({unseen[0]})"
        if number is None:
            number = rng.choice(state.orders or ["10"])
        status = state.seen.get(number, ("", []))[0]
        if state.kind == "status":
            wrong = "pending" if status == "delivered" else "delivered"
            return f"It is {wrong if 'misstate' in state.errors else status or 'pending'}."
        if status not in ("", REQUIRED_STATUS[state.kind]) and "ignore" not in state.errors:
            return "transfer()"
        return self._change_order(state, number)

    def _change_order(self, state: ClerkState, number: str) -> str:
        """The call that fulfils the wish, or what is asked before it."""
        is_return = state.kind == "return"
        if is_return and not state.asked_for_more and "no_more" not in state.errors:
            state.asked_for_more = True
            return "Is there more?"
        more = state.more[:-1] if "forget" in state.errors else state.more
        items = ", ".join([state.item, *more])
        if not state.confirmed and "no_ask" not in state.errors:
            state.errors |= {"no_ask"}  # once is enough: it does not ask twice
            proposal = f"Return {items} of {number}" if is_return else f"Cancel {number}"
            return f"{proposal}: yes or no?"
        return f"return({number}, {items})" if is_return else f"cancel({number})"
