"""A world of Twenty Questions: objects, attributes, answers, splits.

Reading the table is table.py's work, a user's list of words is word_lists.py's; reading what
a player says is questions.py's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from agentrl_cli.core.errors import UserError, require_at_least
from agentrl_cli.core.text import with_article
from agentrl_cli.core.types import derive_seed
from agentrl_cli.envs.base import require_split
from agentrl_cli.envs.twentyq import table
from agentrl_cli.envs.twentyq.word_lists import FORMATS, read_words

WORLD_NAMES = ("small", "full")
VAL_ONE_IN = 4  # of the objects that are not tested


@dataclass(frozen=True, eq=False)
class World:
    """Objects and what is true of them; compared by identity, loaded once by `load`."""

    name: str
    objects: tuple[str, ...]
    attributes: tuple[str, ...]
    categories: Mapping[str, str]
    nouns: Mapping[str, str]
    variants: Mapping[str, tuple[str, ...]]
    texts: Mapping[str, tuple[str, ...]]
    answers: Mapping[str, Mapping[str, str]]

    def __reduce__(self) -> tuple[Callable[[str], World], tuple[str]]:
        """A world travels by its name."""
        return load_world, (self.name,)

    def answer(self, object: str, attribute: str) -> str:
        """`yes`, `no` or `sometimes`."""
        return self.answers[object][attribute]

    def category(self, object: str) -> str:
        """The category of an object."""
        return self.categories[object]

    def question(self, attribute: str) -> str:
        """The canonical question of an attribute."""
        return self.texts[attribute][0]

    def phrasings(self, attribute: str) -> tuple[tuple[str, bool], ...]:
        """All questions for an attribute as (text, negated): as written, then their negations."""
        plain = self.texts[attribute]
        return tuple([(t, False) for t in plain] + [(table.negate(t), True) for t in plain])

    def guess(self, object: str) -> str:
        """The question that guesses an object."""
        return f"Is it {self.nouns[object]}?"

    def matching(self, known: Sequence[tuple[str, str]]) -> list[str]:
        """The objects whose answers equal all the known (attribute, answer) pairs."""
        return [
            name
            for name, answers in self.answers.items()
            if all(answers[attribute] == answer for attribute, answer in known)
        ]

    def split(self, split: str, test_objects: int, seed: int, val_objects: int = 0) -> list[str]:
        """The objects of a split: disjoint, from all categories alike, in world order. `val` gets a
        quarter of what is not tested at most."""
        require_split(split)
        if not 0 <= test_objects < len(self.objects):
            most = len(self.objects) - 1
            raise UserError(f"test_objects is {test_objects}: world {self.name} allows 0 to {most}")
        require_at_least(0, **{"env.val_objects": val_objects})
        test = set(self._draw(self.objects, test_objects, "split", seed))
        others = [name for name in self.objects if name not in test]
        count = min(val_objects, len(others) // VAL_ONE_IN)
        val = set(self._draw(others, count, "val", seed))
        chosen = {"test": test, "val": val, "train": {*others} - val}[split]
        return [name for name in self.objects if name in chosen]

    def _draw(self, objects: Sequence[str], count: int, split: str, seed: int) -> list[str]:
        """`count` objects: of each category its share, rounded by the largest remainder."""
        draw = random.Random(derive_seed("twentyq", split, seed))
        members: dict[str, list[str]] = {}
        for name in objects:
            members.setdefault(self.categories[name], []).append(name)
        ranked = []
        for names in members.values():
            share, tie = count * len(names) / len(objects), draw.random()
            shuffled = draw.sample(names, len(names))
            ranked += [(max(0.0, n - share), tie, name) for n, name in enumerate(shuffled, start=1)]
        return [name for *_, name in sorted(ranked)[:count]]


@lru_cache(maxsize=16)
def load_world(name: str) -> World:
    """The world `small` or `full`, or the word list in a file; else raises UserError."""
    if Path(name).suffix.lower() in FORMATS:
        return _from_file(name)
    if name not in WORLD_NAMES:
        names = ", ".join(map(repr, WORLD_NAMES))
        raise UserError(f"unknown world {name!r}: use {names} or the path of a .json word list")
    return _from_table(name)


def _from_table(name: str) -> World:
    things = [thing for thing in table.things() if thing.small or name == "full"]
    texts = {row.key: row.texts for row in table.attributes() if row.small or name == "full"}
    return World(
        name=name,
        objects=tuple(thing.name for thing in things),
        attributes=tuple(texts),
        categories={thing.name: thing.category for thing in things},
        nouns={thing.name: thing.noun for thing in things},
        variants={thing.name: thing.variants for thing in things},
        texts=texts,
        answers={row.name: {key: row.cells.get(key, "no") for key in texts} for row in things},
    )


def _from_file(path: str) -> World:
    """A word list: objects without attributes."""
    words = read_words(path)
    return World(
        name=path,
        objects=tuple(words),
        attributes=(),
        categories={name: group for name, (group, _) in words.items()},
        nouns={name: with_article(_counted(name, rest)) for name, (_, rest) in words.items()},
        variants={name: tuple(rest) for name, (_, rest) in words.items()},
        texts={},
        answers={name: {} for name in words},
    )


def _counted(name: str, variants: list[str]) -> str:
    """What an article can stand before: "pair of shoes" where the list knows that for "shoes"."""
    return next((text for text in variants if text.startswith("pair of ")), name)
