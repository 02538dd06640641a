"""How far a model that answers questions agrees with the table, attribute by attribute."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Message, derive_seed
from agentrl_cli.envs.twentyq.oracle import Oracle
from agentrl_cli.envs.twentyq.world import World

WORKERS = 8  # questions that are in the air at a time


@dataclass(frozen=True)
class Agreement:
    """Of `asked` objects for which the table says yes or no to an attribute: how often the model
    says the same, the contrary, and neither."""

    attribute: str
    question: str
    asked: int
    agreed: int
    contradicted: int

    @property
    def share(self) -> float:
        """The share that agrees."""
        return self.agreed / self.asked


def calibrate(
    world: World, chat: Callable[[list[Message]], str], objects: int, seed: int
) -> list[Agreement]:
    """The agreement for each attribute on `objects` objects, half of them with a yes where there
    are so many, drawn by the seed; the least agreeing first. UserError for a world without a
    table."""
    if not world.attributes:
        raise UserError(f"world {world.name} has no table to compare with; use env.world=full")
    drawn = {key: _draw(world, key, objects, seed) for key in world.attributes}
    rows = [(key, name) for key, names in drawn.items() for name in names]
    oracle = Oracle(chat)
    with ThreadPoolExecutor(WORKERS) as pool:
        said = list(pool.map(lambda row: oracle.answer(row[1], world.question(row[0])), rows))
    found: dict[str, list[tuple[str, str]]] = {key: [] for key in world.attributes}
    for (key, name), answer in zip(rows, said, strict=True):
        found[key].append((answer, world.answer(name, key)))
    compared = [_compare(world, key, pairs) for key, pairs in found.items() if pairs]
    return sorted(compared, key=lambda one: one.share)


def _draw(world: World, key: str, objects: int, seed: int) -> list[str]:
    """Objects for which the table says yes, then ones with no, as many of each as can be."""
    rng = random.Random(derive_seed("calibrate", seed, key))
    said = {a: [n for n in world.objects if world.answer(n, key) == a] for a in ("yes", "no")}
    yes = rng.sample(said["yes"], min(len(said["yes"]), (objects + 1) // 2))
    return yes + rng.sample(said["no"], min(len(said["no"]), objects - len(yes)))


def _compare(world: World, key: str, pairs: list[tuple[str, str]]) -> Agreement:
    agreed = sum(answer == wanted for answer, wanted in pairs)
    contrary = sum(answer in ("yes", "no") and answer != wanted for answer, wanted in pairs)
    return Agreement(key, world.question(key), len(pairs), agreed, contrary)
