"""What is right to do in the small shop, by what was said and by the shop's own books: for tests of
what the corpus says of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentrl_cli.envs.tau.mini import REQUIRED_STATUS, MiniUser
from tools.tiny_models.played import Transition
from tools.tiny_models.tau import Snapshot

SHOWN = re.compile(r"The \w+ is in (\d+), (pending|delivered)\.")
WRITTEN = re.compile(r"(cancel|return)\((\d+)(?:, (.*))?\)")
PROPOSED = re.compile(r"(Cancel|Return) (?:(.+) of )?(\d+): yes or no\?")


def customer(snapshot: Snapshot) -> MiniUser:
    """The customer of a conversation in progress."""
    assert snapshot.env.conversation is not None
    assert isinstance(snapshot.env.conversation.user, MiniUser)
    return snapshot.env.conversation.user


@dataclass
class Said:
    """What a conversation holds at a snapshot: all that the clerk heard, and what was heard and
    done since the wish was last changed."""

    heard: list[str]
    since: list[str]
    done: list[str]


def said_before(played: list[Transition], at: int) -> Said:
    """All before number `at` of what was played."""
    heard = [t.before.observation[-1].content for t in played[: at + 1]]
    begins = max(
        (i for i in range(1, at + 1) if wish(played[i])["item"] != wish(played[i - 1])["item"]),
        default=0,
    )
    return Said(heard, heard[begins:], [done_in(t.action) for t in played[begins:at]])


def done_in(turn: str) -> str:
    """What is done in a turn: its last line."""
    return turn.split("\n")[-1]


def wish(move: Transition) -> dict:
    """What the customer asks for now, by the world's own record."""
    return customer(move.before).wishes[0]


def rule_broken(played: list[Transition], at: int, action: str) -> set[str]:
    """All rules of which it is true that the action breaks them."""
    action = done_in(action)
    said, now = said_before(played, at), wish(played[at])
    number, kind = now["order"], now["kind"]
    order = played[at].before.env.domain_data.tables["orders"][number]
    zip_code = customer(played[at].before).zip
    written, proposed = WRITTEN.fullmatch(action), PROPOSED.fullmatch(action)
    ended = any(re.match(r"\d+ (cancelled|returned)|Error: (\d+ is|items)", t) for t in said.since)
    asked = "Is there more?" in said.done
    named = (written[3] if written else proposed[2] if proposed else "") or ""
    about = written[2] if written else proposed[3] if proposed else number
    act = written[1] if written else proposed[1].lower() if proposed else kind
    right_items = {now["item"], *(now["more"] if asked else [])}
    wrong_status = kind != "status" and order["status"] != REQUIRED_STATUS[kind]
    again = bool(proposed) and any(PROPOSED.fullmatch(text) for text in said.done)
    finds, sought = action.startswith("find("), f"find({zip_code}, {now['item']})"
    found = any(text.startswith(f"The {now['item']} is in ") for text in said.heard)
    states = {"pending": "It is pending.", "delivered": "It is delivered."}
    rules = {
        "It is finished.": ended and action != "It is finished.",
        "Ask for the zip first.": f"It is {zip_code}." not in said.heard
        and action != "What is your zip?",
        "Look first.": not found and not finds,
        states[order["status"]]: (kind == "status" and action != states[order["status"]])
        or (wrong_status and action != "transfer()"),
        "Known.": (finds and found)
        or again
        or (action == "Is there more?" and (asked or kind != "return")),
        "Not done.": not (written or proposed),
        "Not that order.": about != number,
        "Not asked for.": act != kind or (finds and action != sought),
        "Ask for more first.": kind == "return" and not asked and bool(written or proposed),
        "Not the items.": kind == "return" and set(named.split(", ")) != right_items,
    }
    return {rule for rule, broken in rules.items() if broken}


def allowed(played: list[Transition], at: int) -> set[str]:
    """The next actions that are right; one that looks or proposes may be left out."""
    said, now = said_before(played, at), wish(played[at])
    number, kind = now["order"], now["kind"]
    tables = played[at].before.env.domain_data.tables
    zip_code = customer(played[at].before).zip
    found = any(text.startswith(f"The {now['item']} is in ") for text in said.heard)
    status = tables["orders"][number]["status"]
    if any(re.match(r"\d+ (cancelled|returned)|Error: (\d+ is|items)", t) for t in said.since):
        return {"It is finished."}
    if f"It is {zip_code}." not in said.heard:
        return {"What is your zip?"}
    if not found:
        return {f"find({zip_code}, {now['item']})"}
    if kind == "status":
        return {f"It is {status}."}
    if status != REQUIRED_STATUS[kind]:
        return {"transfer()"}
    if kind == "return" and "Is there more?" not in said.done:
        return {"Is there more?"}
    right, orders = [], [now["item"], *now["more"]]
    if kind == "return":
        for items in {tuple(orders), tuple(reversed(orders))}:
            joined = ", ".join(items)
            right += [f"return({number}, {joined})", f"Return {joined} of {number}: yes or no?"]
    else:
        right += [f"cancel({number})", f"Cancel {number}: yes or no?"]
    proposed = any(PROPOSED.fullmatch(text) for text in said.done)
    return {text for text in right if not (proposed and text.endswith("?"))}


def recalled(played: list[Transition], at: int) -> str:
    """What a forecast recalls before it judges: the wish, its order, what was asked and done."""
    said, now = said_before(played, at), wish(played[at])
    zip_code = customer(played[at].before).zip
    if f"It is {zip_code}." not in said.heard:
        return "no zip."
    more = [item for item in now["more"] if any(text.endswith(" too.") for text in said.since)]
    ended = any(re.match(r"\d+ (cancelled|returned)|Error: (\d+ is|items)", t) for t in said.since)
    events = {
        "asked": "Is there more?" in said.done,
        "proposed": any(PROPOSED.fullmatch(text) for text in said.done),
    }
    happened = ["done"] if ended else [*more, *(word for word, is_so in events.items() if is_so)]
    return f"{line_of(said, now).removesuffix('.')}: {', '.join([now['kind'], *happened])}."


def line_of(said: Said, now: dict) -> str:
    """The line of the item that is asked for as an order showed it, or that it is to be found."""
    lines = [line for text in said.heard for line in text.split("\n") if SHOWN.fullmatch(line)]
    mine = [line for line in lines if line.startswith(f"The {now['item']} is in {now['order']},")]
    return mine[-1] if mine else f"Look for the {now['item']}."


def rule_of(forecast: str) -> str:
    """The rule in a forecast: its second sentence."""
    return [*forecast.split(". "), ""][1].removesuffix(".") + "."


def assert_true_check(played: list[Transition], at: int, action: str, checked: str) -> None:
    """Of what was done by the shop's own books."""
    if checked == "Right.":
        assert done_in(action) in allowed(played, at), (action, allowed(played, at))
    else:
        assert checked in rule_broken(played, at, action), (action, checked)


def shortened(response: str) -> str:
    """The first sentence of a response; of an error that it is one."""
    return "Error." if response.startswith("Error") else f"{response.split('.')[0]}."


def told(played: list[Transition], at: int, future: list[Transition], forecast: str) -> None:
    """Assert that a forecast tells of `future`, which begins with another or the same action at
    number `at` of what was played: a true check, the response, the last change, the outcome."""
    first, last = future[0].step, future[-1].step
    response = first.messages[-1].content
    outcome = "Success." if last.info.get("success") else "Failure."
    if len(future) == 1:
        assert forecast == f"{response} {outcome}"
        return
    changes = [
        shortened(t.step.messages[-1].content)
        for t in future[1:]
        if done_in(t.action).startswith(("cancel(", "return(", "transfer("))
    ]
    rest = " ".join([shortened(response), *changes[-1:], outcome])
    assert forecast.endswith(f". {rest}")
    recall = recalled(played, at)
    assert forecast.startswith(f"{recall} "), (forecast, recall)
    checked = forecast.removesuffix(f" {rest}").removeprefix(f"{recall} ")
    assert_true_check(played, at, future[0].action, checked)
