"""The expert of Twenty Questions: greedy information gain over all objects that fit."""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache

from agentrl_cli.envs.twentyq.world import World


@lru_cache(maxsize=8192)
def best_action(world: World, fits: tuple[str, ...], left: int) -> str:
    """The action for the objects that fit and the turns left.

    Of two objects a guess tells as much as a question and may win; on the last turn only that can.
    """
    attribute = best_attribute(world, fits) if len(fits) > 2 and left > 1 else None
    return world.question(attribute) if attribute else world.guess(next(iter(fits)))


@lru_cache(maxsize=8192)
def best_attribute(world: World, fits: tuple[str, ...]) -> str | None:
    """The attribute with the largest entropy, the first of equals; None if nothing is open."""
    gains = {attribute: entropy(world, fits, attribute) for attribute in world.attributes}
    best = max(gains, key=lambda attribute: round(gains[attribute], 9), default=None)
    return best if best and gains[best] > 0 else None


def entropy(world: World, fits: tuple[str, ...], attribute: str) -> float:
    """The bits that an answer tells about which object it is, all of `fits` equally likely."""
    counts = Counter(world.rows[name][attribute] for name in fits).values()
    return sum(count / len(fits) * math.log2(len(fits) / count) for count in counts)
