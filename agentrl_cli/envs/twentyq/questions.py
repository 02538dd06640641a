"""Parses a player's text: a question about an attribute, a guess of one object, or neither.

The whole last line must be the question or guess, so naming many objects, or one in passing, never
wins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from agentrl_cli.envs.twentyq.world import World

MAX_LENGTH = 200
ACTION = re.compile(r"^[ \t]*action[ \t]*:(.*)$", re.IGNORECASE | re.MULTILINE)
GUESS_PHRASES = re.compile(
    r"(?:(?:i guess|my guess is)(?: that)?(?: it is| its)?|is it|it is|its|could it be|are they"
    r"|is (?:the|your|this)(?: hidden| secret)? (?:object|answer|word|thing)) (.+)"
)
DETERMINERS = re.compile(r"^(?:(?:a|an|the|some) )?(?:(?:pair|piece) of )?(?:a |an |the )?")
ARTICLES = re.compile(r"\b(?:a|an|the|some) ")
COLOURS = ("orange",)  # "is it orange?" asks for the colour, "is it an orange?" guesses
IRREGULAR = {
    "mouse": "mice", "goose": "geese", "tooth": "teeth", "foot": "feet", "knife": "knives",
    "shelf": "shelves", "scarf": "scarves", "leaf": "leaves", "wolf": "wolves", "loaf": "loaves",
    "fish": "fish", "sheep": "sheep", "cactus": "cacti", "calf": "calves", "child": "children",
    "woman": "women", "man": "men",
}  # fmt: skip


@dataclass(frozen=True)
class Question:
    """A question about an attribute. The answer to a negated one is inverted."""

    attribute: str
    negated: bool


@dataclass(frozen=True)
class Guess:
    """A guess of one object."""

    object: str


def parse(text: str, world: World) -> Question | Guess | None:
    """Return the question or guess in the text; None for anything else."""
    words = normalise(action_text(text))
    if words is None:
        return None
    question = _questions(world).get(ARTICLES.sub("", words))
    return question or _guess(words, world)


def action_text(text: str) -> str:
    """Return the text after the last `Action:` that starts a line, else the last line."""
    actions = ACTION.findall(text)
    return actions[-1] if actions else text.strip().rpartition("\n")[2]


def normalise(text: str) -> str | None:
    """Return lower case without hyphens, quotes and end marks; None if empty or too long."""
    text = text.strip()
    if not 0 < len(text) <= MAX_LENGTH:
        return None
    words = re.sub(r"[\s_\u2010-\u2013-]+", " ", text.lower())
    words = re.sub(r"['’\"“”*`]", "", words).strip(" ?!.")
    return words or None


def _guess(words: str, world: World) -> Guess | None:
    match = GUESS_PHRASES.fullmatch(words)
    if match is None or match[1] in COLOURS:
        return None
    name = _names(world).get(_name_key(match[1]))
    return Guess(name) if name else None


def _name_key(words: str) -> str:
    """Return a name without determiner and spaces: "a hot-dog" and "hotdog" are equal."""
    return DETERMINERS.sub("", words).replace(" ", "")


@lru_cache(maxsize=16)
def _questions(world: World) -> dict[str, Question]:
    found = {}
    for attribute in world.attributes:
        for text, negated in world.phrasings(attribute):
            words = ARTICLES.sub("", normalise(text) or "")
            found[words] = Question(attribute, negated)
    return found


@lru_cache(maxsize=16)
def _names(world: World) -> dict[str, str]:
    """Return the object of each form of a name. An object's own name takes precedence."""
    forms = [(name, form) for name in world.objects for form in (name, world.nouns[name])]
    for name in world.objects:
        written = [name, *world.variants[name]]
        forms += [(name, form) for form in written]
        forms += [(name, form) for text in written for form in _plural_and_singular(text)]
    found: dict[str, str] = {}
    for name, form in forms:
        found.setdefault(_name_key(normalise(form) or ""), name)
    return found


def _plural_and_singular(name: str) -> list[str]:
    """Return plurals of the name, and its singular if it looks like a plural."""
    head, _, last = name.rpartition(" ")
    plurals = [IRREGULAR[last]] if last in IRREGULAR else []
    plurals.append(last + "es" if re.search(r"(s|x|z|ch|sh|o)$", last) else last + "s")
    if re.search(r"[^aeiou]y$", last):
        plurals.append(last[:-1] + "ies")
    if re.search(r"[^su]s$", last):
        plurals.append(last[:-1])
    return [f"{head} {plural}".strip() for plural in plurals]
