"""Guess a number. The environment answers higher or lower."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentrl_cli import Env, Message, Step, Task, UserError


@dataclass(kw_only=True)
class GuessIt(Env):
    """One instance plays one episode. The fields are the keys of conf/env/guess_it.yaml."""

    largest: int
    max_turns: int

    def system(self) -> str:
        return f"Find a number from 1 to {self.largest}. Say a number alone."

    def tasks(self, split: str) -> list[Task]:
        if split not in ("train", "test"):
            raise UserError(f"unknown split '{split}'; choose train or test")
        numbers = range(1 if split == "train" else 2, self.largest + 1, 2)  # disjoint
        return [Task(f"guess_it-{n}", split, {"number": n}) for n in numbers]

    def reset(self, task: Task, seed: int) -> list[Message]:
        self.secret, self.left = task.data["number"], self.max_turns
        return [Message("user", "Guess.")]

    def step(self, action: str) -> Step:
        if not self.left:
            raise RuntimeError("the episode is over; call reset")
        said = action.strip()
        guess = int(said) if said.isascii() and said.isdecimal() and len(said) < 9 else None
        self.left = 0 if guess == self.secret else self.left - 1
        if not self.left:
            won = guess == self.secret
            return Step([], float(won), True, False, {"success": won})
        word = "Say a number." if guess is None else "Higher." if guess < self.secret else "Lower."
        return Step([Message("user", word)], 0.0, False, False, {"invalid": guess is None})

    def expert(self, task: Task) -> Iterator[str]:
        """Yield expert actions by bisection. Optional."""
        low, high = 1, self.largest
        while low <= high:
            guess = (low + high) // 2
            yield str(guess)
            low, high = (guess + 1, high) if guess < task.data["number"] else (low, guess - 1)
