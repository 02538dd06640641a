"""The expert of Twenty Questions: greedy information gain over all objects that fit.

What equals in gain is drawn, so that many games show many good ways. It speaks as the embedded
model plays: a thought that names an object that fits, then the question. All it knows is what was
answered, never the hidden object.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from functools import lru_cache

from agentrl_cli.envs.twentyq.world import World

CLOSENESS = ((3, "Close."), (8, "Near."))  # at most so many objects fit all answers; else "Far."


def expert_turn(
    world: World, candidates: tuple[str, ...], turns_left: int, draw: random.Random
) -> str:
    """A whole turn: the thought (the object to be guessed, or any that fits) and the action."""
    asks = len(candidates) > 2 and turns_left > 1
    attributes = best_attributes(world, candidates) if asks else ()
    name = draw.choice(candidates)
    action = world.question(draw.choice(attributes)) if attributes else world.guess(name)
    return f"Maybe {world.nouns[name]}. {closeness(len(candidates))}\n{action}"


def closeness(candidates: int) -> str:
    """How close a game is: "Close.", "Near." or "Far.", by the objects that still fit."""
    return next((word for most, word in CLOSENESS if candidates <= most), "Far.")


@lru_cache(maxsize=8192)
def best_attributes(world: World, candidates: tuple[str, ...]) -> tuple[str, ...]:
    """The attributes with the largest entropy, all that are equal in it; none if nothing is open.

    Of two objects a guess tells as much as a question and may win, so these are asked of three.
    """
    gains = {a: round(entropy(world, candidates, a), 9) for a in world.attributes}
    most = max(gains.values(), default=0.0)
    return tuple(a for a, gain in gains.items() if gain == most) if most > 0 else ()


def entropy(world: World, candidates: tuple[str, ...], attribute: str) -> float:
    """The bits that an answer tells about which object it is, all candidates equally likely."""
    counts = Counter(world.answers[name][attribute] for name in candidates).values()
    return sum(count / len(candidates) * math.log2(len(candidates) / count) for count in counts)
