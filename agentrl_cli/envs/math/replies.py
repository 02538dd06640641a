r"""Whole replies, rewritten for math-verify, which reads the first of several plain numbers.

Alternatives such as "5 or maybe 6" become a set. A reply that names several answers is then only
right if they are all right, or together are the correct set.
"""

from __future__ import annotations

import re
import unicodedata

from agentrl_cli.envs.math.answers import RAISED, VULGAR, boxed, normalise, plain

NUMBER = r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:/\d+)?%?(?![\w^/*(])"
BOX = r"\$?\\boxed\{(?:[^{}\n]|\{[^{}\n]*\}){0,80}\}\$?"
FORMULA = r"\$[^$\n]{1,80}\$|\\\((?:(?!\\\)).){1,80}\\\)"
VALUE = rf"(?<![\w$.^/*+-])(?:{BOX}|{FORMULA}|(?:[a-z]\s*=\s*)?{NUMBER})"
SEVERAL = rf"{VALUE}(?:,\s+{VALUE}){{0,99}}"
WORD = r"(?:\s+[A-Za-z]{1,12})?"  # a unit
ALTERNATIVE = r"or|and/or|vs|versus|maybe|perhaps|possibly|alternatively|could|might|wait|actually"
OR = (
    rf"(?:[\s,.;(]+[A-Za-z]{{1,12}}){{0,2}}[\s,.;(]*\b(?i:{ALTERNATIVE})\b"
    r"[^\d$\\\n.-]{0,30}?"
)
ANSWER = r"((?i:answer)[^\d$\\]{0,50}?)"
END = r"(?=\s*(?:[.,;:!?)]|$))"
ALTERNATIVES = re.compile(
    rf"{ANSWER}?(?<!not )"
    rf"({SEVERAL}(?:{OR}{VALUE})+|{SEVERAL},?\s+(?:and|to|&)\s+{VALUE}{WORD}{END})",
    re.ASCII,
)
LIST = re.compile(rf"{ANSWER}({SEVERAL},\s+{VALUE}{END})", re.ASCII)
ONE_VALUE = re.compile(VALUE, re.ASCII)
BOLD = re.compile(r"(?<![\w)*])\*\*(?=\S)([^*\n]+)(?<=\S)\*\*(?![\w(*])")
MIXED = re.compile(r"(?<![\w.,/^*{}\\])(\d{1,9}) +([1-9]\d{0,8})/(\d{1,9})(?![\d/])", re.ASCII)
LOOSE_MINUS = re.compile(r"((?:\bis|[:=])[ \t]*-)[ \t]+(?=[\d.\\])")
PLAIN_SET = re.compile(r"(?<![\w\\$^_{}])\{(-?[\d./]+(?:,\s*-?[\d./]+)+)\}", re.ASCII)
DIGITS = r"(?:\d+(?:\.\d+)?)"
SYMBOL = r"(?:[xyznk](?![A-Za-z'])|\bpi\b|π|√\s?\d+|√\(\d+\)|sqrt\(\d+\))"
FACTOR = rf"(?:{DIGITS}?{SYMBOL}|{DIGITS}(?![A-Za-z]))"
EXPRESSION = re.compile(  # of which math-verify would read a number
    rf"{ANSWER}?(?<![\w$\\.^/*])(-?{FACTOR}(?:\s?[-+*/^]\s?{FACTOR})*)(?![\w$*^/])", re.ASCII
)
HAS_SYMBOL = re.compile(rf"{SYMBOL}", re.ASCII)


def readable(reply: str) -> str:
    """Return a reply with ASCII digits, without bold text, with mixed numbers as fractions, and
    with several answers as a set."""
    if not reply.isascii():
        reply = RAISED.sub(lambda match: f"^{plain(match[0])}", reply)
        reply = VULGAR.sub(lambda match: f" {plain(match[0])}", reply)
        reply = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in reply)
    reply = LOOSE_MINUS.sub(r"\1", MIXED.sub(_mixed, BOLD.sub(r"\1", reply)))
    reply = PLAIN_SET.sub(r"$\\{\1\\}$", reply)
    for pattern, replace in ((EXPRESSION, _formula), (ALTERNATIVES, _set), (LIST, _set)):
        reply = pattern.sub(replace, reply)
    return reply


def _mixed(match: re.Match[str]) -> str:
    """Return a mixed number such as 2 1/4 as a fraction."""
    whole, top, bottom = map(int, match.groups())
    return f"{whole * bottom + top}/{bottom}"


def _is_answer(match: re.Match[str]) -> bool:
    """Return whether a match is outside formulas and is in the place of the answer."""
    if match.string[: match.start(2)].count("$") % 2:
        return False
    anchored = match[1] or r"\boxed" in match[2]
    return bool(anchored) or not re.search(r"(?i:answer)|\\boxed", match.string)


def _formula(match: re.Match[str]) -> str:
    has_number = re.search(r"[\d+*/^-]|π|pi", match[2])
    if not (_is_answer(match) and has_number and HAS_SYMBOL.search(match[2])):
        return match[0]
    return f"{match[1] or ''}${normalise(match[2])}$"


def _set(match: re.Match[str]) -> str:
    """Return the values as a set."""
    if not _is_answer(match):
        return match[0]
    values = [_inside(one) for one in ONE_VALUE.findall(match[2])]
    together = r"\{" + ", ".join(values) + r"\}"
    is_box = r"\boxed" in match[2]
    return (match[1] or "") + (rf"$\boxed{{{together}}}$" if is_box else f"${together}$")


def _inside(value: str) -> str:
    """Return a value without its box, delimiters and name."""
    value = value.strip("$") if (box := boxed(value)) is None else box
    value = (value[2:-2] if value.startswith(r"\(") else value).split("=")[-1].strip()
    return rf"\frac{{{value[:-1]}}}{{100}}" if value.endswith("%") else value
