"""The retail tools of τ-bench, with its observations, changes and order of checks.

Every write computes all that can fail before it edits a record.
"""

from __future__ import annotations

import json
from typing import Any

from agentrl_cli.envs.tau.tools import SHARED_TOOLS, Database, Record, Tool

ADDRESS = ("address1", "address2", "city", "state", "country", "zip")
REASONS = ["no longer needed", "ordered by mistake"]


def find_user_id_by_email(data: Database, email: Any) -> str:
    """Return the first user with this address; letter case is ignored."""
    for user_id, user in data["users"].items():
        if user["email"].lower() == email.lower():
            return user_id
    raise ValueError("user not found")


def find_user_id_by_name_zip(data: Database, first_name: Any, last_name: Any, zip: Any) -> str:
    """Return the first user with this name and postal code."""
    for user_id, user in data["users"].items():
        if (
            user["name"]["first_name"].lower() == first_name.lower()
            and user["name"]["last_name"].lower() == last_name.lower()
            and user["address"]["zip"] == zip
        ):
            return user_id
    raise ValueError("user not found")


def get_order_details(data: Database, order_id: Any) -> str:
    return json.dumps(data.find("orders", order_id, "order"))


def get_product_details(data: Database, product_id: Any) -> str:
    return json.dumps(data.find("products", product_id, "product"))


def list_all_product_types(data: Database) -> str:
    ids = {product["name"]: product["product_id"] for product in data["products"].values()}
    return json.dumps(dict(sorted(ids.items())))


def cancel_pending_order(data: Database, order_id: Any, reason: Any) -> str:
    """Cancel and refund an order; a gift card is refunded immediately."""
    _order_with_status(data, order_id, "pending", "cancelled")
    if reason not in REASONS:
        raise ValueError("invalid reason")
    order = data["orders"].edit(order_id)
    payments = list(order["payment_history"])
    for payment in payments:
        if "gift_card" in payment["payment_method_id"]:
            _add_to_balance(data, order, payment["payment_method_id"], payment["amount"])
    order["status"] = "cancelled"
    order["cancel_reason"] = reason
    order["payment_history"] += [
        _payment_entry("refund", paid["amount"], paid["payment_method_id"]) for paid in payments
    ]
    return json.dumps(order)


def exchange_delivered_order_items(
    data: Database, order_id: Any, item_ids: Any, new_item_ids: Any, payment_method_id: Any
) -> str:
    """Request an exchange; nothing is paid yet."""
    order = _order_with_status(data, order_id, "delivered", "exchanged")
    difference = round(_price_difference(data, order, item_ids, new_item_ids), 2)
    method = _payment_method(data, order, payment_method_id)
    _require_balance(method, difference, "the price difference")
    order = data["orders"].edit(order_id)
    order["status"] = "exchange requested"
    order["exchange_items"] = sorted(item_ids)
    order["exchange_new_items"] = sorted(new_item_ids)
    order["exchange_payment_method_id"] = payment_method_id
    order["exchange_price_difference"] = difference
    return json.dumps(order)


def modify_pending_order_items(
    data: Database, order_id: Any, item_ids: Any, new_item_ids: Any, payment_method_id: Any
) -> str:
    """Swap items for other variants and settle the difference, which is not rounded here."""
    order = _order_with_status(data, order_id, "pending", "modified")
    difference = _price_difference(data, order, item_ids, new_item_ids)
    method = _payment_method(data, order, payment_method_id)
    _require_balance(method, difference, "the new item")
    order = data["orders"].edit(order_id)
    kind = "payment" if difference > 0 else "refund"
    order["payment_history"].append(_payment_entry(kind, abs(difference), payment_method_id))
    if method["source"] == "gift_card":
        _add_to_balance(data, order, payment_method_id, -difference)
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=False):
        item = _item(order, item_id)
        variant = data["products"][item["product_id"]]["variants"][new_item_id]
        item |= {"item_id": new_item_id, "price": variant["price"], "options": variant["options"]}
    order["status"] = "pending (item modified)"
    return json.dumps(order)


def modify_pending_order_address(
    data: Database, order_id: Any, address1: Any, address2: Any, city: Any, state: Any,
    country: Any, zip: Any,
) -> str:  # fmt: skip
    _order_with_status(data, order_id, "pending", "modified")
    return _move(data["orders"].edit(order_id), address1, address2, city, state, country, zip)


def modify_pending_order_payment(data: Database, order_id: Any, payment_method_id: Any) -> str:
    """Change the payment method of a pending order; gift cards are settled immediately."""
    order = _order_with_status(data, order_id, "pending", "modified")
    method, paid = _payment_method(data, order, payment_method_id), order["payment_history"]
    if len(paid) > 1 or paid[0]["transaction_type"] != "payment":
        raise ValueError("there should be exactly one payment for a pending order")
    amount, before = paid[0]["amount"], paid[0]["payment_method_id"]
    if before == payment_method_id:
        raise ValueError("the new payment method should be different from the current one")
    _require_balance(method, amount, "the order")
    order = data["orders"].edit(order_id)
    order["payment_history"] += [
        _payment_entry("payment", amount, payment_method_id),
        _payment_entry("refund", amount, before),
    ]
    if method["source"] == "gift_card":
        _add_to_balance(data, order, payment_method_id, -amount)
    if "gift_card" in before:
        _add_to_balance(data, order, before, amount)
    return json.dumps(order)


def modify_user_address(
    data: Database, user_id: Any, address1: Any, address2: Any, city: Any, state: Any,
    country: Any, zip: Any,
) -> str:  # fmt: skip
    data.find("users", user_id, "user")
    return _move(data["users"].edit(user_id), address1, address2, city, state, country, zip)


def return_delivered_order_items(
    data: Database, order_id: Any, item_ids: Any, payment_method_id: Any
) -> str:
    """Request a return, refunded to the original payment method or to a gift card."""
    order = _order_with_status(data, order_id, "delivered", "returned")
    _payment_method(data, order, payment_method_id)
    paid_by = order["payment_history"][0]["payment_method_id"]
    if "gift_card" not in payment_method_id and payment_method_id != paid_by:
        raise ValueError(
            "payment method should be either the original payment method or a gift card"
        )
    if _missing_items(order, item_ids):
        raise ValueError("some item not found")
    order = data["orders"].edit(order_id)
    order["status"] = "return requested"
    order["return_items"] = sorted(item_ids)
    order["return_payment_method_id"] = payment_method_id
    return json.dumps(order)


def _order_with_status(data: Database, order_id: Any, status: str, deed: str) -> Record:
    order = data.find("orders", order_id, "order")
    if order["status"] != status:
        raise ValueError(f"non-{status} order cannot be {deed}")
    return order


def _price_difference(
    data: Database, order: Record, item_ids: Any, new_item_ids: Any
) -> int | float:
    if missing := _missing_items(order, item_ids):
        raise ValueError(f"{missing[0]} not found")
    if len(item_ids) != len(new_item_ids):
        raise ValueError("the number of items to be exchanged should match")
    difference: int | float = 0
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=False):
        item = _item(order, item_id)
        variants = data["products"][item["product_id"]]["variants"]
        if not (new_item_id in variants and variants[new_item_id]["available"]):
            raise ValueError(f"new item {new_item_id} not found or available")
        difference += variants[new_item_id]["price"] - item["price"]
    return difference


def _missing_items(order: Record, item_ids: Any) -> list[Any]:
    ordered = [item["item_id"] for item in order["items"]]
    return [wanted for wanted in item_ids if item_ids.count(wanted) > ordered.count(wanted)]


def _item(order: Record, item_id: Any) -> Record:
    return [item for item in order["items"] if item["item_id"] == item_id][0]  # noqa: RUF015


def _payment_method(data: Database, order: Record, method_id: Any) -> Record:
    methods = data["users"][order["user_id"]]["payment_methods"]
    if method_id not in methods:
        raise ValueError("payment method not found")
    return methods[method_id]


def _require_balance(method: Record, amount: int | float, purpose: str) -> None:
    if method["source"] == "gift_card" and method["balance"] < amount:
        raise ValueError(f"insufficient gift card balance to pay for {purpose}")


def _add_to_balance(data: Database, order: Record, method_id: str, amount: int | float) -> None:
    method = data["users"].edit(order["user_id"])["payment_methods"][method_id]
    method["balance"] = round(method["balance"] + amount, 2)


def _payment_entry(kind: str, amount: int | float, method_id: Any) -> Record:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": method_id}


def _move(record: Record, *address: Any) -> str:
    record["address"] = dict(zip(ADDRESS, address, strict=True))
    return json.dumps(record)


READS: tuple[Tool, ...] = (
    *SHARED_TOOLS, find_user_id_by_email, find_user_id_by_name_zip, get_order_details,
    get_product_details, list_all_product_types,
)  # fmt: skip
WRITES: tuple[Tool, ...] = (
    cancel_pending_order, exchange_delivered_order_items, modify_pending_order_address,
    modify_pending_order_items, modify_pending_order_payment, modify_user_address,
    return_delivered_order_items,
)  # fmt: skip
