"""A small retail and a small airline service of our own in τ-bench's formats, as JSON and as a
checkout's Python files; and where the real data lies, if it does."""

from __future__ import annotations

import json
import pprint
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.envs.tau.data import Domain, load_domain
from agentrl_cli.envs.tau.env import TauBench
from tests import paths

DATA = paths.DATA / "taubench"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="τ-bench's data is not here; set AGENTRL_DATA to its parent folder"
)

LARGE = {"color": "red", "size": "L"}
PRODUCTS = {
    "10": {"name": "Mug", "product_id": "10", "variants": {
        "101": {"item_id": "101", "options": {"color": "red"}, "available": True, "price": 5.25},
        "102": {"item_id": "102", "options": {"color": "blue"}, "available": True, "price": 7.5},
        "103": {"item_id": "103", "options": {"color": "green"}, "available": False, "price": 9.0},
    }},
    "20": {"name": "Rain Coat", "product_id": "20", "variants": {
        "201": {"item_id": "201", "options": LARGE, "available": True, "price": 80.0},
        "202": {"item_id": "202", "options": {**LARGE, "size": "M"}, "available": True,
                "price": 60},
    }},
}  # fmt: skip
HOME = {"address1": "1 Elm Lane", "address2": "", "city": "Oslo", "country": "Norway",
        "state": "OS", "zip": "0150"}  # fmt: skip
SHOPPERS = {
    "ada_berg_1": {
        "name": {"first_name": "Ada", "last_name": "Berg"}, "address": HOME,
        "email": "Ada.Berg@example.org",
        "payment_methods": {
            "credit_card_1": {"source": "credit_card", "id": "credit_card_1"},
            "gift_card_2": {"source": "gift_card", "balance": 20, "id": "gift_card_2"},
        },
        "orders": ["#W1", "#W2"],
    }
}  # fmt: skip


def item(number: str, product: str) -> dict[str, Any]:
    variant = PRODUCTS[product]["variants"][number]
    return {"name": PRODUCTS[product]["name"], "product_id": product, "item_id": number,
            "price": variant["price"], "options": variant["options"]}  # fmt: skip


def order(number: str, status: str, items: list[dict[str, Any]], paid: str) -> dict[str, Any]:
    amount = sum(one["price"] for one in items)
    return {
        "order_id": number, "user_id": "ada_berg_1", "address": HOME, "items": items,
        "fulfillments": [], "status": status,
        "payment_history": [
            {"transaction_type": "payment", "amount": amount, "payment_method_id": paid}
        ],
    }  # fmt: skip


ORDERS = {
    "#W1": order("#W1", "pending", [item("101", "10"), item("101", "10")], "gift_card_2"),
    "#W2": order("#W2", "delivered", [item("101", "10"), item("201", "20")], "credit_card_1"),
}
INSTRUCTION = (
    "Your name is Ada Berg and your zip code is 0150. You are calm. "
    "Return #W2 via credit_card_1: Mug; Cancel order #W1 because no longer needed. "
)
RETURN = {"name": "return_delivered_order_items", "kwargs": {
    "order_id": "#W2", "item_ids": ["101"], "payment_method_id": "credit_card_1"}}  # fmt: skip
CANCEL = {"name": "cancel_pending_order",
          "kwargs": {"order_id": "#W1", "reason": "no longer needed"}}  # fmt: skip
TASKS = {
    "train": [
        {"user_id": "ada_berg_1", "instruction": INSTRUCTION, "actions": [RETURN, CANCEL],
         "outputs": []}
    ],
    "test": [
        {"user_id": "ada_berg_1", "instruction": "You want to know what the mug was.",
         "actions": [], "outputs": ["5.25"]}
    ],
}  # fmt: skip
SEATS = {"status": "available", "available_seats": {"economy": 1, "business": 9},
         "prices": {"economy": 50, "business": 200}}  # fmt: skip
FLIGHTS = {
    "HAT1": {"flight_number": "HAT1", "origin": "SFO", "destination": "DEN",
             "scheduled_departure_time_est": "06:00:00", "scheduled_arrival_time_est": "08:00:00",
             "dates": {"2024-05-16": SEATS, "2024-05-17": {"status": "flying"}}},
    "HAT2": {"flight_number": "HAT2", "origin": "DEN", "destination": "JFK",
             "scheduled_departure_time_est": "09:00:00", "scheduled_arrival_time_est": "12:00:00",
             "dates": {"2024-05-16": SEATS}},
    "HAT3": {"flight_number": "HAT3", "origin": "SFO", "destination": "DEN",
             "scheduled_departure_time_est": "22:00:00", "scheduled_arrival_time_est": "01:00:00+1",
             "dates": {"2024-05-15": SEATS}},
}  # fmt: skip
FLYERS = {
    "bo_dahl_2": {
        "name": {"first_name": "Bo", "last_name": "Dahl"}, "email": "bo@example.org",
        "payment_methods": {
            "credit_card_1": {"source": "credit_card", "id": "credit_card_1"},
            "gift_card_2": {"source": "gift_card", "amount": 60, "id": "gift_card_2"},
            "certificate_3": {"source": "certificate", "amount": 100, "id": "certificate_3"},
        },
        "reservations": ["AAA111"],
    }
}  # fmt: skip
RESERVATIONS = {
    "AAA111": {
        "reservation_id": "AAA111", "user_id": "bo_dahl_2", "origin": "SFO", "destination": "DEN",
        "flight_type": "one_way", "cabin": "economy",
        "flights": [{"origin": "SFO", "destination": "DEN", "flight_number": "HAT1",
                     "date": "2024-05-16", "price": 40}],
        "passengers": [{"first_name": "Bo", "last_name": "Dahl", "dob": "1980-01-01"}],
        "payment_history": [{"payment_id": "credit_card_1", "amount": 40}],
        "created_at": "2024-05-01T00:00:00", "total_baggages": 0, "nonfree_baggages": 0,
        "insurance": "no",
    }
}  # fmt: skip
TRIP = [{"name": "cancel_reservation", "kwargs": {"reservation_id": "AAA111"}}]
FLIGHT_TASKS = {
    "test": [{"user_id": "bo_dahl_2", "instruction": "Cancel it.", "actions": TRIP, "outputs": []}]
}
SCHEMA = {"type": "function", "function": {"name": "think", "description": "a" "b",
          "parameters": {"type": "object", "properties": {}, "required": []}}}  # fmt: skip
TABLES = {
    "retail": {"orders": ORDERS, "products": PRODUCTS, "users": SHOPPERS},
    "airline": {"flights": FLIGHTS, "reservations": RESERVATIONS, "users": FLYERS},
}
ALL_TASKS = {"retail": TASKS, "airline": FLIGHT_TASKS}


def write_json(folder: Path) -> Path:
    """Both services as JSON."""
    for name, tables in TABLES.items():
        (folder / name).mkdir(parents=True)
        files = {**tables, "tools": [SCHEMA]}
        files |= {f"tasks_{split}": rows for split, rows in ALL_TASKS[name].items()}
        for stem, value in files.items():
            (folder / name / f"{stem}.json").write_text(json.dumps(value))
        (folder / name / "policy.md").write_text(f"The {name} policy.\n")
    return folder


def write_checkout(folder: Path) -> Path:
    """Both services as a checkout of the benchmark holds them."""
    for name, tables in TABLES.items():
        root = folder / "tau_bench" / "envs" / name
        for inner in ("data", "tools"):
            (root / inner).mkdir(parents=True)
        for stem, value in tables.items():
            (root / "data" / f"{stem}.json").write_text(json.dumps(value))
        for split, rows in ALL_TASKS[name].items():
            (root / f"tasks_{split}.py").write_text(module(rows))
        (root / "tools" / "think.py").write_text(
            "class Think(Tool):\n    @staticmethod\n    def get_info():\n"
            f"        return {pprint.pformat(SCHEMA)}\n"
        )
        (root / "tools" / "__init__.py").write_text("raise SystemExit('never run')\n")
        (root / "wiki.md").write_text(f"The {name} policy.\n")
    return folder


def module(rows: list[dict[str, Any]]) -> str:
    """A module of tasks that must be read, not run."""
    tasks = []
    for row in rows:
        actions = [f"Action(name={a['name']!r}, kwargs={a['kwargs']!r})" for a in row["actions"]]
        tasks.append(
            f"Task(annotator='0', user_id={row['user_id']!r}, instruction={row['instruction']!r}, "
            f"actions=[{', '.join(actions)}], outputs={row['outputs']!r})"
        )
    return f"raise SystemExit('never run')\nTASKS = [{', '.join(tasks)}]\n"


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both services."""
    return write_json(tmp_path_factory.mktemp("tau"))


def domain(name: str, folder: Path) -> Domain:
    return load_domain(name, str(folder))


def tau_env(name: str, folder: Path | None, **changes: Any) -> TauBench:
    """An environment with plain settings."""
    settings: dict[str, Any] = {
        "domain": name,
        "data": str(folder) if folder else None,
        "user": "scripted",
        "actions": "call" if name == "mini" else "native",
        "max_turns": 30,
        "holdout": 0,
        "llm": None,
    }
    return TauBench(**{**settings, **changes})
