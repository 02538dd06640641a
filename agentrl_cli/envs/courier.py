"""The courier: a small environment whose exact values are known.

A letter crosses a few roads, one road per turn. The first message names the road that is closed.
Taking it loses the letter silently; the reward comes at the end. `transitions` states the whole
model of the environment, so `agentrl diagnose` computes the exact Q and V of any policy that says
one road per turn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from agentrl_cli.core.limits import check_limits
from agentrl_cli.core.types import Message, Step, Task
from agentrl_cli.envs.base import Env, require_split

ROADS = ("hill", "lake", "mill")
WEATHER = ("It rains.", "It is dry.")


@dataclass(frozen=True)
class CourierState:
    """What a courier can infer from the messages so far. `closed` is the closed road of each turn.
    `safe` is the probability that the letter is not lost. `text` is the latest message."""

    closed: tuple[str, ...]
    turn: int
    safe: float
    text: str

    @property
    def turns_left(self) -> int:
        return len(self.closed) - self.turn

    @property
    def closed_action(self) -> str:
        """The action that takes the closed road."""
        return f"{self.closed[self.turn]}."


@dataclass(kw_only=True)
class Courier(Env):
    """One delivery. There are only a few tasks, and each split has a copy of them."""

    max_turns: Annotated[int, Field(ge=1, le=6, description="Roads to take.")]
    loss: Annotated[
        float, Field(ge=0, le=1, description="Probability that a closed road loses the letter.")
    ]
    second_road: Annotated[
        bool,
        Field(description="From the third turn on another road is closed."),
    ]
    tempting: Annotated[
        bool, Field(description="The first message praises the closed road, which novices take.")
    ]
    weather: Annotated[bool, Field(description="Messages tell the weather, which is irrelevant.")]

    def __post_init__(self) -> None:
        check_limits(self)

    # --- the model of the environment ---

    @property
    def actions(self) -> list[str]:
        """The texts of all valid actions."""
        return [f"{road}." for road in ROADS]

    def starts(self, task: Task) -> list[tuple[float, CourierState]]:
        """Return the possible first states of a task with their probabilities."""
        first, then = task.data["closed"], task.data["then"]
        closed = tuple(first if turn < 2 else then for turn in range(self.max_turns))
        facts = [f"No {first}."]
        if self.second_road:
            facts.append(f"Later no {then}.")
        if self.tempting:
            facts.append(f"The {first} is near.")
        return self._messages(CourierState(closed, 0, 1.0, " ".join(facts)))

    def transitions(self, state: CourierState, action: str) -> list[tuple[float, CourierState]]:
        """Return the possible next states after an action with their probabilities. The episode
        ends if no turn is left, with the reward `safe` in expectation. Any text that is not a road
        loses the letter."""
        road, safe = action.strip().removesuffix("."), state.safe
        if road not in ROADS:
            safe = 0.0
        elif road == state.closed[state.turn]:
            safe *= 1 - self.loss
        return self._messages(CourierState(state.closed, state.turn + 1, safe, ""))

    def _messages(self, state: CourierState) -> list[tuple[float, CourierState]]:
        """Return the state with each message that the courier may receive in it."""
        text = f"{state.text} {state.turns_left} left.".strip()
        texts = [f"{text} {weather}" for weather in WEATHER] if self.weather else [text]
        return [(1 / len(texts), replace(state, text=text)) for text in texts]

    # --- one episode ---

    def system(self) -> str:
        return "Bring the letter."

    def tasks(self, split: str) -> list[Task]:
        require_split(split)
        pairs = [(a, b) for a in ROADS for b in ROADS if (a != b) == self.second_road]
        names = [f"courier-{split}-{a}" + f"-{b}" * self.second_road for a, b in pairs]
        data = [{"closed": a, "then": b, "split": split} for a, b in pairs]
        return [Task(name, split, row) for name, row in zip(names, data, strict=True)]

    def reset(self, task: Task, seed: int) -> list[Message]:
        self.rng, self.lost = random.Random(seed), False
        self.state = self._draw(self.starts(task))
        return [Message("user", self.state.text)]

    def step(self, action: str) -> Step:
        if not self.state.turns_left:
            raise RuntimeError("the episode is over; call reset")
        is_road = action.strip().removesuffix(".") in ROADS
        before = self.state
        self.state = self._draw(self.transitions(replace(before, safe=1.0), action))
        self.lost = self.rng.random() >= self.state.safe or self.lost
        done = not self.state.turns_left
        info: dict[str, bool] = {"invalid": not is_road}
        if done:
            info["success"] = not self.lost
        reward = float(done and not self.lost)
        return Step([Message("user", self.state.text)], reward, done, False, info)

    def _draw(self, states: list[tuple[float, CourierState]]) -> CourierState:
        weights = [probability for probability, _ in states]
        return self.rng.choices([state for _, state in states], weights)[0]

    def expert(self, task: Task) -> Iterator[str]:
        """Yield one of the open roads."""
        while True:
            closed = self.state.closed_action
            yield self.rng.choice([action for action in self.actions if action != closed])
