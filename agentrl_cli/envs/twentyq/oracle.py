"""Answers of a language model: for objects without a table, and how far they agree with one."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.thinking import without_thinking
from agentrl_cli.core.types import Message, derive_seed
from agentrl_cli.envs.twentyq.questions import action_text, normalise
from agentrl_cli.envs.twentyq.world import World

PROMPT = "Answer truthfully about the object with one word: yes, no or sometimes."
ANSWER = re.compile(r"\W*(yes|no|sometimes)\b", re.IGNORECASE)
WORKERS = 8  # concurrent questions of a calibration
ChatFunction = Callable[[list[Message], int], str]  # messages and a seed to a text


@dataclass
class Oracle:
    """Answers yes, no or sometimes by `chat`. Only that word is kept, so nothing leaks."""

    chat: Callable[[list[Message]], str]
    cache: dict[tuple[str, str], str] = field(default_factory=dict)

    def answer(self, object: str, text: str) -> str:
        """Return the answer, cached by object and question; "" if there is none."""
        question = normalise(action_text(text))
        if question is None:
            return ""
        if (object, question) not in self.cache:
            self.cache[object, question] = self._ask(object, question)
        return self.cache[object, question]

    def _ask(self, object: str, question: str) -> str:
        asked = Message("user", f"Object: {object}\nQuestion: {question}?")
        said = without_thinking(self.chat([Message("system", PROMPT), asked]))
        match = ANSWER.match(said)
        return match[1].lower() if match else ""


@dataclass(frozen=True)
class Agreement:
    """How many of `asked` objects with yes or no in the table got the same answer from the model
    (`agreed`), and how many the opposite."""

    attribute: str
    question: str
    asked: int
    agreed: int
    contradicted: int

    @property
    def share(self) -> float:
        """The share of equal answers."""
        return self.agreed / self.asked


def calibrate(
    world: World, chat: Callable[[list[Message]], str], objects: int, seed: int
) -> list[Agreement]:
    """Return the agreement of each attribute on `objects` drawn objects, if possible half of them
    with a yes; the lowest first. Raises UserError for a world without a table."""
    if not world.attributes:
        line = f"world {world.name} has no table to compare with; use env.world=full"
        raise UserError(line, code="no-table")
    rows = [(key, name) for key in world.attributes for name in _draw(world, key, objects, seed)]
    oracle = Oracle(chat)
    with ThreadPoolExecutor(WORKERS) as pool:
        said = list(pool.map(lambda row: oracle.answer(row[1], world.question(row[0])), rows))
    found: dict[str, list[tuple[str, str]]] = {}
    for (key, name), answer in zip(rows, said, strict=True):
        found.setdefault(key, []).append((answer, world.answer(name, key)))
    compared = []
    for key, pairs in found.items():
        agreed = sum(answer == wanted for answer, wanted in pairs)
        contrary = sum(answer in ("yes", "no") and answer != wanted for answer, wanted in pairs)
        compared.append(Agreement(key, world.question(key), len(pairs), agreed, contrary))
    return sorted(compared, key=lambda one: one.share)


def _draw(world: World, key: str, objects: int, seed: int) -> list[str]:
    """Draw objects with a yes, then objects with a no, as many of each as possible."""
    rng = random.Random(derive_seed("calibrate", seed, key))
    said = {a: [n for n in world.objects if world.answer(n, key) == a] for a in ("yes", "no")}
    yes = rng.sample(said["yes"], min(len(said["yes"]), (objects + 1) // 2))
    return yes + rng.sample(said["no"], min(len(said["no"]), objects - len(yes)))
