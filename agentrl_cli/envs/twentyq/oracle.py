"""Answers of a language model: for objects without a table, and how far they agree with one."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from agentrl_cli.core.errors import EmptyAnswer, UserError
from agentrl_cli.core.text import without_thinking
from agentrl_cli.core.types import Message, derive_seed
from agentrl_cli.envs.twentyq.questions import action_text, normalise
from agentrl_cli.envs.twentyq.world import World

PROMPT = "Answer truthfully about the object with one word: yes, no or sometimes."
ANSWER = re.compile(r"\W*(?:(?:the )?answer\b(?: is)?\W*)?(yes|no|sometimes)\b", re.IGNORECASE)
WORKERS = 8  # concurrent questions of a calibration
ChatFunction = Callable[[list[Message], int], str]  # messages and a seed to a text


def model_answer(chat: Callable[[list[Message]], str], object: str, text: str) -> str:
    """Return yes, no or sometimes, or "" for another answer. Only that word is kept, so nothing
    leaks. Raises EmptyAnswer if the model returns nothing but reasoning."""
    question = normalise(action_text(text))
    if question is None:
        return ""
    asked = Message("user", f"Object: {object}\nQuestion: {question}?")
    said = without_thinking(chat([Message("system", PROMPT), asked])).strip()
    if not said:
        raise EmptyAnswer("the oracle's model returned no text, or only its reasoning")
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
    names = {key: _draw(world, key, objects, seed) for key in world.attributes}
    compared = []
    with ThreadPoolExecutor(WORKERS) as pool:

        def ask(key: str) -> Iterator[str]:
            return pool.map(lambda name: answered(name, world.question(key)), names[key])

        def answered(name: str, question: str) -> str:
            try:
                return model_answer(chat, name, question)
            except EmptyAnswer:
                return ""  # agrees with nothing

        said = {key: ask(key) for key in names}  # all questions are submitted at once
        for key, answers in said.items():
            pairs = [(a, world.answer(n, key)) for a, n in zip(answers, names[key], strict=True)]
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
