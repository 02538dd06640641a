"""The airline tools of τ-bench, with its observations, changes and order of checks.

Its quirks are part of the benchmark. Seats are never taken. A new cabin is not recorded. A missing
reservation is reported as a missing user. If a booking names one certificate twice, the first
payment uses it up and the second fails.
"""

from __future__ import annotations

import json
from typing import Any

from agentrl_cli.envs.tau.tools import SHARED_TOOLS, Database, Record, Tool

AIRPORTS = {
    "SFO": "San Francisco", "JFK": "New York", "LAX": "Los Angeles", "ORD": "Chicago",
    "DFW": "Dallas", "DEN": "Denver", "SEA": "Seattle", "ATL": "Atlanta", "MIA": "Miami",
    "BOS": "Boston", "PHX": "Phoenix", "IAH": "Houston", "LAS": "Las Vegas", "MCO": "Orlando",
    "EWR": "Newark", "CLT": "Charlotte", "MSP": "Minneapolis", "DTW": "Detroit",
    "PHL": "Philadelphia", "LGA": "LaGuardia",
}  # fmt: skip
NOW = "2024-05-15T15:00:00"
RESERVATION_IDS = ("HATHAT", "HATHAU", "HATHAV")  # for new ones; the last is reused
CERTIFICATE_IDS = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
INSURANCE, BAG = 30, 50  # dollars: per passenger, per bag


def list_all_airports(data: Database) -> str:
    return json.dumps(AIRPORTS)


def get_reservation_details(data: Database, reservation_id: Any) -> str:
    return json.dumps(data.find("reservations", reservation_id, "user"))


def search_direct_flight(data: Database, origin: Any, destination: Any, date: Any) -> str:
    """Return the flights that can be booked on that day."""
    flights = data["flights"].values()
    found = [f for f in flights if f["origin"] == origin and f["destination"] == destination]
    return json.dumps([_on_date(flight, date) for flight in found if _is_available(flight, date)])


def search_onestop_flight(data: Database, origin: Any, destination: Any, date: Any) -> str:
    """Return pairs of connecting flights that can be booked. Seats and prices of the second flight
    are always those of the first day, even if it departs on the next."""
    flights, found = list(data["flights"].values()), []
    for first in flights:
        if first["origin"] != origin:
            continue
        for second in flights:
            if second["destination"] == destination and first["destination"] == second["origin"]:
                found += _connection(first, second, date)
    return json.dumps(found)


def book_reservation(
    data: Database, user_id: Any, origin: Any, destination: Any, flight_type: Any, cabin: Any,
    flights: Any, passengers: Any, payment_methods: Any, total_baggages: Any,
    nonfree_baggages: Any, insurance: Any,
) -> str:  # fmt: skip
    """Book flights. Gift cards are charged and certificates are used up."""
    owned = data.find("users", user_id, "user")["payment_methods"]
    free = [name for name in RESERVATION_IDS if name not in data["reservations"]]
    reservation = {
        "reservation_id": [*free, RESERVATION_IDS[-1]][0], "user_id": user_id, "origin": origin,
        "destination": destination, "flight_type": flight_type, "cabin": cabin,
        "flights": flights, "passengers": passengers, "payment_history": payment_methods,
        "created_at": NOW, "total_baggages": total_baggages,
        "nonfree_baggages": nonfree_baggages, "insurance": insurance,
    }  # fmt: skip
    total = 0
    for flight in flights:
        _price_flight(data, flight, cabin, passengers)
        total += flight["price"] * len(passengers)
    if insurance == "yes":
        total += INSURANCE * len(passengers)
    total += BAG * nonfree_baggages
    _check_payments(owned, payment_methods, total)
    user = data["users"].edit(user_id)
    methods = user["payment_methods"]
    for payment in payment_methods:
        name = payment["payment_id"]
        if methods[name]["source"] == "gift_card":
            methods[name]["amount"] -= payment["amount"]
        elif methods[name]["source"] == "certificate":
            del methods[name]
    data["reservations"][reservation["reservation_id"]] = reservation
    user["reservations"].append(reservation["reservation_id"])
    return json.dumps(reservation)


def cancel_reservation(data: Database, reservation_id: Any) -> str:
    """Cancel a reservation and refund every payment."""
    _reservation(data, reservation_id)
    reservation = data["reservations"].edit(reservation_id)
    reservation["payment_history"] += [
        {"payment_id": payment["payment_id"], "amount": -payment["amount"]}
        for payment in reservation["payment_history"]
    ]
    reservation["status"] = "cancelled"
    return json.dumps(reservation)


def update_reservation_flights(
    data: Database, reservation_id: Any, cabin: Any, flights: Any, payment_id: Any
) -> str:
    """Replace all flights. A flight that stays in the same cabin keeps its price."""
    reservation, total = _reservation(data, reservation_id), 0
    passengers = reservation["passengers"]
    for flight in flights:
        kept = _unchanged_flight(reservation, flight, cabin)
        if kept is None:
            _price_flight(data, flight, cabin, passengers)
        else:
            flight |= {key: kept[key] for key in ("price", "origin", "destination")}
        total += flight["price"] * len(passengers)
    total -= sum(flight["price"] for flight in reservation["flights"]) * len(passengers)
    return _change(data, reservation_id, payment_id, total, flights=flights)


def update_reservation_baggages(
    data: Database, reservation_id: Any, total_baggages: Any, nonfree_baggages: Any, payment_id: Any
) -> str:
    """Change the number of bags and charge for additional ones."""
    reservation = _reservation(data, reservation_id)
    total = BAG * max(0, nonfree_baggages - reservation["nonfree_baggages"])
    bags = {"total_baggages": total_baggages, "nonfree_baggages": nonfree_baggages}
    return _change(data, reservation_id, payment_id, total, **bags)


def update_reservation_passengers(data: Database, reservation_id: Any, passengers: Any) -> str:
    """Replace the passengers by the same number of others."""
    named = _reservation(data, reservation_id)["passengers"]
    if len(passengers) != len(named):
        raise ValueError("number of passengers does not match")
    reservation = data["reservations"].edit(reservation_id)
    reservation["passengers"] = passengers
    return json.dumps(reservation)


def send_certificate(data: Database, user_id: Any, amount: Any) -> str:
    """Send a certificate to a user, at most three (the original fails at a fourth)."""
    owned = data.find("users", user_id, "user")["payment_methods"]
    name = next((name for name in CERTIFICATE_IDS if name not in owned), None)
    if name is None:
        raise ValueError("no more certificates")
    methods = data["users"].edit(user_id)["payment_methods"]
    methods[name] = {"source": "certificate", "amount": amount, "id": name}
    return f"Certificate {name} added to user {user_id} with amount {amount}."


def _reservation(data: Database, reservation_id: Any) -> Record:
    return data.find("reservations", reservation_id, "reservation")


def _on_date(flight: Record, date: Any) -> Record:
    return {key: value for key, value in flight.items() if key != "dates"} | flight["dates"][date]


def _is_available(flight: Record, date: Any) -> bool:
    return date in flight["dates"] and flight["dates"][date]["status"] == "available"


def _connection(first: Record, second: Record, date: Any) -> list[list[Record]]:
    arrival = first["scheduled_arrival_time_est"]
    following = f"2024-05-{int(date[-2:]) + 1}" if "+1" in arrival else date
    if arrival > second["scheduled_departure_time_est"]:
        return []
    if not (_is_available(first, date) and _is_available(second, following)):
        return []
    return [[_on_date(first, date) | {"date": date}, _on_date(second, date) | {"date": following}]]


def _unchanged_flight(reservation: Record, flight: Any, cabin: Any) -> Record | None:
    """Return the booked flight that `flight` repeats in the same cabin, or None."""
    for booked in reservation["flights"]:
        same = all(booked[key] == flight[key] for key in ("flight_number", "date"))
        if same and cabin == reservation["cabin"]:
            return booked
    return None


def _price_flight(data: Database, flight: Any, cabin: Any, passengers: Any) -> None:
    """Set price and airports of a flight. Raises ValueError if it cannot be booked."""
    number = flight["flight_number"]
    if number not in data["flights"]:
        raise ValueError(f"flight {number} not found")
    known = data["flights"][number]
    if flight["date"] not in known["dates"]:
        raise ValueError(f"flight {number} not found on date {flight['date']}")
    day = known["dates"][flight["date"]]
    if day["status"] != "available":
        raise ValueError(f"flight {number} not available on date {flight['date']}")
    if day["available_seats"][cabin] < len(passengers):
        raise ValueError(f"not enough seats on flight {number}")
    flight["price"] = day["prices"][cabin]
    flight["origin"], flight["destination"] = known["origin"], known["destination"]


def _check_payments(methods: Record, payments: Any, total: Any) -> None:
    for payment in payments:
        name, amount = payment["payment_id"], payment["amount"]
        if name not in methods:
            raise ValueError(f"payment method {name} not found")
        method = methods[name]
        if method["source"] in ("gift_card", "certificate") and method["amount"] < amount:
            raise ValueError(f"not enough balance in payment method {name}")
    paid = sum(payment["amount"] for payment in payments)
    if paid != total:
        raise ValueError(f"payment amount does not add up, total price is {total}, but paid {paid}")


def _change(data: Database, reservation_id: Any, payment_id: Any, total: Any, **to: Any) -> str:
    """Change a reservation and charge for it. Raises ValueError if the method cannot pay."""
    user_id = data["reservations"][reservation_id]["user_id"]
    methods = data["users"][user_id]["payment_methods"]
    if payment_id not in methods:
        raise ValueError("payment method not found")
    method = methods[payment_id]
    if method["source"] == "certificate":
        raise ValueError("certificate cannot be used to update reservation")
    if method["source"] == "gift_card" and method["amount"] < total:
        raise ValueError("gift card balance is not enough")
    reservation = data["reservations"].edit(reservation_id)
    reservation |= to
    if method["source"] == "gift_card":
        data["users"].edit(user_id)["payment_methods"][payment_id]["amount"] -= total
    if total != 0:
        reservation["payment_history"].append({"payment_id": payment_id, "amount": total})
    return json.dumps(reservation)


READS: tuple[Tool, ...] = (
    *SHARED_TOOLS, get_reservation_details, list_all_airports, search_direct_flight,
    search_onestop_flight,
)  # fmt: skip
WRITES: tuple[Tool, ...] = (
    book_reservation, cancel_reservation, send_certificate, update_reservation_baggages,
    update_reservation_flights, update_reservation_passengers,
)  # fmt: skip
