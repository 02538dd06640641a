"""The retail tools of τ-bench: what each answers and changes, checks in the order of the original.

Every write works out all that can fail before it edits a record.
"""

from __future__ import annotations

import json
from typing import Any

from agentrl_cli.envs.tau.calls import Tool
from agentrl_cli.envs.tau.database import Database, Record
from agentrl_cli.envs.tau.shared import calculate, get_user_details, think, transfer_to_human_agents

REASONS = ["no longer needed", "ordered by mistake"]
NO_ORDER = "Error: order not found"
NO_PAYMENT = "Error: payment method not found"


def find_user_id_by_email(data: Database, email: Any) -> str:
    """The first user with this address, letter case aside."""
    for user_id, user in data["users"].items():
        if user["email"].lower() == email.lower():
            return user_id
    return "Error: user not found"


def find_user_id_by_name_zip(data: Database, first_name: Any, last_name: Any, zip: Any) -> str:
    """The first user of this name and postal code."""
    for user_id, user in data["users"].items():
        name = user["name"]
        if (
            name["first_name"].lower() == first_name.lower()
            and name["last_name"].lower() == last_name.lower()
            and user["address"]["zip"] == zip
        ):
            return user_id
    return "Error: user not found"


def get_order_details(data: Database, order_id: Any) -> str:
    """The order's record."""
    if order_id in data["orders"]:
        return json.dumps(data["orders"][order_id])
    return NO_ORDER


def get_product_details(data: Database, product_id: Any) -> str:
    """The product's record with all its variants."""
    if product_id in data["products"]:
        return json.dumps(data["products"][product_id])
    return "Error: product not found"


def list_all_product_types(data: Database) -> str:
    """Product ids by name, sorted."""
    ids = {product["name"]: product["product_id"] for product in data["products"].values()}
    return json.dumps(dict(sorted(ids.items())))


def cancel_pending_order(data: Database, order_id: Any, reason: Any) -> str:
    """Cancel and refund; a gift card has its money back at once."""
    if order_id not in data["orders"]:
        return NO_ORDER
    if data["orders"][order_id]["status"] != "pending":
        return "Error: non-pending order cannot be cancelled"
    if reason not in REASONS:
        return "Error: invalid reason"
    order = data["orders"].edit(order_id)
    payments = list(order["payment_history"])
    for payment in payments:
        if "gift_card" in payment["payment_method_id"]:
            method = _edit_method(data, order, payment["payment_method_id"])
            _add_to_balance(method, payment["amount"])
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
    if order_id not in data["orders"]:
        return NO_ORDER
    order = data["orders"][order_id]
    if order["status"] != "delivered":
        return "Error: non-delivered order cannot be exchanged"
    error, difference = _price_difference(data, order, item_ids, new_item_ids)
    if error:
        return error
    difference = round(difference, 2)
    methods = data["users"][order["user_id"]]["payment_methods"]
    if payment_method_id not in methods:
        return NO_PAYMENT
    if _insufficient_balance(methods[payment_method_id], difference):
        return "Error: insufficient gift card balance to pay for the price difference"
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
    if order_id not in data["orders"]:
        return NO_ORDER
    order = data["orders"][order_id]
    if order["status"] != "pending":
        return "Error: non-pending order cannot be modified"
    error, difference = _price_difference(data, order, item_ids, new_item_ids)
    if error:
        return error
    methods = data["users"][order["user_id"]]["payment_methods"]
    if payment_method_id not in methods:
        return NO_PAYMENT
    if _insufficient_balance(methods[payment_method_id], difference):
        return "Error: insufficient gift card balance to pay for the new item"
    order = data["orders"].edit(order_id)
    kind = "payment" if difference > 0 else "refund"
    order["payment_history"].append(_payment_entry(kind, abs(difference), payment_method_id))
    if methods[payment_method_id]["source"] == "gift_card":
        _add_to_balance(_edit_method(data, order, payment_method_id), -difference)
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
    """Send a pending order elsewhere."""
    if order_id not in data["orders"]:
        return NO_ORDER
    if data["orders"][order_id]["status"] != "pending":
        return "Error: non-pending order cannot be modified"
    order = data["orders"].edit(order_id)
    order["address"] = _address(address1, address2, city, state, country, zip)
    return json.dumps(order)


def modify_pending_order_payment(data: Database, order_id: Any, payment_method_id: Any) -> str:
    """Pay a pending order by another method; gift cards are settled at once."""
    if order_id not in data["orders"]:
        return NO_ORDER
    order = data["orders"][order_id]
    error = _payment_change_error(data, order, payment_method_id)
    if error:
        return error
    order = data["orders"].edit(order_id)
    first = order["payment_history"][0]
    amount, before = first["amount"], first["payment_method_id"]
    order["payment_history"] += [
        _payment_entry("payment", amount, payment_method_id),
        _payment_entry("refund", amount, before),
    ]
    method = _edit_method(data, order, payment_method_id)
    if method["source"] == "gift_card":
        _add_to_balance(method, -amount)
    if "gift_card" in before:
        _add_to_balance(_edit_method(data, order, before), amount)
    return json.dumps(order)


def modify_user_address(
    data: Database, user_id: Any, address1: Any, address2: Any, city: Any, state: Any,
    country: Any, zip: Any,
) -> str:  # fmt: skip
    """Change a user's default address."""
    if user_id not in data["users"]:
        return "Error: user not found"
    user = data["users"].edit(user_id)
    user["address"] = _address(address1, address2, city, state, country, zip)
    return json.dumps(user)


def return_delivered_order_items(
    data: Database, order_id: Any, item_ids: Any, payment_method_id: Any
) -> str:
    """Request a return, refunded to the original payment method or to a gift card."""
    if order_id not in data["orders"]:
        return NO_ORDER
    order = data["orders"][order_id]
    if order["status"] != "delivered":
        return "Error: non-delivered order cannot be returned"
    if payment_method_id not in data["users"][order["user_id"]]["payment_methods"]:
        return NO_PAYMENT
    paid_by = order["payment_history"][0]["payment_method_id"]
    if "gift_card" not in payment_method_id and payment_method_id != paid_by:
        return "Error: payment method should be either the original payment method or a gift card"
    if _missing_item(order, item_ids) is not None:
        return "Error: some item not found"
    order = data["orders"].edit(order_id)
    order["status"] = "return requested"
    order["return_items"] = sorted(item_ids)
    order["return_payment_method_id"] = payment_method_id
    return json.dumps(order)


def _price_difference(
    data: Database, order: Record, item_ids: Any, new_item_ids: Any
) -> tuple[str, int | float]:
    """What is wrong with a swap of items ("" for nothing) and what it costs."""
    absent = _missing_item(order, item_ids)
    if absent is not None:
        return f"Error: {absent[0]} not found", 0
    if len(item_ids) != len(new_item_ids):
        return "Error: the number of items to be exchanged should match", 0
    difference: int | float = 0
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=False):
        item = _item(order, item_id)
        variants = data["products"][item["product_id"]]["variants"]
        if not (new_item_id in variants and variants[new_item_id]["available"]):
            return f"Error: new item {new_item_id} not found or available", 0
        difference += variants[new_item_id]["price"] - item["price"]
    return "", difference


def _missing_item(order: Record, item_ids: Any) -> tuple[Any] | None:
    """The first item asked for more often than the order holds it, if any."""
    ordered = [item["item_id"] for item in order["items"]]
    for item_id in item_ids:
        if item_ids.count(item_id) > ordered.count(item_id):
            return (item_id,)
    return None


def _payment_change_error(data: Database, order: Record, method_id: Any) -> str:
    """Why the order cannot be paid by this method instead; "" where it can."""
    if order["status"] != "pending":
        return "Error: non-pending order cannot be modified"
    methods = data["users"][order["user_id"]]["payment_methods"]
    if method_id not in methods:
        return NO_PAYMENT
    paid = order["payment_history"]
    if len(paid) > 1 or paid[0]["transaction_type"] != "payment":
        return "Error: there should be exactly one payment for a pending order"
    if paid[0]["payment_method_id"] == method_id:
        return "Error: the new payment method should be different from the current one"
    if _insufficient_balance(methods[method_id], paid[0]["amount"]):
        return "Error: insufficient gift card balance to pay for the order"
    return ""


def _item(order: Record, item_id: Any) -> Record:
    return [item for item in order["items"] if item["item_id"] == item_id][0]  # noqa: RUF015


def _insufficient_balance(method: Record, amount: int | float) -> bool:
    return method["source"] == "gift_card" and method["balance"] < amount


def _edit_method(data: Database, order: Record, method_id: str) -> Record:
    return data["users"].edit(order["user_id"])["payment_methods"][method_id]


def _add_to_balance(method: Record, amount: int | float) -> None:
    method["balance"] = round(method["balance"] + amount, 2)


def _payment_entry(kind: str, amount: int | float, method_id: Any) -> Record:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": method_id}


def _address(
    address1: Any, address2: Any, city: Any, state: Any, country: Any, zip: Any
) -> Record:  # fmt: skip
    return {
        "address1": address1, "address2": address2, "city": city, "state": state,
        "country": country, "zip": zip,
    }  # fmt: skip


READS: tuple[Tool, ...] = (
    calculate, find_user_id_by_email, find_user_id_by_name_zip, get_order_details,
    get_product_details, get_user_details, list_all_product_types, think, transfer_to_human_agents,
)  # fmt: skip
WRITES: tuple[Tool, ...] = (
    cancel_pending_order, exchange_delivered_order_items, modify_pending_order_address,
    modify_pending_order_items, modify_pending_order_payment, modify_user_address,
    return_delivered_order_items,
)  # fmt: skip
