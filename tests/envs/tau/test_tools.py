"""The retail and airline tools on small services: changes, refusals, Python's argument errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.envs.tau.tools import Database, call_tool, canonical_text, evaluate, parameters
from tests.builders.tau import SHOPPERS, domain, services

__all__ = ["services"]
DOLLARS = {"payment_id": "credit_card_1", "amount": 50}
BOOKING = {
    "user_id": "bo_dahl_2", "origin": "SFO", "destination": "DEN", "flight_type": "one_way",
    "cabin": "economy", "flights": [{"flight_number": "HAT1", "date": "2024-05-16"}],
    "passengers": [{"first_name": "Bo"}], "payment_methods": [DOLLARS], "total_baggages": 0,
    "nonfree_baggages": 0, "insurance": "no",
}  # fmt: skip


class Shop:
    """A database and its tools."""

    def __init__(self, name: str, folder: Path) -> None:
        self.domain = domain(name, folder)
        self.database = Database(self.domain.tables)

    def __call__(self, name: str, **arguments: Any) -> str:
        return call_tool(self.domain, self.database, name, arguments)


@pytest.fixture
def retail(services: Path) -> Shop:
    return Shop("retail", services)


@pytest.fixture
def airline(services: Path) -> Shop:
    return Shop("airline", services)


def test_cancelling_refunds_a_gift_card(retail: Shop):
    found = json.loads(retail("cancel_pending_order", order_id="#W1", reason="no longer needed"))
    assert found["status"] == "cancelled" and found["cancel_reason"] == "no longer needed"
    assert [p["transaction_type"] for p in found["payment_history"]] == ["payment", "refund"]
    user = json.loads(retail("get_user_details", user_id="ada_berg_1"))
    assert user["payment_methods"]["gift_card_2"]["balance"] == 30.5
    assert SHOPPERS["ada_berg_1"]["payment_methods"]["gift_card_2"]["balance"] == 20
    again = retail("cancel_pending_order", order_id="#W1", reason="no longer needed")
    assert again == "Error: non-pending order cannot be cancelled"


def test_modifying_items_settles_the_difference(retail: Shop):
    about = {"order_id": "#W1", "item_ids": ["101", "101"], "payment_method_id": "gift_card_2"}
    refused = retail("modify_pending_order_items", new_item_ids=["102", "103"], **about)
    assert refused == "Error: new item 103 not found or available"
    assert retail.database.touched() == {}
    found = json.loads(retail("modify_pending_order_items", new_item_ids=["102", "102"], **about))
    assert found["status"] == "pending (item modified)"
    assert [one["item_id"] for one in found["items"]] == ["102", "102"]
    assert found["payment_history"][-1]["amount"] == 4.5
    user = retail.database["users"]["ada_berg_1"]
    assert user["payment_methods"]["gift_card_2"]["balance"] == 15.5


@pytest.mark.parametrize(
    "name, arguments, answer",
    [
        ("return_delivered_order_items", ("#W9", ["101"], "credit_card_1"), "order not found"),
        ("return_delivered_order_items", ("#W1", ["101"], "credit_card_1"),
         "non-delivered order cannot be returned"),
        ("return_delivered_order_items", ("#W2", ["101"], "paypal_1"), "payment method not found"),
        ("return_delivered_order_items", ("#W2", ["9"], "credit_card_1"), "some item not found"),
        ("exchange_delivered_order_items", ("#W2", ["9"], ["102"], "credit_card_1"), "9 not found"),
        ("exchange_delivered_order_items", ("#W2", ["101"], [], "credit_card_1"),
         "the number of items to be exchanged should match"),
        ("exchange_delivered_order_items", ("#W2", ["201"], ["202"], "x"),
         "payment method not found"),
        ("modify_pending_order_payment", ("#W1", "gift_card_2"),
         "the new payment method should be different from the current one"),
        ("cancel_pending_order", ("#W1", "bored"), "invalid reason"),
        ("cancel_pending_order", (["#W1"], "bored"), "unhashable type: 'list'"),
        ("find_user_id_by_email", (7,), "'int' object has no attribute 'lower'"),
        ("get_product_details", ("1",), "product not found"),
    ],
)  # fmt: skip
def test_retail_refusals_equal_the_benchmark(
    retail: Shop, name: str, arguments: tuple[Any, ...], answer: str
):
    given = dict(zip(parameters(retail.domain.tools[name]), arguments, strict=True))
    assert retail(name, **given) == f"Error: {answer}"
    assert retail.database.touched() == {}


def test_argument_errors_equal_python(retail: Shop):
    said = "Error: CancelPendingOrder.invoke()"
    both = "2 required positional arguments: 'order_id' and 'reason'"
    assert retail("cancel_pending_order") == f"{said} missing {both}"
    assert retail("cancel_pending_order", order_id="#W1", why="no") == (
        f"{said} got an unexpected keyword argument 'why'"
    )
    assert retail("find_user_id_by_name_zip") == (
        "Error: FindUserIdByNameZip.invoke() missing 3 required positional arguments: "
        "'first_name', 'last_name', and 'zip'"
    )
    assert retail("think", thought="", data=1).endswith(
        "tools.think.Think.invoke() got multiple values for keyword argument 'data'"
    )
    assert retail("sing") == "Unknown action sing"


def test_booking_charges_and_names_the_reservation(airline: Shop):
    found = json.loads(airline("book_reservation", **BOOKING))
    assert (found["reservation_id"], found["flights"][0]["price"]) == ("HATHAT", 50)
    assert json.loads(airline("book_reservation", **BOOKING))["reservation_id"] == "HATHAU"
    user = airline.database["users"]["bo_dahl_2"]
    assert user["reservations"] == ["AAA111", "HATHAT", "HATHAU"]


@pytest.mark.parametrize(
    "change, answer",
    [
        ({"user_id": "x"}, "user not found"),
        ({"flights": [{"flight_number": "X", "date": ""}]}, "flight X not found"),
        ({"flights": [{"date": ""}]}, "'flight_number'"),
        ({"flights": [{"flight_number": "HAT1", "date": "x"}]},
         "flight HAT1 not found on date x"),
        ({"flights": [{"flight_number": "HAT1", "date": "2024-05-17"}]},
         "flight HAT1 not available on date 2024-05-17"),
        ({"passengers": [{}, {}]}, "not enough seats on flight HAT1"),
        ({"cabin": "first"}, "'first'"),
        ({"nonfree_baggages": "2"},
         "unsupported operand type(s) for +=: 'int' and 'str'"),
        ({"payment_methods": []},
         "payment amount does not add up, total price is 50, but paid 0"),
        ({"payment_methods": [{"payment_id": "gift_card_2", "amount": 61}]},
         "not enough balance in payment method gift_card_2"),
    ],
)  # fmt: skip
def test_booking_refusals_equal_the_benchmark(airline: Shop, change: dict[str, Any], answer: str):
    assert airline("book_reservation", **(BOOKING | change)) == f"Error: {answer}"
    assert airline.database.touched() == {}


def test_failed_booking_uses_up_a_repeated_certificate(airline: Shop):
    half = {"payment_id": "certificate_3", "amount": 25}
    answer = airline("book_reservation", **(BOOKING | {"payment_methods": [half, half]}))
    assert answer == "Error: 'certificate_3'"
    methods = airline.database["users"]["bo_dahl_2"]["payment_methods"]
    assert "certificate_3" not in methods and "HATHAT" not in airline.database["reservations"]


def test_kept_flights_keep_their_price(airline: Shop):
    about = {"reservation_id": "AAA111", "payment_id": "gift_card_2"}
    same = json.loads(
        airline("update_reservation_flights", cabin="economy", flights=BOOKING["flights"], **about)
    )
    assert same["flights"][0]["price"] == 40 and len(same["payment_history"]) == 1
    refused = airline(
        "update_reservation_flights", cabin="business", flights=BOOKING["flights"], **about
    )
    assert refused == "Error: gift card balance is not enough"
    about["payment_id"] = "credit_card_1"
    moved = json.loads(
        airline("update_reservation_flights", cabin="business", flights=BOOKING["flights"], **about)
    )
    assert (moved["cabin"], moved["payment_history"][-1]["amount"]) == ("economy", 160)


def test_searches_find_bookable_flights(airline: Shop):
    about = {"origin": "SFO", "date": "2024-05-16"}
    (direct,) = json.loads(airline("search_direct_flight", destination="DEN", **about))
    assert (direct["flight_number"], direct["prices"]["economy"]) == ("HAT1", 50)
    ((first, second),) = json.loads(airline("search_onestop_flight", destination="JFK", **about))
    assert (first["flight_number"], second["date"]) == ("HAT1", "2024-05-16")
    bad = airline("search_onestop_flight", origin="SFO", destination="JFK", date="soon")
    assert bad == "Error: invalid literal for int() with base 10: 'on'"


def test_other_airline_tools(airline: Shop):
    assert airline("get_reservation_details", reservation_id="x") == "Error: user not found"
    sent = [airline("send_certificate", user_id="bo_dahl_2", amount=9) for _ in range(4)]
    assert sent[0] == "Certificate certificate_3221322 added to user bo_dahl_2 with amount 9."
    assert sent[3].startswith("Error")
    bags = airline(
        "update_reservation_baggages", reservation_id="AAA111", total_baggages=2,
        nonfree_baggages=1, payment_id="gift_card_2",
    )  # fmt: skip
    assert json.loads(bags)["payment_history"][-1] == {"payment_id": "gift_card_2", "amount": 50}
    wrong = airline("update_reservation_passengers", reservation_id="AAA111", passengers=[])
    assert wrong == "Error: number of passengers does not match"
    cancelled = json.loads(airline("cancel_reservation", reservation_id="AAA111"))
    assert [p["amount"] for p in cancelled["payment_history"]] == [40, 50, -40, -50]
    assert len(json.loads(airline("list_all_airports"))) == 20


@pytest.mark.parametrize(
    "expression, value",
    [("2 + 2", 4), (" (1.5+2)*3", 10.5), ("7//2", 3), ("-2**2", -4), ("2**-1", 0.5), ("()", ())],
)
def test_arithmetic_equals_python(expression: str, value: object):
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    "expression, answer",
    [
        ("1/0", "Error: division by zero"), ("2 + x", "Error: invalid characters in expression"),
        ("9**9**9", "Error: int too large to convert to float"),
        ("1(2)", "Error: 'int' object is not callable"), ("1.005*100", "100.5"),
        ("(1", "Error: '(' was never closed (<string>, line 1)"), ("2+2", "4.0"),
        ("...", "Error: float() argument must be a string or a real number, not 'ellipsis'"),
        ("2(**.5)", "Error: 2 argument after ** must be a mapping, not float"),
        ("2(*.5)", "Error: 2 argument after * must be an iterable, not float"),
        ("2(*())", "Error: 'int' object is not callable"),
        ("2(**(1/0))", "Error: division by zero"),
        ([], "Error: eval() arg 1 must be a string, bytes or code object"),
        (7, "Error: 'int' object is not iterable"),
    ],
)  # fmt: skip
def test_calculate_equals_the_benchmark(retail: Shop, expression: Any, answer: str):
    assert retail("calculate", expression=expression) == answer


@pytest.mark.parametrize("length", [50, 1100, 2000])
def test_long_expressions_are_evaluated(retail: Shop, length: int):
    for expression, value in (
        ("+".join(["1"] * length), float(length)), ("-" * length + "1", 1.0),
        ("1-" * length + "1", 1.0 - length), ("**".join(["1"] * length), 1.0),
    ):  # fmt: skip
        assert retail("calculate", expression=expression) == str(value)


@pytest.mark.parametrize(
    "expression, answer",
    [
        ("+".join(["1"] * 40_000), "maximum recursion depth exceeded during compilation"),
        ("(" * 250 + "1" + ")" * 250, "too many nested parentheses (<string>, line 1)"),
        ("+".join(["3**1000000"] * 300), "int too large to convert to float"),
        ("**".join(["2"] * 40_000), ""),  # the parser's MemoryError, without a message
    ],
    ids=["sum", "parentheses", "powers", "nested powers"],
)
def test_too_deep_or_large_expressions_fail(retail: Shop, expression: str, answer: str):
    assert retail("calculate", expression=expression) == f"Error: {answer}"


def test_canonical_text_distinguishes_numbers():
    assert len({canonical_text(value) for value in ({"a": 250}, {"a": 250.0}, {"a": "250"})}) == 3
    assert canonical_text({"a": 1, "b": [2]}) == canonical_text({"b": [2], "a": 1})
