r"""Whole replies, rewritten for math-verify, which reads the first of several plain numbers.

Alternatives such as "5 or maybe 6" become formulas joined by "or", which math-verify reads as a
set. A reply that names several answers is then only right if they are all right, or together are
the correct set.
"""

from __future__ import annotations

import re
import unicodedata

from agentrl_cli.envs.math.answers import RAISED, VULGAR, normalise, plain

NUMBER = r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:/\d+)?%?(?![\w^/*(])"
BOX = r"\$?\\boxed\{(?:[^{}\n]|\{[^{}\n]*\}){0,80}\}\$?"
FORMULA = r"\$[^$\n]{1,80}\$|\\\((?:(?!\\\)).){1,80}\\\)"
VALUE = rf"(?<![\w$.^/*+-])(?:{BOX}|{FORMULA}|(?:[a-z]\s*=\s*)?{NUMBER})"
SEVERAL = rf"{VALUE}(?:,\s+{VALUE}){{0,8}}"
WORD = r"(?:\s+[A-Za-z]{1,12})?"  # a unit
OR = r"[\s,.;(]*\b(?:or|maybe|perhaps|possibly|alternatively)\b[^\d$\\\n.-]{0,30}?"
ANSWER = r"((?i:answer)[^\d$\\]{0,50}?)"
END = r"(?=\s*(?:[.,;:!?)]|$))"
ALTERNATIVES = re.compile(
    rf"{ANSWER}?(?<!not )({SEVERAL}(?:{WORD}(?i:{OR}){VALUE})+|{SEVERAL},?\s+and\s+{VALUE}{END})",
    re.ASCII,
)
LIST = re.compile(rf"{ANSWER}({SEVERAL},\s+{VALUE}{END})", re.ASCII)
ONE_VALUE = re.compile(VALUE, re.ASCII)
BOLD = re.compile(r"(?<![\w)*])\*\*(?=\S)([^*\n]+)(?<=\S)\*\*(?![\w(*])")
MULTIPLE = re.compile(  # of a constant or root, which math-verify would cut off
    r"(?<![\w$\\.^/*])-?(?:\d+(?:\.\d+)?)?\s?\*?\s?"
    r"(?:\bpi\b|π|√\s?\d+|√\(\d+\)|sqrt\(\d+\))(?:\s?/\s?\d+)?(?![\w$*^])",
    re.ASCII,
)


def readable(reply: str) -> str:
    """Return a reply with ASCII digits, without bold text, and with several answers as a set."""
    if not reply.isascii():
        reply = RAISED.sub(lambda match: f"^{plain(match[0])}", reply)
        reply = VULGAR.sub(lambda match: plain(match[0]), reply)
        reply = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in reply)
    reply = BOLD.sub(r"\1", reply)
    reply = MULTIPLE.sub(_formula, reply)
    return LIST.sub(_set, ALTERNATIVES.sub(_set, reply))


def _in_formula(match: re.Match[str]) -> bool:
    return match.string[: match.start()].count("$") % 2 == 1


def _formula(match: re.Match[str]) -> str:
    return match[0] if _in_formula(match) else f" ${normalise(match[0])}$"


def _set(match: re.Match[str]) -> str:
    """Return the values joined by "or" if they are in the place of the answer."""
    anchored = match[1] or r"\boxed" in match[2]
    if _in_formula(match) or not (anchored or not re.search(r"(?i:answer)|boxed", match.string)):
        return match[0]
    values = [one.strip("$") for one in ONE_VALUE.findall(match[2])]
    values = [one[2:-2] if one.startswith(r"\(") else one.split("=")[-1] for one in values]
    if any(r"\boxed" in one for one in values):
        values = [one if r"\boxed" in one else rf"\boxed{{{one}}}" for one in values]
    return (match[1] or "") + " or ".join(f"${one.replace('%', chr(92) + '%')}$" for one in values)
