"""The mini domain: a small shop for the bundled model, with four tools and a scripted user.

Its rules punish a hasty agent. The user names further items only on request. Items of an order can
be returned once. Only pending orders can be cancelled, and only delivered orders returned.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from agentrl_cli.envs.tau.tools import Database, Domain, Record, SharedTable, Tables, parameters
from agentrl_cli.envs.tau.users import STOP, Reply, User

ITEMS = (
    "lamp chair table bed sofa bench stool hat shirt coat glove sock boot scarf belt hammer saw "
    "axe drill shovel needle rope knife piano guitar violin drum flute trumpet bell harp radio "
    "camera television fan vacuum fridge oven bicycle canoe"
).split()
USERS, TEST_USERS = 24, 6  # the last users are the test split
ORDERS_PER_USER = 3
POLICY = (
    "Ask for the zip. find(zip, item) tells the order with the item and its status. "
    "cancel(order) a pending order, return(order, items) of a delivered order, in one call: "
    "first ask if there is more. Ask yes or no before you cancel or return. "
    "Say what was asked. If it is not right to do, transfer()."
)
TASK_KINDS = ("return", "more", "cancel", "both")
REQUIRED_STATUS = {"cancel": "pending", "return": "delivered"}
RARE_TASK_KINDS = ("status", "late", "early")  # the fifth task of each user is one of these in turn


# The docstrings of the four tools are the descriptions in their schemas, which models read.
def find(data: Database, zip: Any, item: Any) -> str:
    """The order of a user that has an item, and its status."""
    name = str(item).strip()
    for user in data["users"].values():
        if user["zip"] == str(zip).strip():
            for number in user["orders"]:
                if name in data["orders"][number]["items"]:
                    return item_line(name, number, data["orders"][number]["status"])
            raise ValueError("item not found")
    raise ValueError("user not found")


def cancel(data: Database, order: Any) -> str:
    """Cancel a pending order."""
    number = str(order).strip()
    _find_order(data, number, "pending")
    data["orders"].edit(number)["status"] = "cancelled"
    return f"{number} cancelled."


def return_items(data: Database, order: Any, items: Any) -> str:
    """Return items of a delivered order, once."""
    number = str(order).strip()
    names = items if isinstance(items, list) else str(items).split(",")
    wanted = [str(name).strip() for name in names]
    ordered = _find_order(data, number, "delivered")["items"]
    if not wanted or len(set(wanted)) < len(wanted) or not set(wanted) <= set(ordered):
        raise ValueError("items not found")
    record = data["orders"].edit(number)
    record |= {"status": "returned", "returned": sorted(wanted)}
    return f"{number} returned: {', '.join(wanted)}."


def transfer(data: Database) -> str:
    """End the conversation: somebody else takes over."""
    return "Transferred."


TOOLS = {"find": find, "cancel": cancel, "return": return_items, "transfer": transfer}


def item_line(item: str, number: str, status: str) -> str:
    """Return the observation that locates an item."""
    return f"The {item} is in {number}, {status}."


def _find_order(data: Database, number: str, status: str) -> Record:
    if number not in data["orders"]:
        raise ValueError(f"order {number[:8]} not found")
    order = data["orders"][number]
    if order["status"] != status:
        raise ValueError(f"{number} is {order['status']}")
    return order


@lru_cache(maxsize=8)
def mini_domain(split: str = "train") -> Domain:
    """Return the domain, the same object for every call. The tasks of `val`, which τ-bench calls
    dev, are the `test` tasks of another shop of this size. `example` is a shop of one customer."""
    if split == "example":
        return make_shop(random.Random(2), 1)
    if split in ("val", "dev"):
        other = make_shop(random.Random(1), USERS, TEST_USERS)
        return replace(other, tasks={"train": (), "dev": other.tasks["test"], "test": ()})
    return make_shop(random.Random(0), USERS, TEST_USERS)


def make_shop(rng: random.Random, customers: int, test_customers: int = 0) -> Domain:
    """Generate a shop. The last `test_customers` have the test tasks."""
    numbers = [str(n) for n in rng.sample(range(10, 100), customers * ORDERS_PER_USER)]
    zips = [str(n) for n in rng.sample(range(10, 100), customers)]
    users, orders = SharedTable(), SharedTable()
    for i, zip_code in enumerate(zips):
        mine = sorted(numbers[i * ORDERS_PER_USER : (i + 1) * ORDERS_PER_USER])
        names = rng.sample(ITEMS, 3 * ORDERS_PER_USER)
        states = ["pending", "delivered", rng.choice(["pending", "delivered"])]
        states = rng.sample(states, ORDERS_PER_USER)
        users[f"user_{i}"] = {"zip": zip_code, "orders": mine}
        for j, number in enumerate(mine):
            items = names[3 * j : 3 * j + rng.randint(2, 3)]
            orders[number] = {"user": f"user_{i}", "status": states[j], "items": items}
    rows: dict[str, list[Record]] = {"train": [], "dev": [], "test": []}
    for i, (user_id, user) in enumerate(users.items()):
        tasks = rows["train" if i < customers - test_customers else "test"]
        for kind in (*TASK_KINDS, RARE_TASK_KINDS[i % len(RARE_TASK_KINDS)]):
            wishes = _wishes(kind, [(n, orders[n]) for n in user["orders"]], rng)
            tasks.append(_task(len(tasks), user_id, user["zip"], wishes))
    return Domain(
        name="mini",
        tables={"users": users, "orders": orders},
        tools=TOOLS,
        writes=frozenset({"cancel", "return"}),
        schemas=tuple(map(_schema, TOOLS)),
        policy=POLICY,
        tasks={split: tuple(tasks) for split, tasks in rows.items()},
        terminal_tool="transfer",
    )


def _wishes(kind: str, orders: list[tuple[str, Record]], rng: random.Random) -> list[Record]:
    """Return the wishes of a task in order, each with the number of its order."""
    if kind == "both":
        return rng.sample(_wishes("more", orders, rng) + _wishes("cancel", orders, rng), 2)
    status = {"cancel": "pending", "late": "delivered", "early": "pending"}.get(kind, "delivered")
    fitting = [pair for pair in orders if kind == "status" or pair[1]["status"] == status]
    number, order = rng.choice(fitting)
    item, *others = rng.sample(order["items"], len(order["items"]))
    act = {"cancel": "cancel", "late": "cancel", "status": "status"}.get(kind, "return")
    more = others[:1] if kind == "more" else []
    return [{"kind": act, "item": item, "more": more, "order": number, "right": order["status"]}]


def _task(number: int, user_id: str, zip: str, wishes: list[Record]) -> Record:
    actions, outputs, sentences = [], [], []
    for wish in wishes:
        arguments: Record = {"order": wish["order"]}
        if wish["kind"] == "return":
            arguments["items"] = [wish["item"], *wish["more"]]
        if wish["kind"] == "status":
            outputs.append(wish["right"])
        elif wish["right"] == REQUIRED_STATUS[wish["kind"]]:
            actions.append({"name": wish["kind"], "kwargs": arguments})
        extra = f" If asked for more: also the {' and the '.join(wish['more'])}."
        sentences.append(f"{wish_sentence(wish)}{extra if wish['more'] else ''}")
    return {
        "id": number, "user_id": user_id, "zip": zip, "requests": wishes, "actions": actions,
        "outputs": outputs,
        "instruction": f"Your zip is {zip}. You say: {' Then: '.join(sentences)}",
    }  # fmt: skip


def wish_sentence(wish: Record, please: str = "Please") -> str:
    """Return a wish in a customer's words, without its further items."""
    return {
        "return": f"{please} return my {wish['item']}.",
        "cancel": f"{please} cancel the order with my {wish['item']}.",
        "status": f"What is the status of my {wish['item']}?",
    }[wish["kind"]]


def _schema(name: str) -> Record:
    needed = list(parameters(TOOLS[name]))
    kinds = {key: {"type": "string"} for key in needed}
    about = {"type": "object", "properties": kinds, "required": needed}
    words = {"name": name, "description": TOOLS[name].__doc__ or "", "parameters": about}
    return {"type": "function", "function": words}


def expert_turns(task: Record, tables: Tables) -> Iterator[tuple[str, str]]:
    """Yield the right actions for a task, each with a thought: the line that locates the item, or
    the plan to look for it."""
    yield "", "What is your zip?"
    for wish in task["requests"]:
        item, number = wish["item"], wish["order"]
        status = tables["orders"][number]["status"]
        yield look_for(item), f"find({task['zip']}, {item})"
        if wish["kind"] == "status":
            actions = [f"It is {status}."]
        elif status != REQUIRED_STATUS[wish["kind"]]:
            actions = ["transfer()"]
        elif wish["kind"] == "cancel":
            actions = [f"Cancel {number}: yes or no?", f"cancel({number})", "It is finished."]
        else:
            items = ", ".join([item, *wish["more"]])
            proposal, call = f"Return {items} of {number}: yes or no?", f"return({number}, {items})"
            actions = ["Is there more?", proposal, call, "It is finished."]
        for action in actions:
            yield item_line(item, number, status), action


def look_for(item: str) -> str:
    """Return the thought of an agent that has not located an item yet."""
    return f"Look for the {item}."


COMPLETION = re.compile(r"\b(finished|done|sorry|cannot|cancelled|returned)\b")
STATUS = re.compile(r"\b(pending|delivered|cancelled|returned)\b")


class MiniUser(User):
    """The scripted user of the shop. It states its wishes one by one, gives its zip and names
    further items on request, and confirms only correct proposals."""

    def __init__(self, task: dict[str, Any], seed: int) -> None:
        self.zip: str = task["zip"]
        self.wishes: list[dict[str, Any]] = list(task["requests"])
        self.please = "Please" if random.Random(seed).random() < 0.5 else "I would like to"
        self.was_asked_for_more = False

    def start(self) -> Reply:
        return Reply(self._wish())

    def reply(self, message: str) -> Reply:
        """Return the zip, a yes or no, further items, or else the next line."""
        words, wish = message.lower(), self.wishes[0]
        if "zip" in words:
            return Reply(f"It is {self.zip}.")
        if "yes or no" in words:
            return Reply("Yes." if self._is_wanted(words) else f"No. {self._wish()}")
        if re.search(r"\bmore\b", words):
            self.was_asked_for_more = True
            more = wish["more"]
            return Reply(f"The {' and the '.join(more)} too." if more else "No more.")
        if COMPLETION.search(words) or (wish["kind"] == "status" and STATUS.search(words)):
            self.was_asked_for_more = False
            if len(self.wishes) == 1:
                return Reply(STOP)
            self.wishes.pop(0)
        return Reply(self._wish())

    def _wish(self) -> str:
        return wish_sentence(self.wishes[0], self.please)

    def _is_wanted(self, words: str) -> bool:
        """Return whether a proposal names the wish's act, no other item, and all items named so far
        if they are to be returned."""
        wish, kind = self.wishes[0], self.wishes[0]["kind"]
        wanted = {wish["item"], *(wish["more"] if self.was_asked_for_more else ())}
        named = {item for item in ITEMS if re.search(rf"\b{item}\b", words)}
        wrong = {"return": ("cancel",), "cancel": ("return",)}.get(kind, ("return", "cancel"))
        if any(act in words for act in wrong):
            return False
        return named == wanted if kind == "return" else named <= wanted
