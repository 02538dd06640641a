"""The expert of Twenty Questions: greedy information gain over the objects that fit all answers.

It draws among equal gains, for variety. Its turns have the form of the embedded model: a thought
that names a fitting object, then the question. It never sees the hidden object.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from functools import lru_cache

from agentrl_cli.envs.twentyq.world import World

CLOSENESS = ((3, "Close."), (8, "Near."))  # by how many objects at most still fit; else "Far."


def expert_turn(
    world: World, candidates: tuple[str, ...], turns_left: int, draw: random.Random
) -> str:
    """Return a turn: the thought names the object to guess or any that fits, then the action."""
    asks = len(candidates) > 2 and turns_left > 1  # of two, a guess tells as much and may win
    attributes = best_attributes(world, candidates) if asks else ()
    name = draw.choice(candidates)
    action = world.question(draw.choice(attributes)) if attributes else world.guess(name)
    return f"Maybe {world.nouns[name]}. {closeness(len(candidates))}\n{action}"


def closeness(candidates: int) -> str:
    """Return "Close.", "Near." or "Far." by the number of objects that still fit."""
    return next((word for most, word in CLOSENESS if candidates <= most), "Far.")


@lru_cache(maxsize=8192)
def best_attributes(world: World, candidates: tuple[str, ...]) -> tuple[str, ...]:
    """Return all attributes with the largest entropy; none if that is 0."""
    gains = {a: round(entropy(world, candidates, a), 9) for a in world.attributes}
    most = max(gains.values(), default=0.0)
    return tuple(a for a, gain in gains.items() if gain == most) if most > 0 else ()


def entropy(world: World, candidates: tuple[str, ...], attribute: str) -> float:
    """Return the entropy in bits of an answer, all candidates equally likely."""
    counts = Counter(world.answers[name][attribute] for name in candidates).values()
    return sum(count / len(candidates) * math.log2(len(candidates) / count) for count in counts)
