"""Twenty Questions: a hidden object, questions answered from a table, one guess at a time.

The expert asks by greedy information gain over the objects that fit all answers, and draws among
equal gains, for variety. Its turns have the form of the bundled model: a thought that names a
fitting object, then the question. It never sees the hidden object.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.limits import check_limits
from agentrl_cli.core.types import Message, Step, Task, derive_seed
from agentrl_cli.envs.base import Env, Instructions, full_instructions
from agentrl_cli.envs.twentyq.oracle import ChatFunction, model_answer
from agentrl_cli.envs.twentyq.questions import (
    Guess,
    Question,
    Unanswerable,
    action_text,
    normalise,
    parse,
    question_text,
    read_freely,
)
from agentrl_cli.envs.twentyq.world import World, load_world

OPPOSITE = {"yes": "no", "no": "yes", "sometimes": "sometimes"}
ORACLE_SEED = 0  # of every question to a model, so that answers repeat
Parsed = Question | Guess | Unanswerable | None
CLOSENESS = ((3, "Close."), (8, "Near."))  # by how many objects at most still fit; else "Far."
GRADES = {"Close.": 2 / 3, "Near.": 1 / 3, "Far.": 0.0}  # rewards of a lost game


@dataclass
class Game:
    """The game in progress. `candidates` are the objects that fit all true answers."""

    secret: str
    candidates: tuple[str, ...]
    seed: int
    asked: list[tuple[str, str]] = field(default_factory=list)
    turn: int = 0
    over: bool = False


@dataclass(kw_only=True)
class TwentyQ(Env):
    """One game: a hidden object, yes or no questions, and guesses of one object."""

    world: Annotated[str, Field(description="small, full, or a word list (.txt, .csv or .json).")]
    max_turns: Annotated[int, Field(ge=1, description="Questions and guesses per game.")]
    reward: Annotated[Literal["win", "graded", "lmrl"], Field(description="win: 1 for the right "
                      "guess; graded: a lost game also gets 2/3 if at most 3 objects still fit, "
                      "1/3 if at most 8; lmrl: -1 per turn, 0 for the winning one.")]  # fmt: skip
    final_hint: Annotated[Literal["graded", "plain"], Field(description="graded: the last message "
                          "of a lost game shows how close it was.")]  # fmt: skip
    test_objects: Annotated[int, Field(ge=0, description="Test objects, stratified by category.")]
    split_seed: Annotated[int, Field(description="Seed of the splits.")]
    show_turns_left: Annotated[bool, Field(description='Answers end with, for example, "6 left."')]
    val_objects: Annotated[int, Field(ge=0, description="Objects of the val split, at most a "
                           "quarter of those that are not in test.")] = 0  # fmt: skip
    parser: Annotated[Literal["exact", "free"], Field(description="exact: questions must be the "
                      "table's own; free: also numbered questions, synonyms, thinking and chatter, "
                      "as real models write them.")] = "exact"  # fmt: skip
    oracle: Annotated[Literal["table", "llm"], Field(description="Answers come from the table, or "
                      "from the model llm.")] = "table"  # fmt: skip
    llm: Annotated[ChatFunction | None, Field(description="Model of `oracle=llm`.")] = None
    instructions: Instructions = "short"
    game: Game | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_limits(self)
        if self.oracle == "llm" and self.llm is None:
            line = "env.oracle=llm needs a model; set env.llm.model=NAME"
            raise UserError(line, code="missing-model")
        self._objects("test")

    @property
    def world_table(self) -> World:
        """The cached table of objects; not stored on the instance, to keep copies small."""
        return load_world(self.world)

    def system(self) -> str:
        if self.instructions == "full":
            texts, world = full_instructions()["twentyq"], self.world_table
            text = texts["system"].format(max_turns=self.max_turns)
            questions = " ".join(map(world.question, world.attributes))
            exact = texts["exact"].format(questions=questions) if self.parser == "exact" else ""
            return f"{text} {exact}".strip()
        if self.parser == "exact":
            return "Find the hidden object with yes or no questions. The last line of a turn asks."
        return (
            "You are playing Twenty Questions. Find the hidden everyday object. In each turn, ask "
            "one yes-or-no question or make a guess, for example: Is it a dog? "
            f"You have {self.max_turns} turns, including guesses."
        )

    def example(self) -> list[Message]:
        """Return a few turns of a game up to its guess."""
        if self.instructions == "short":
            return []
        rows, left = full_instructions()["twentyq"]["example"][-self.max_turns :], self.max_turns
        messages = [Message("user", "Ask." + self._turns_left(left))]
        for number, (action, answer) in enumerate(rows, start=1):
            reply = Message("user", answer + self._turns_left(left - number))
            messages += [Message("assistant", action), reply]
        return messages[:-1]

    def tasks(self, split: str) -> list[Task]:
        """Return one task per object of the split."""
        names, stem = self._objects(split), f"twentyq-{Path(self.world).stem}"
        return [Task(f"{stem}-{name.replace(' ', '-')}", split, {"object": name}) for name in names]

    def _objects(self, split: str) -> list[str]:
        sizes = (self.test_objects, self.split_seed, self.val_objects)
        return self.world_table.split(split, *sizes)

    def reset(self, task: Task, seed: int) -> list[Message]:
        """Hide the task's object. Only the expert uses the seed."""
        secret = task.data.get("object")
        if secret not in self.world_table.objects:
            line = f"task {task.id} hides {secret!r}, which is not in world {self.world}"
            raise UserError(f"{line}; use the tasks of this env", code="unknown-object")
        self.game = Game(secret, self.world_table.objects, seed)
        return [Message("user", "Ask." + self._turns_left(self.max_turns))]

    def step(self, action: str) -> Step:
        """Answer a question or a guess. Raises RuntimeError before `reset` and after the end."""
        game = self._running()
        parsed = (read_freely if self.parser == "free" else parse)(action, self.world_table)
        answer = self._answer(parsed, action, game.secret)
        kind, subject = _kind_and_subject(parsed, action, answer)
        info: dict[str, Any] = {"kind": kind, "repeated": (kind, subject) in game.asked}
        info["invalid"] = kind == "invalid"
        game.asked.append((kind, subject))
        if isinstance(parsed, Question | Guess):
            info["guess" if kind == "guess" else "attribute"] = subject
        before, game.candidates = game.candidates, self._candidates_after(parsed, game)
        known = parsed is not None and game.candidates == before
        info["privileged"] = {"object": game.secret, "fits": len(game.candidates), "known": known}
        game.turn += 1
        success = parsed == Guess(game.secret)
        game.over = success or game.turn == self.max_turns
        near = parsed.near if isinstance(parsed, Unanswerable) and not answer else ()
        hint = f" You could ask: {' '.join(near)}" if near else ""
        sentence = answer_sentence(answer)
        if parsed is None and not answer and self.instructions == "full":
            sentence = full_instructions()["twentyq"]["malformed"]
        text = sentence + hint + self._turns_left(self.max_turns - game.turn)
        if game.over:
            text = self.farewell_text(answer, success, game.secret, len(game.candidates))
            info["success"] = success
        return Step([Message("user", text)], self._reward(game, success), game.over, False, info)

    def _reward(self, game: Game, success: bool) -> float:
        if self.reward == "graded" and game.over and not success:
            return GRADES[closeness(len(game.candidates))]
        return float(success) - float(self.reward == "lmrl")

    def farewell_text(self, answer: str, success: bool, name: str, candidates: int) -> str:
        """Return the last message: the answer, the outcome and, for a lost game with
        `final_hint=graded`, how close it was by the number of `candidates`."""
        how_close = f" {closeness(candidates)}" if self.final_hint == "graded" else ""
        end = f"You lose. It was {self.world_table.nouns[name]}.{how_close}"
        return f"{answer_sentence(answer)} {'You win.' if success else end}"

    def expert(self, task: Task) -> Iterator[str]:
        """Yield actions by greedy information gain, given the answers so far."""
        game = self._running()
        while not game.over:
            draw = random.Random(derive_seed("twentyq", "expert", game.seed, game.turn))
            yield expert_turn(self.world_table, game.candidates, self.max_turns - game.turn, draw)

    def _running(self) -> Game:
        if self.game is None or self.game.over:
            raise RuntimeError("no game is running: call reset on a fresh instance")
        return self.game

    def _answer(self, parsed: Parsed, action: str, secret: str) -> str:
        """Return yes, no or sometimes, or "" if there is no answer."""
        if isinstance(parsed, Guess):
            return "yes" if parsed.object == secret else "no"
        if isinstance(parsed, Question) and self.oracle == "table":
            answer = self.world_table.answer(secret, parsed.attribute)
            return OPPOSITE[answer] if parsed.negated else answer
        llm, asked = self.llm, question_text(action) if self.parser == "free" else action
        if self.oracle == "table" or llm is None or not asked:
            return ""
        return model_answer(lambda messages: llm(messages, ORACLE_SEED), secret, asked)

    def _candidates_after(self, parsed: Parsed, game: Game) -> tuple[str, ...]:
        if isinstance(parsed, Question):
            answers = self.world_table.answers
            key, answer = parsed.attribute, answers[game.secret][parsed.attribute]
            return tuple(name for name in game.candidates if answers[name][key] == answer)
        if parsed == Guess(game.secret):
            return (game.secret,)
        return tuple(name for name in game.candidates if parsed != Guess(name))

    def _turns_left(self, left: int) -> str:
        return f" {left} left." if self.show_turns_left else ""


def answer_sentence(answer: str) -> str:
    """Return the observation for yes, no, sometimes, or "" (no answer)."""
    return f"{answer.capitalize()}." if answer else "I cannot answer that."


def _kind_and_subject(parsed: Parsed, action: str, answer: str) -> tuple[str, str]:
    if isinstance(parsed, Question):
        return "question", parsed.attribute
    if isinstance(parsed, Guess):
        return "guess", parsed.object
    text = parsed.text if isinstance(parsed, Unanswerable) else action_text(action)
    return ("question" if answer else "invalid"), normalise(text) or ""


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
