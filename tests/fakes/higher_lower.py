"""A foreign world in the shape of Gymnasium: a number to be found."""

from __future__ import annotations

import random
from typing import Any


class HigherLower:
    """A number from 1 to `largest`, drawn by the seed; the reward comes with the right one."""

    def __init__(self, largest: int = 8, limit: int = 4) -> None:
        self.largest, self.limit, self.is_closed = largest, limit, False

    def reset(self, *, seed: int) -> tuple[str, dict[str, Any]]:
        self.secret, self.left = random.Random(seed).randint(1, self.largest), self.limit
        return f"A number from 1 to {self.largest}?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        guess = int(action) if action.isdecimal() else 0
        won = guess == self.secret
        text = "Right." if won else "Higher." if guess < self.secret else "Lower."
        info = {"guess": guess, "model": object()}
        return text, float(won), won, not won and self.left == 0, info

    def close(self) -> None:
        self.is_closed = True
