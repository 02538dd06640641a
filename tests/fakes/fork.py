"""A walk that its first turn decides and later turns only disturb: for the credit of turns."""

from __future__ import annotations

import random
from dataclasses import dataclass

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Message, Step, Task
from agentrl_cli.envs.base import Env

SIDES = {True: "You go right.", False: "You go left."}
COINS = {True: "You find a coin.", False: "You lose a coin."}


@dataclass(kw_only=True)
class ForkEnv(Env):
    """An even number of letters in the first action goes right. In each later turn a coin of worth
    `coin` is found or lost by the toss of the episode's seed, whatever is said. Who went right gets
    1 more with the last turn, and only that is success."""

    turns: int
    coin: float

    def system(self) -> str:
        return "Walk."

    def tasks(self, split: str) -> list[Task]:
        if split not in ("train", "test"):
            raise UserError(f"split '{split}' is unknown; use train or test")
        return [Task(f"{split}-fork", split, {"walk": split})]

    def reset(self, task: Task, seed: int) -> list[Message]:
        self.played, self.seed, self.right = 0, seed, False
        return [Message("user", "Where to?")]

    def step(self, action: str) -> Step:
        if self.played == self.turns:
            raise RuntimeError("the walk is over")
        self.played += 1
        if self.played == 1:
            self.right, reward = len(action) % 2 == 0, 0.0
            heard = SIDES[self.right]
        else:
            found = random.Random(f"{self.seed} {self.played}").random() < 0.5
            heard, reward = COINS[found], self.coin if found else -self.coin
        done = self.played == self.turns
        info = {"success": self.right} if done else {}
        reward += float(done and self.right)
        return Step([Message("user", heard)], reward, done, False, info)
