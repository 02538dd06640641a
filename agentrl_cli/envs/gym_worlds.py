"""Factories for GymText: single-player games of textarena, and games of gem-llm.

Both libraries draw from the process's global random generator. Here each game gets its own state,
so that its seed determines it, whatever else is drawn.
"""

from __future__ import annotations

import importlib
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from agentrl_cli.core.errors import UserError

Answer = tuple[str, float, bool, bool, dict[str, Any]]
GLOBAL_RANDOM = Lock()  # held while a game uses the process's random generator
PLAYER = 0


class GemGame:
    """A game of gem-llm. Its own random state replaces the process's while it runs."""

    def __init__(self, package: Any, name: str, options: dict[str, Any]) -> None:
        self.state = random.Random(0).getstate()
        try:
            with self.own_random():
                self.game: Any = package.make(name, **options)
        except (ValueError, TypeError, KeyError, AssertionError, ImportError) as error:
            line = f"{package.__name__} cannot make '{name}' ({error})"
            raise UserError(
                f"{line}; choose a game that it registers", code="unknown-game"
            ) from None

    @contextmanager
    def own_random(self, seed: int | None = None) -> Iterator[None]:
        with GLOBAL_RANDOM:
            outer = random.getstate()
            random.setstate(self.state if seed is None else random.Random(seed).getstate())
            try:
                yield
            finally:
                self.state = random.getstate()
                random.setstate(outer)

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Return the first text."""
        with self.own_random(seed):
            return self.game.reset(seed=seed)

    def step(self, action: str) -> Answer:
        """Return the game's answer."""
        with self.own_random():
            return self.game.step(action)


class TextArenaGame(GemGame):
    """A single-player game of textarena without its wrappers. Only the game's own messages are
    shown."""

    def __init__(self, package: Any, name: str, options: dict[str, Any]) -> None:
        super().__init__(package, name, options)
        while isinstance(self.game, package.Wrapper):
            self.game = self.game.env
        self.reset(0)

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Return the first text. Raises UserError for a game with several players."""
        with self.own_random(seed):
            try:
                self.game.reset(num_players=1, seed=seed)
            except AssertionError as error:
                line = f"the game needs several players ({error}); choose a single-player game"
                raise UserError(line, code="several-players") from None
            return self._text(), {}

    def step(self, action: str) -> Answer:
        """Return the game's answer; its reward comes at the end."""
        with self.own_random():
            done, _ = self.game.step(action)
            text = self._text()
            if not done:
                return text, 0.0, False, False, {}
            rewards, info = self.game.close()
        facts = dict(info[PLAYER])
        return text or str(facts.get("reason", "")), float(rewards[PLAYER]), True, False, facts

    def _text(self) -> str:
        _, observations = self.game.get_observation()
        return "\n".join(text for sender, text, _ in observations if sender != PLAYER)


def textarena(*, name: str, **options: Any) -> TextArenaGame:
    """Return the game that textarena registers as `name`. Raises UserError if it is unknown or
    has several players, or if textarena is not installed."""
    return TextArenaGame(_package("textarena", "textarena"), name, options)


def gem(*, name: str, **options: Any) -> GemGame:
    """Return the game that gem-llm registers as `name`. Raises UserError if it is unknown or not a
    game, or if gem-llm is not installed."""
    if not name.startswith("game:"):
        line = f"'{name}' is not a game, and gem-llm's other environments may run an answer as code"
        raise UserError(f"{line}; choose a name that begins with game:", code="not-a-game")
    return GemGame(_package("gem", "gem"), name, options)


def _package(module: str, extra: str) -> Any:
    """Import a package without its changes to the root logger."""
    log = logging.getLogger()
    level, handlers = log.level, list(log.handlers)
    try:
        return importlib.import_module(module)
    except ImportError:
        line = f"env={extra} needs a package; pip install 'agentrl-cli[{extra}]'"
        raise UserError(line, code="missing-package") from None
    finally:
        log.setLevel(level)
        log.handlers[:] = handlers
