"""Makers of other people's games in the shape that GymText plays: of textarena's for one player,
and of gem-llm's. Both draw from the one stream of random numbers that a process has; here each game
has its own, so that a game's seed decides it whatever else is drawn."""

from __future__ import annotations

import importlib
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from agentrl_cli.core.errors import UserError

Answer = tuple[str, float, bool, bool, dict[str, Any]]
ONE_AT_A_TIME = Lock()  # held while a game draws from the process's random numbers
PLAYER = 0


@dataclass
class OwnRandom:
    """A stream of random numbers that stands in for the process's while a game is at work."""

    state: Any = field(default_factory=lambda: random.Random(0).getstate())

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with ONE_AT_A_TIME:
            outer = random.getstate()
            random.setstate(self.state)
            try:
                yield
            finally:
                self.state = random.getstate()
                random.setstate(outer)

    def seed(self, seed: int) -> None:
        """Begin the stream anew."""
        self.state = random.Random(seed).getstate()


@dataclass
class TextArenaGame:
    """A game of textarena for one player without its wrappers: what the game says is shown, what
    the player said is not repeated."""

    game: Any
    draws: OwnRandom

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """The first text. Raises UserError where the game is for several players."""
        self.draws.seed(seed)
        with self.draws():
            try:
                self.game.reset(num_players=1, seed=seed)
            except AssertionError as error:
                line = f"the game cannot be played alone ({error})"
                raise UserError(f"{line}; choose one for one player") from None
            return self._said(), {}

    def step(self, action: str) -> Answer:
        """What the game says to an action; the reward comes at the end, and is its own."""
        with self.draws():
            done, _ = self.game.step(action)
            text = self._said()
            if not done:
                return text, 0.0, False, False, {}
            rewards, info = self.game.close()
        facts = dict(info[PLAYER])
        return text or str(facts.get("reason", "")), float(rewards[PLAYER]), True, False, facts

    def _said(self) -> str:
        _, observations = self.game.get_observation()
        return "\n".join(text for sender, text, _ in observations if sender != PLAYER)


@dataclass
class GemGame:
    """A game of gem-llm."""

    game: Any
    draws: OwnRandom

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """The first text."""
        self.draws.seed(seed)
        with self.draws():
            return self.game.reset(seed=seed)

    def step(self, action: str) -> Answer:
        """What the game answers."""
        with self.draws():
            return self.game.step(action)


def textarena(*, name: str, **options: Any) -> TextArenaGame:
    """The game that textarena registers as `name`. Raises UserError where there is none, it
    is for several players, or textarena is not installed."""
    package, draws = _package("textarena", "textarena"), OwnRandom()
    with draws():
        game = _made(package, name, options)
    while isinstance(game, package.Wrapper):
        game = game.env
    made = TextArenaGame(game, draws)
    made.reset(0)
    return made


def gem(*, name: str, **options: Any) -> GemGame:
    """The game that gem-llm registers as `name`. Raises UserError where there is none, the name is
    no game's, or gem-llm is not installed."""
    if not name.startswith("game:"):
        line = f"'{name}' is no game, and gem-llm's other worlds may run an answer as code"
        raise UserError(f"{line}; choose one whose name begins with game:")
    package, draws = _package("gem", "gem"), OwnRandom()
    with draws():
        return GemGame(_made(package, name, options), draws)


def _made(package: Any, name: str, options: dict[str, Any]) -> Any:
    try:
        return package.make(name, **options)
    except (ValueError, TypeError, KeyError, AssertionError, ImportError) as error:
        line = f"{package.__name__} cannot make '{name}' ({error})"
        raise UserError(f"{line}; see the games that it registers") from None


def _package(module: str, extra: str) -> Any:
    """A package, whose import leaves the log of this process as it was."""
    log = logging.getLogger()
    level, handlers = log.level, list(log.handlers)
    try:
        return importlib.import_module(module)
    except ImportError:
        line = f"env={extra} needs a package"
        raise UserError(f"{line}; pip install 'agentrl-cli[{extra}]'") from None
    finally:
        log.setLevel(level)
        log.handlers[:] = handlers
