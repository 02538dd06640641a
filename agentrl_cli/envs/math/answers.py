r"""Answers as text: the box of a reply, one spelling for equal notations, exact numbers, units.
Tables of notations are in notations.yaml.

The text may be hostile, so nothing takes long at the lengths that the grader and the rows allow.
"""

from __future__ import annotations

import re
import unicodedata
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import yaml

from agentrl_cli.envs.math import exact

BOX_TOKEN = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|[{}]", re.DOTALL)
FORMULA = re.compile(r"\$\$?([^$]+)\$|\\\(((?:(?!\\\)).)+)\\\)|\\\[((?:(?!\\\]).)+)\\\]", re.DOTALL)
MAX_VALUES = 40  # of one reply that are compared with the right answer
PRICE = re.compile(r"\d[\d.,]*\s+[A-Za-z].*\s", re.DOTALL)  # as in $5 and then $3
OPERATION = r"[-+*/^×÷·]"
BARE_NUMBER = re.compile(
    rf"(?<![*/^×÷·+\d.])-?\d[\d,]*(?:\.\d+)?(?:/\d+)?(?!\d|\s*{OPERATION}\s*[\d(])"
)
LAST_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?", re.ASCII)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u2028-\u202e\ufeff]")
NOTATIONS = yaml.safe_load(Path(__file__).with_name("notations.yaml").read_text(encoding="utf-8"))
RAISED = re.compile(r"[\u2070\u00b9\u00b2\u00b3\u2071\u2074-\u207f]+")
LOWERED = re.compile(r"[\u2080-\u208e\u2090-\u209c]+")
VULGAR = re.compile(r"[\u00bc-\u00be\u2150-\u215e\u2189]")
FRACTION_SLASH = re.compile(r"(\d+)/(\d+)", re.ASCII)
UNICODE_ROOT = re.compile(r"([√∛∜])\s*(\d+(?:\.\d+)?|[A-Za-z])")
FUNCTION = re.compile(
    r"(?:sin|cos|tan|cot|sec|csc)(?:\s*\^\{?\d\}?)?\s*(?:\\left)?[({](?:[^(){}]|\{[^{}]*\})*"
)
FUNCTION_DEGREES = re.compile(
    r"(\d+(?:\.\d+)?)\s*(?:\^\{?\\circ\}?|\\degrees?(?![A-Za-z]))", re.ASCII
)
SPELLINGS = str.maketrans(NOTATIONS["spellings"])
REWRITES = [(re.compile(pattern), to) for pattern, to in NOTATIONS["rewrites"]]
BASE = re.compile(r"(?<=\d)_\{?(\d+)\}?$")
WORDS = re.compile(r"\\text\{([^{}]*)\}")
NAMED_VALUE = re.compile(r"^(?P<name>[a-zA-Z]|[a-z]\([a-z]\))\s*=(?!=)\s*(?P<value>[^=]+)$")
ONE_NUMBER = re.compile(r"\d+(?:\.\d+)?[A-Za-z ]*")
ONE_FRACTION = re.compile(
    rf"{ONE_NUMBER.pattern}|(?:\d+ *)?(?:\\frac\{{[+-]?\(?\d+\)?\}}\{{[+-]?\(?\d+\)?\}}?"
    r"|\d+\)? */ *\(?[+-]?\d+)"
)
CHOICE = re.compile(r"^\(?\s*([A-Z])\s*\)?$")
LETTER = r"\\(?:pi|theta|alpha|beta|phi)(?![A-Za-z])|\w"
FRACTION_ARGUMENTS = re.compile(
    rf"\\frac\s*(?:\{{([^{{}}]*)\}}|({LETTER}))\s*(?:\{{([^{{}}]*)\}}|({LETTER}))"
)
BARE_ROOT = re.compile(r"\\sqrt\s*(\w)")
THOUSANDS = re.compile(
    r"^-?\d{1,3}(?:,\d{3})+(?:\.\d+)?$|^-?[1-9]\d{0,2}(?: \d{3})+(?:\.\d+)?$", re.ASCII
)
# spaces to keep: between numbers, after a comma that else groups thousands, and as in \pi r
SPACE = re.compile(r"(\\[A-Za-z]+) (?=[A-Za-z])|(?<=,) (?!\d{3}(?!\d))|(?<![0-9,]) | (?![0-9])")

DECIMAL = re.compile(r"^[+-]?(?:\d+\.?\d*|\.\d+)$", re.ASCII)
REPEATING = re.compile(r"^([+-]?)(\d*)\.(\d*)\\(?:overline|bar)\{(\d+)\}$", re.ASCII)
RATIO = re.compile(r"^([+-]?)\(?(\d+)/(\d+)\)?$", re.ASCII)
FRACTION = re.compile(r"^([+-]?)(\d+)?\\frac\{([+-]?\d+)\}\{([+-]?\d+)\}$", re.ASCII)
MIXED = re.compile(r"^([+-]?)(\d+) (\d+)/(\d+)$", re.ASCII)
POWER = re.compile(
    r"^([+-]?(?:\d+\.?\d*|\.\d+))\\(?:times|cdot)10\^\{?([+-]?\d{1,2})\}?$", re.ASCII
)
UNIT_NAMES = {word: name for name, words in NOTATIONS["units"].items() for word in (name, *words)}
LONG_UNITS = "|".join(sorted((word for word in UNIT_NAMES if len(word) > 1), key=len, reverse=True))
LETTER_UNITS = "|".join(word for word in UNIT_NAMES if len(word) == 1)
AFTER_VALUE = r"(?:(?<=[\d})])|(?<=\\pi)|(?<=\\pi ))"
UNIT_POWER = r"\s*(?:\^\{?(?P<power>\d)\}?)?$"
UNIT_IN_TEXT = re.compile(
    AFTER_VALUE
    + r"\s*\\text\{(?P<unit>\s*(?!(?:or|and|not|maybe|perhaps|possibly)\b)[A-Za-z][^{}]*)\}"
    + UNIT_POWER
)
BARE_UNIT = re.compile(  # a single letter is a variable, except after a space
    rf"{AFTER_VALUE}(?P<unit>\s*(?:(?:square|cubic|sq\.?) )?(?:{LONG_UNITS})"
    rf"|\s+(?:{LETTER_UNITS}))\.?{UNIT_POWER}"
)
UNIT_PREFIXES = {"square ": "2", "sq ": "2", "sq. ": "2", "cubic ": "3"}


class Labels(NamedTuple):
    """Parts that `normalise` removes but that distinguish answers: the name before an equals sign,
    and the unit or base after a number; None if absent."""

    name: str | None
    unit: str | None


def boxed(text: str) -> str | None:
    r"""Return the content of the last balanced `\boxed{…}`; None if there is none."""
    last: slice | None = None
    opened: list[tuple[int, bool]] = []  # start of each open brace's content, whether it is a box
    for match in BOX_TOKEN.finditer(text):
        if match["box"] or match[0] == "{":
            opened.append((match.end(), bool(match["box"])))
        elif match[0] == "}" and opened:
            begin, is_box = opened.pop()
            if is_box and (last is None or begin > last.start):
                last = slice(begin, match.start())
    return None if last is None else text[last].strip()


def last_formula(text: str) -> str:
    """Return the last box of a reply, else its last formula, else its last number, else "". Used in
    records, because math-verify does not tell what it graded."""
    if (box := boxed(text)) is not None:
        return box
    found = formulas(text) or LAST_NUMBER.findall(text)
    return found[-1].strip() if found else ""


def formulas(text: str) -> list[str]:
    """Return the formulas of a reply, without the text between two prices."""
    found = (next(filter(None, groups)) for groups in FORMULA.findall(text))
    return [formula for formula in found if not PRICE.fullmatch(formula)]


def plain_values(text: str, gold: str) -> list[str]:
    """Return the formulas and numbers of a reply that are values and no calculations, the last
    MAX_VALUES of them."""
    found = [*formulas(text), *BARE_NUMBER.findall(text)]
    values = [value.strip() for value in found if not is_unevaluated(value, gold)]
    return list(dict.fromkeys(values[-MAX_VALUES:]))


def is_unevaluated(answer: str, gold: str) -> bool:
    """Return whether an answer is neither a number nor, if the right one is a fraction, a fraction,
    so that the grader has to calculate. Then `8*8` would answer what 8*8 is."""
    value = normalise(answer).rpartition("=")[2].strip("+-(){} ")
    return (ONE_FRACTION if "frac" in gold else ONE_NUMBER).fullmatch(value) is None


def normalise(text: str, *, keep_name: bool = False) -> str:
    """Return one spelling for equal notations. Removes the unit, base, degree or per cent sign
    after a number, and `x =` before a value unless `keep_name`."""
    text = _respell(text)
    text = BASE.sub("", text[: found.start()] if (found := find_unit(text)) else text)
    text = WORDS.sub(lambda match: match[1].strip(), text).strip()
    named, choice = NAMED_VALUE.match(text), CHOICE.match(text)
    text = named["value"] if named and not keep_name else choice[1] if choice else text
    text = BARE_ROOT.sub(r"\\sqrt{\1}", FRACTION_ARGUMENTS.sub(_fraction, text)).strip()
    text = re.sub("[, ]", "", text) if THOUSANDS.match(text) else text
    text = SPACE.sub(lambda match: f"{match[1]} " if match[1] else "", " ".join(text.split()))
    is_word = text.isalpha() and len(text) > 1 and not text.isupper()
    return text.lower() if is_word else text


def find_unit(text: str) -> re.Match[str] | None:
    """Return the match of a unit at the end of an answer."""
    return UNIT_IN_TEXT.search(text) or BARE_UNIT.search(text)


def unit(text: str) -> str | None:
    """Return the unit of an answer with its power, as in `cm2`; None if it has none. An unknown
    word is its own name."""
    if (found := find_unit(text)) is None:
        return None
    words, power = " ".join(found["unit"].split()).lower(), found["power"] or ""
    for prefix, known in UNIT_PREFIXES.items():
        if words.startswith(prefix):
            words, power = words.removeprefix(prefix), known
    words = words.rstrip(".")
    return UNIT_NAMES.get(words, words.replace(" ", "").rstrip("s")) + power


def labels(text: str) -> Labels:
    """Return the labels of an answer."""
    text = _respell(text)
    named, base = NAMED_VALUE.match(text), BASE.search(text)
    return Labels(named["name"] if named else None, base[1] if base else unit(text))


def _respell(text: str) -> str:
    """Return the text in one spelling, without loss of meaning."""
    text = to_ascii(CONTROL.sub("", text)).strip()
    text = FUNCTION.sub(lambda match: FUNCTION_DEGREES.sub(_radians, match[0]), text)
    for pattern, to in REWRITES:
        text = pattern.sub(to, text)
    return _unwrap(text.strip()).rstrip(".,;: ")


def to_ascii(text: str) -> str:
    """Return the text with LaTeX or ASCII for the digits, superscripts, subscripts, fractions,
    roots and symbols of Unicode. Letters of other scripts stay."""
    if text.isascii():
        return text
    text = RAISED.sub(lambda match: f"^{{{plain(match[0])}}}", text)
    text = LOWERED.sub(lambda match: f"_{{{plain(match[0])}}}", text)
    text = VULGAR.sub(lambda match: FRACTION_SLASH.sub(r"\\frac{\1}{\2}", plain(match[0])), text)
    text = UNICODE_ROOT.sub(r"\1{\2}", text).translate(SPELLINGS)
    text = unicodedata.normalize("NFKC", text).translate(SPELLINGS)
    return "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)


def plain(text: str) -> str:
    """Return superscripts, subscripts and fractions of Unicode as ASCII digits."""
    return unicodedata.normalize("NFKC", text).translate(SPELLINGS)


def _radians(match: re.Match[str]) -> str:
    return rf"\frac{{{match[1]}\pi}}{{180}}"


def number(text: str) -> Fraction | None:
    """Return the exact value of a normalised integer, decimal, fraction, mixed number or other
    arithmetic (`exact.evaluate`); None for anything else."""
    with suppress(ZeroDivisionError, ValueError):
        value = _number(text)
        return exact.evaluate(text) if value is None else value
    return None


def _number(text: str) -> Fraction | None:
    if DECIMAL.match(text):
        return Fraction(text)
    if found := POWER.match(text):
        return Fraction(found[1]) * Fraction(10) ** int(found[2])
    if found := REPEATING.match(text):
        _, before, after, period = found.groups()
        head, scale = int(f"0{before}{after}"), 10 ** len(after) * (10 ** len(period) - 1)
        value = Fraction(int(f"0{before}{after}{period}") - head, scale)
    elif found := RATIO.match(text):
        value = Fraction(int(found[2]), int(found[3]))
    elif found := FRACTION.match(text) or MIXED.match(text):
        value = int(found[2] or 0) + Fraction(int(found[3]), int(found[4]))
    else:
        return None
    return -value if found[1] == "-" else value


def _fraction(match: re.Match[str]) -> str:
    top = match[1] if match[1] is not None else match[2]
    bottom = match[3] if match[3] is not None else match[4]
    return rf"\frac{{{top}}}{{{bottom}}}"


def _unwrap(text: str) -> str:
    r"""Remove `\( … \)`, `\[ … \]` or one pair of braces around the text."""
    for left, right in ((r"\(", r"\)"), (r"\[", r"\]")):
        if text.startswith(left) and text.endswith(right):
            text = text[len(left) : -len(right)].strip()
    inner = text[1:-1]
    if text.startswith("{") and text.endswith("}") and not re.search(r"[{}]", inner):
        return inner.strip()
    return text
