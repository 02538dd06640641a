"""A shop of our own, small enough for the embedded model: four tools, tens of records, one policy.

Its rules catch a hasty agent: what the user wants more it says only when asked, an order can be
returned from only once, and only pending orders are cancelled, only delivered ones returned.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from agentrl_cli.envs.tau.data import Domain
from agentrl_cli.envs.tau.database import Database, Record, SharedTable, Tables

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


def item_line(item: str, number: str, status: str) -> str:
    """In which order an item is."""
    return f"The {item} is in {number}, {status}."


def cancel(data: Database, order: Any) -> str:
    """Cancel a pending order."""
    number = str(order).strip()
    _find_order(data, number, "pending")
    data["orders"].edit(number)["status"] = "cancelled"
    return f"{number} cancelled."


def return_items(data: Database, order: Any, items: Any) -> str:
    """Return items of a delivered order, once."""
    number, wanted = str(order).strip(), _item_names(items)
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


@lru_cache(maxsize=2)
def mini_domain(split: str = "train") -> Domain:
    """The domain, the same at every call. The tasks of `val`, which τ-bench calls dev, are those
    that another shop of this size has for `test`."""
    if split in ("val", "dev"):
        other = make_shop(random.Random(1), USERS, TEST_USERS)
        return replace(other, tasks={"train": (), "dev": other.tasks["test"], "test": ()})
    return make_shop(random.Random(0), USERS, TEST_USERS)


def make_shop(rng: random.Random, customers: int, test_customers: int = 0) -> Domain:
    """A shop with so many customers, of whom the last `test_customers` have the tasks of `test`."""
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
    tables = {"users": users, "orders": orders}
    tasks = _tasks(tables, rng, customers - test_customers)
    return Domain(
        name="mini", tables=tables, tools=TOOLS, writes=frozenset({"cancel", "return"}),
        schemas=tuple(map(_schema, TOOLS)), policy=POLICY, tasks=tasks,
        terminal_tool="transfer",
    )  # fmt: skip


def expert_turns(task: Record, tables: Tables) -> Iterator[tuple[str, str]]:
    """The right actions for a task of a shop, to be sent one by one, each behind a thought: the
    line of the item that is asked for, or that it has to be looked for."""
    yield "", "What is your zip?"
    for wish in task["requests"]:
        item, number = wish["item"], wish["order"]
        status = tables["orders"][number]["status"]
        yield look_for(item), f"find({task['zip']}, {item})"
        line = item_line(item, number, status)
        yield from ((line, action) for action in _fulfil(wish, number, status))


def look_for(item: str) -> str:
    """What is thought while it is not known which order an item is in."""
    return f"Look for the {item}."


def _fulfil(wish: Record, number: str, status: str) -> Iterator[str]:
    if wish["kind"] == "status":
        yield f"It is {status}."
    elif status != REQUIRED_STATUS[wish["kind"]]:
        yield "transfer()"
    elif wish["kind"] == "cancel":
        yield f"Cancel {number}: yes or no?"
        yield f"cancel({number})"
        yield "It is finished."
    else:
        items = ", ".join([wish["item"], *wish["more"]])
        yield "Is there more?"
        yield f"Return {items} of {number}: yes or no?"
        yield f"return({number}, {items})"
        yield "It is finished."


def _tasks(
    tables: Tables, rng: random.Random, train_customers: int
) -> dict[str, tuple[Record, ...]]:
    rows: dict[str, list[Record]] = {"train": [], "dev": [], "test": []}
    for i, (user_id, user) in enumerate(tables["users"].items()):
        tasks = rows["train" if i < train_customers else "test"]
        for kind in (*TASK_KINDS, RARE_TASK_KINDS[i % len(RARE_TASK_KINDS)]):
            wishes = _wishes(kind, [(n, tables["orders"][n]) for n in user["orders"]], rng)
            tasks.append(_task(len(tasks), user_id, user["zip"], wishes))
    return {split: tuple(tasks) for split, tasks in rows.items()}


def _wishes(kind: str, orders: list[tuple[str, Record]], rng: random.Random) -> list[Record]:
    """What the user asks for one after the other, with the number of the order it is in."""
    status = {"cancel": "pending", "late": "delivered", "early": "pending"}.get(kind, "delivered")
    if kind == "both":
        return rng.sample(_wishes("more", orders, rng) + _wishes("cancel", orders, rng), 2)
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
    """A wish in a customer's words, all but what it wants more."""
    return {
        "return": f"{please} return my {wish['item']}.",
        "cancel": f"{please} cancel the order with my {wish['item']}.",
        "status": f"What is the status of my {wish['item']}?",
    }[wish["kind"]]


def _schema(name: str) -> Record:
    known = {"find": ["zip", "item"], "return": ["order", "items"], "transfer": []}
    arguments = known.get(name, ["order"])
    kinds = {key: {"type": "string"} for key in arguments}
    about = {"type": "object", "properties": kinds, "required": arguments}
    words = {"name": name, "description": TOOLS[name].__doc__ or "", "parameters": about}
    return {"type": "function", "function": words}


def _find_order(data: Database, number: str, status: str) -> Record:
    """The order's record. ValueError where there is none with this status."""
    if number not in data["orders"]:
        raise ValueError(f"order {number[:8]} not found")
    order = data["orders"][number]
    if order["status"] != status:
        raise ValueError(f"{number} is {order['status']}")
    return order


def _item_names(items: Any) -> list[str]:
    """Item names from a list, or from text with commas."""
    parts = items if isinstance(items, list) else str(items).split(",")
    return [str(part).strip() for part in parts]
