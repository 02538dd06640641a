"""A mediocre scripted clerk of the small shop, which the bundled model imitates.

It has the observations of an agent only. Its mistakes are habits that depend on the item, so most
mistakes on an item repeat.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

from agentrl_cli.envs.tau.mini import ITEMS, REQUIRED_STATUS, item_line, look_for
from tools.tiny_models.base import Habits

ITEM_LINE = re.compile(r"The (\w+) is in (\d+), (pending|delivered)\.")
WISH_ITEM = re.compile(r"\bmy (\w+)")
WRITE = re.compile(r"(cancel|return)\((\d+)(?:, (.*))?\)")
PROPOSAL = re.compile(r"(Cancel|Return (.+) of) (\d+): yes or no\?")
ERRORS = ("hasty", "no_more", "forget", "no_ask", "ignore", "misstate")
RULES = (
    "Ask for the zip first.", "Known.", "Look first.", "It is pending.", "It is delivered.",
    "Not done.", "Not that order.", "Not asked for.", "Ask for more first.", "Not the items.",
    "It is finished.",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ClerkHabits(Habits):
    """The clerk's mistakes, by item: it acts on an order without a look (`hasty`), does not offer
    more (`no_more`), leaves an item out (`forget`), does not ask for a confirmation (`no_ask`),
    ignores an order's status (`ignore`), or names a wrong status (`misstate`)."""

    player = "clerk"

    def draw_errors(self, item: str, rng: random.Random) -> frozenset[str]:
        """Draw the mistakes of one wish for something with this item."""
        return frozenset(error for error in ERRORS if rng.random() < self.chance(error, item))


@dataclass
class ClerkState:
    """The clerk's knowledge, and its mistakes for this wish. `seen` maps each item to its order and
    status. After it named an order that does not exist it has `failed` and gives up."""

    errors: frozenset[str] = frozenset()
    zip: str = ""
    seen: dict[str, tuple[str, str]] = field(default_factory=dict)
    kind: str = ""
    item: str = ""
    more: list[str] = field(default_factory=list)
    asked_for_more: bool = False
    proposed: bool = False
    failed: bool = False
    over: bool = False


@dataclass(frozen=True)
class Clerk:
    """Acts by its habits."""

    habits: ClerkHabits

    def observe(self, state: ClerkState, text: str, rng: random.Random) -> None:
        """Update the state with an observation; a new wish draws new mistakes."""
        wish = WISH_ITEM.search(text)
        if wish and wish[1] != state.item:
            state.item, state.more, state.asked_for_more = wish[1], [], False
            state.errors = self.habits.draw_errors(state.item, rng)
            state.proposed = state.failed = state.over = False
            kinds = ("return", "cancel", "status")
            state.kind = next((kind for kind in kinds if kind in text), "return")
        if re.fullmatch(r"It is \d+\.", text):
            state.zip = text[6:-1]
        elif text.endswith(" too."):
            state.more = [word for word in re.findall(r"\w+", text) if word in ITEMS]
        elif found := ITEM_LINE.fullmatch(text):
            state.seen[found[1]] = (found[2], found[3])
        state.failed |= text.startswith("Error: order")
        state.over |= bool(re.match(r"\d+ (cancelled|returned)|Error: \d+ is|Error: items", text))

    def note(self, state: ClerkState, action: str) -> None:
        """Update the state with an action, so that no question is asked twice."""
        words = last_line(action)
        state.asked_for_more |= words == "Is there more?"
        state.proposed |= PROPOSAL.fullmatch(words) is not None

    def choose_action(self, state: ClerkState, rng: random.Random) -> str:
        """Return the next action after the line that it depends on: a small model finds an order
        only if it may first recite the line of the item."""
        return behind(where_item_is(state), self._act(state, rng))

    def _act(self, state: ClerkState, rng: random.Random) -> str:
        if state.over or state.failed:
            return "It is finished."
        if not state.zip:
            return "What is your zip?"
        if state.item not in state.seen and "hasty" not in state.errors:
            return f"find({state.zip}, {state.item})"
        return self._serve(state, rng)

    def _serve(self, state: ClerkState, rng: random.Random) -> str:
        """Return the next action for the wish, by the order of the item or by a guess at one."""
        number, status = state.seen.get(state.item, (str(rng.randrange(10, 100)), ""))
        if state.kind == "status":
            wrong = "pending" if status == "delivered" else "delivered"
            return f"It is {wrong if 'misstate' in state.errors else status or 'pending'}."
        if status not in ("", REQUIRED_STATUS[state.kind]) and "ignore" not in state.errors:
            return "transfer()"
        return self._change_order(state, number)

    def _change_order(self, state: ClerkState, number: str) -> str:
        """Return the call that fulfils the wish, or the question before it."""
        is_return = state.kind == "return"
        if is_return and not state.asked_for_more and "no_more" not in state.errors:
            return "Is there more?"
        more = state.more[:-1] if "forget" in state.errors else state.more
        items = ", ".join([state.item, *more])
        if not state.proposed and "no_ask" not in state.errors:
            proposal = f"Return {items} of {number}" if is_return else f"Cancel {number}"
            return f"{proposal}: yes or no?"
        return f"return({number}, {items})" if is_return else f"cancel({number})"

    def any_action(self, state: ClerkState, rng: random.Random) -> str:
        """Return an action of any kind after any line."""
        number, item = str(rng.randrange(10, 100)), state.item or rng.choice(ITEMS)
        order, _ = state.seen.get(state.item, (number, ""))
        zip_code = state.zip or rng.randrange(10, 100)
        items = ", ".join([item, *state.more][: rng.randint(1, 2)])
        status = rng.choice(("pending", "delivered"))
        line = rng.choice((
            where_item_is(state), look_for(item), item_line(item, order, status),
            item_line(item, number, status), item_line(rng.choice(ITEMS), number, status),
        ))  # fmt: skip
        return behind(line, rng.choice((
            "What is your zip?", f"find({zip_code}, {item})",
            f"find({zip_code}, {rng.choice(ITEMS)})",
            f"cancel({number})", f"return({number}, {item})", f"cancel({order})",
            f"return({order}, {items})", f"return({order}, {items})", "Is there more?",
            f"Return {items} of {order}: yes or no?", f"Cancel {order}: yes or no?",
            "It is pending.", "It is delivered.", "It is finished.", "transfer()",
        )))  # fmt: skip


def behind(line: str, action: str) -> str:
    return f"{line}\n{action}" if line else action


def last_line(action: str) -> str:
    """Return the action without the line that is recited before it."""
    return action.strip().rpartition("\n")[2]


def where_item_is(state: ClerkState) -> str:
    """Return the line of the requested item as it was shown, or "" before the zip code is known."""
    if not state.zip:
        return ""
    found = state.seen.get(state.item)
    return item_line(state.item, *found) if found else look_for(state.item)


def check(state: ClerkState, action: str) -> str:
    """Return the facts that matter for an action, and the rule that it breaks. A small model
    detects a mistake only if it may recall the facts first."""
    return f"{recall(state)} {broken_rule(state, action)}"


def recall(state: ClerkState) -> str:
    """Return the order of the wish and its status, the wish, open questions and offers, in the
    order in which the shop writes them, so that they can be copied."""
    if not state.zip:
        return "no zip."
    happened = ["asked"] * state.asked_for_more + ["proposed"] * state.proposed
    told = [state.kind, *(["done"] if state.over else [*state.more, *happened])]
    return f"{where_item_is(state).removesuffix('.')}: {', '.join(told)}."


def broken_rule(state: ClerkState, action: str) -> str:
    """Return the rule that an action breaks after these observations, or `Right.`."""
    action = last_line(action)
    if state.over:
        return "Right." if action == "It is finished." else "It is finished."
    if not state.zip:
        return "Right." if action == "What is your zip?" else "Ask for the zip first."
    if action.startswith("find("):
        if action != f"find({state.zip}, {state.item})":
            return "Not asked for."
        return "Known." if state.item in state.seen else "Right."
    return _check_service(state, action)


def _check_service(state: ClerkState, action: str) -> str:
    if state.item not in state.seen:
        return "Look first."
    number, status = state.seen[state.item]
    write, proposal = WRITE.fullmatch(action), PROPOSAL.fullmatch(action)
    if state.kind == "status":
        return "Right." if action == f"It is {status}." else f"It is {status}."
    if status != REQUIRED_STATUS[state.kind]:
        return "Right." if action == "transfer()" else f"It is {status}."
    if action == "Is there more?":
        return "Right." if state.kind == "return" and not state.asked_for_more else "Known."
    if write is None and proposal is None:
        return "Not done."
    kind = write[1] if write else "return" if action.startswith("Return") else "cancel"
    named = (write[3] if write else proposal[2] if proposal else "") or ""
    if (write[2] if write else proposal[3] if proposal else "") != number:
        return "Not that order."
    if kind != state.kind:
        return "Not asked for."
    if kind == "return" and not state.asked_for_more:
        return "Ask for more first."
    if kind == "return" and set(named.split(", ")) != {state.item, *state.more}:
        return "Not the items."
    return "Right." if write or not state.proposed else "Known."
