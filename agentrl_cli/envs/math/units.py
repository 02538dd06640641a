r"""Units behind an answer, in words (`\text{ square inches}`) or bare (`5 cm^2`): one name each."""

from __future__ import annotations

import re

NAMES = {
    "in": ("inch", "inches"), "ft": ("foot", "feet"), "yd": ("yds", "yard", "yards"),
    "mi": ("mile", "miles"), "km": ("kilometer", "kilometers", "kilometre", "kilometres"),
    "m": ("meter", "meters", "metre", "metres"),
    "cm": ("centimeter", "centimeters", "centimetre", "centimetres"),
    "mm": ("millimeter", "millimeters", "millimetre", "millimetres"),
    "kg": ("kilogram", "kilograms"), "g": ("gram", "grams"), "lb": ("lbs", "pound", "pounds"),
    "l": ("liter", "liters", "litre", "litres"), "ml": ("milliliter", "milliliters"),
    "h": ("hr", "hrs", "hour", "hours"), "min": ("mins", "minute", "minutes"),
    "s": ("sec", "secs", "second", "seconds"), "day": ("days",), "week": ("weeks",),
    "year": ("years",), "mph": ("miles per hour",), "dollar": ("dollars",), "cent": ("cents",),
    "unit": ("units",),
}  # fmt: skip
ONE_NAME = {word: name for name, words in NAMES.items() for word in (name, *words)}
LONG = "|".join(sorted((word for word in ONE_NAME if len(word) > 1), key=len, reverse=True))
SHORT = "|".join(word for word in ONE_NAME if len(word) == 1)
BEHIND = r"(?:(?<=[\d})])|(?<=\\pi)|(?<=\\pi ))"  # a number or an expression
POWER = r"\s*(?:\^\{?(?P<power>\d)\}?)?$"
SPELT = re.compile(BEHIND + r"\s*\\text\{(?P<unit>\s*[A-Za-z][^{}]*)\}" + POWER)
BARE = re.compile(  # a letter alone may be a variable unless a space stands before it
    rf"{BEHIND}(?P<unit>\s*(?:(?:square|cubic|sq\.?) )?(?:{LONG})|\s+(?:{SHORT}))\.?{POWER}"
)
POWERS = {"square ": "2", "sq ": "2", "sq. ": "2", "cubic ": "3"}


def unit(text: str) -> str | None:
    """The unit at the end of an answer by its one name, with its power; None where there is none.
    Words that are no unit known here are named by themselves."""
    found = _match(text)
    if found is None:
        return None
    words, power = " ".join(found["unit"].split()).lower(), found["power"] or ""
    for prefix, known in POWERS.items():
        if words.startswith(prefix):
            words, power = words.removeprefix(prefix), known
    words = words.rstrip(".")
    return ONE_NAME.get(words, words.replace(" ", "").rstrip("s")) + power


def without_unit(text: str) -> str:
    """The answer without what `unit` names."""
    found = _match(text)
    return text[: found.start()] if found else text


def _match(text: str) -> re.Match[str] | None:
    return SPELT.search(text) or BARE.search(text)
