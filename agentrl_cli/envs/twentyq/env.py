"""Twenty Questions: a hidden object, questions answered from a table, one guess at a time. A game
that runs out of turns is lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Message, Step, Task, derive_seed
from agentrl_cli.envs.base import Env
from agentrl_cli.envs.twentyq.expert import closeness, expert_turn
from agentrl_cli.envs.twentyq.free_questions import Unanswerable, question_text, read_freely
from agentrl_cli.envs.twentyq.oracle import ChatFunction, Oracle
from agentrl_cli.envs.twentyq.questions import Guess, Question, action_text, normalise, parse
from agentrl_cli.envs.twentyq.world import World, load_world

OPPOSITE = {"yes": "no", "no": "yes", "sometimes": "sometimes", "": ""}
REWARDS = ("win", "graded", "lmrl")
FAREWELLS = ("graded", "plain")
ORACLE_SEED = 0  # of all questions to a model: one that was answered stays answered
Read = Question | Guess | Unanswerable | None
GRADES = {"Close.": 2 / 3, "Near.": 1 / 3, "Far.": 0.0}  # rewards of a lost game


@dataclass
class Game:
    """The game in progress: what was asked, and the objects that fit all that was answered."""

    secret: str
    candidates: tuple[str, ...]
    seed: int
    asked: list[tuple[str, str]] = field(default_factory=list)
    turn: int = 0
    over: bool = False


@dataclass(kw_only=True)
class TwentyQ(Env):
    """One game. Rewards: `win` gives 1 for the right guess, `graded` also a part of it for a lost
    game that was close, `lmrl` takes 1 for every other turn. A `graded` farewell says how close a
    lost game was, a `plain` one does not. `parser` free also reads questions as real models ask
    them; with `oracle` llm the model `llm` answers all questions, while guesses are read."""

    world: str
    max_turns: int
    reward: str
    final_hint: str
    test_objects: int
    split_seed: int
    show_turns_left: bool
    val_objects: int = 0
    parser: Literal["exact", "free"] = "exact"
    oracle: Literal["table", "llm"] = "table"
    llm: ChatFunction | None = None
    game: Game | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, known in (("reward", REWARDS), ("final_hint", FAREWELLS)):
            value = getattr(self, name)
            if value not in known:
                raise UserError(f"{name} is {value!r}: use {' or '.join(map(repr, known))}")
        if self.max_turns < 1:
            raise UserError(f"turns is {self.max_turns}: allow at least 1")
        if self.oracle == "llm" and self.llm is None:
            raise UserError("env.oracle=llm needs a model; name one as env.llm.model=NAME")
        self._objects("test")

    @property
    def world_table(self) -> World:
        """The world by its name; not kept on the instance, so that a copy or a pickle is small."""
        return load_world(self.world)

    def system(self) -> str:
        """The one instruction."""
        if self.parser == "exact":
            return "Find the hidden object with yes or no questions. The last line of a turn asks."
        return (
            "You play Twenty Questions: find the hidden everyday object. In each turn ask one "
            "question that can be answered with yes or no, or guess, as in: Is it a dog? "
            f"You have {self.max_turns} turns, guesses included."
        )

    def tasks(self, split: str) -> list[Task]:
        """One task per object of the split."""
        names, stem = self._objects(split), f"twentyq-{Path(self.world).stem}"
        return [Task(f"{stem}-{name.replace(' ', '-')}", split, {"object": name}) for name in names]

    def _objects(self, split: str) -> list[str]:
        given = (self.test_objects, self.split_seed, self.val_objects)
        return self.world_table.split(split, *given)

    def reset(self, task: Task, seed: int) -> list[Message]:
        """Hide the task's object. Only the expert draws from the seed."""
        secret = task.data.get("object")
        if secret not in self.world_table.objects:
            raise UserError(f"task {task.id} hides {secret!r}, which world {self.world} lacks")
        self.game = Game(secret, self.world_table.objects, seed)
        return [Message("user", "Ask." + self._turns_left())]

    def step(self, action: str) -> Step:
        """Answer a question or a guess. Raises RuntimeError before `reset` and after the end."""
        game = self._running()
        parsed = self._read(action)
        answer = self._answer(parsed, action)
        info = self._record(parsed, action, answer)
        game.turn += 1
        success = parsed == Guess(game.secret)
        game.over = success or game.turn == self.max_turns
        near = parsed.near if isinstance(parsed, Unanswerable) and not answer else ()
        hint = f" It could be asked: {' '.join(near)}" if near else ""
        text = answer_sentence(answer) + hint + self._turns_left()
        if game.over:
            text = self.farewell_text(answer, success, game.secret, len(game.candidates))
            info["success"] = success
        return Step([Message("user", text)], self._reward(game, success), game.over, False, info)

    def _reward(self, game: Game, success: bool) -> float:
        """The reward of the action that was just answered."""
        if self.reward == "graded" and game.over and not success:
            return GRADES[closeness(len(game.candidates))]
        return float(success) - float(self.reward == "lmrl")

    def farewell_text(self, answer: str, success: bool, name: str, candidates: int) -> str:
        """The last message: the answer (yes, no, sometimes, or "" for none), how it ended and, of a
        lost game under a graded farewell, how close it was with so many `candidates`."""
        how_close = f" {closeness(candidates)}" if self.final_hint == "graded" else ""
        end = f"You lose. It was {self.world_table.nouns[name]}.{how_close}"
        return f"{answer_sentence(answer)} {'You win.' if success else end}"

    def expert(self, task: Task) -> Iterator[str]:
        """Greedy information gain; reads the game between actions, so it adapts to any answers."""
        game = self._running()
        while not game.over:
            draw = random.Random(derive_seed("twentyq", "expert", game.seed, game.turn))
            yield expert_turn(self.world_table, game.candidates, self.max_turns - game.turn, draw)

    def _running(self) -> Game:
        if self.game is None or self.game.over:
            raise RuntimeError("no game is running: call reset on a fresh instance")
        return self.game

    def _read(self, action: str) -> Read:
        """What the action asks."""
        if self.parser == "free":
            return read_freely(action, self.world_table)
        return parse(action, self.world_table)

    def _answer(self, parsed: Read, action: str) -> str:
        secret, oracle = self._running().secret, self._language_oracle()
        if isinstance(parsed, Guess):
            return "yes" if parsed.object == secret else "no"
        if isinstance(parsed, Question) and self.oracle != "llm":
            answer = self.world_table.answer(secret, parsed.attribute)
            return OPPOSITE[answer] if parsed.negated else answer
        asked = question_text(action) if self.parser == "free" else action
        return oracle.answer(secret, asked) if oracle and asked else ""

    def _language_oracle(self) -> Oracle | None:
        """Who answers what the table does not: the model, or an oracle that was given in code."""
        given: object = self.oracle
        if isinstance(given, Oracle):
            return given
        return Oracle(self._ask_model) if self.oracle == "llm" else None

    def _ask_model(self, messages: list[Message]) -> str:
        assert self.llm is not None
        return self.llm(messages, ORACLE_SEED)

    def _record(self, parsed: Read, action: str, answer: str) -> dict[str, Any]:
        """Take the answer into the game and return what may be logged of it."""
        game = self._running()
        kind, subject = _kind_and_subject(parsed, action, answer)
        before, game.candidates = game.candidates, self._candidates_after(parsed)
        known = parsed is not None and game.candidates == before
        info: dict[str, Any] = {"kind": kind, "repeated": (kind, subject) in game.asked}
        if kind == "invalid":
            info["invalid"] = True
        game.asked.append((kind, subject))
        if isinstance(parsed, Question | Guess):
            info["guess" if kind == "guess" else "attribute"] = subject
        info["privileged"] = {"object": game.secret, "fits": len(game.candidates), "known": known}
        return info

    def _candidates_after(self, parsed: Read) -> tuple[str, ...]:
        """The objects that also fit the true answer to what was asked."""
        game, answers = self._running(), self.world_table.answers
        if isinstance(parsed, Question):
            key, answer = parsed.attribute, answers[game.secret][parsed.attribute]
            return tuple(name for name in game.candidates if answers[name][key] == answer)
        if parsed == Guess(game.secret):
            return (game.secret,)
        return tuple(name for name in game.candidates if parsed != Guess(name))

    def _turns_left(self) -> str:
        left = self.max_turns - self.game.turn if self.game else self.max_turns
        return f" {left} left." if self.show_turns_left else ""


def answer_sentence(answer: str) -> str:
    """What a player hears of yes, no, sometimes, or "" for none."""
    return f"{answer.capitalize()}." if answer else "I cannot answer that."


def _kind_and_subject(parsed: Read, action: str, answer: str) -> tuple[str, str]:
    """The kind of the action and what it is about: attribute, object, or the text itself."""
    if isinstance(parsed, Question):
        return "question", parsed.attribute
    if isinstance(parsed, Guess):
        return "guess", parsed.object
    text = parsed.text if isinstance(parsed, Unanswerable) else action_text(action)
    return ("question" if answer else "invalid"), normalise(text) or ""
