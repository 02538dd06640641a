"""A corridor of rooms with known values, and a table of texts that plays every role in it.

In a room one may jump, which ends the game and wins with the room's chance, or go on to the next
room; who goes on from the last room wins with the chance `last`.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from dataclasses import dataclass, field

from agentrl_cli.algos.nlac.parse import strict_outcome
from agentrl_cli.core.types import Episode, Message, Step, Task
from agentrl_cli.envs.base import Env
from agentrl_cli.generators.base import Completion, Generator, Sampling
from tests.builders.nlac import CHAT, ENDS, asked, messages

JUMP, GO = "I jump.", "I go on."
Pair = tuple[str, str]


@dataclass(kw_only=True)
class CorridorEnv(Env):
    """One game; chance is drawn from the episode's seed and the room."""

    jump: tuple[float, ...]
    last: float

    def system(self) -> str:
        return "Walk."

    def tasks(self, split: str) -> list[Task]:
        return [Task("corridor", split, {})]

    def reset(self, task: Task, seed: int) -> list[Message]:
        self.room, self.seed = 0, seed
        return [Message("user", "Room 0.")]

    def step(self, action: str) -> Step:
        if action == GO and self.room + 1 < len(self.jump):
            self.room += 1
            return Step([Message("user", f"Room {self.room}.")], 0.0, False, False)
        chance = self.last if action == GO else self.jump[self.room]
        success = random.Random(f"{self.seed} {self.room}").random() < chance
        end = Message("user", "You are out." if success else "You fell.")
        return Step([end], float(success), True, False, {"success": success})

    def values(self, policy: dict[str, float]) -> dict[Pair, float]:
        """Q of every room and action, under the chance with which the policy jumps in each room."""
        found: dict[Pair, float] = {}
        later = self.last
        for room in reversed(range(len(self.jump))):
            name = f"Room {room}."
            found[name, JUMP], found[name, GO] = self.jump[room], later
            later = policy[name] * self.jump[room] + (1 - policy[name]) * later
        return found


@dataclass
class TableGenerator(Generator):
    """Texts for each name of weights, room and action, of which a forecast is one at random; the
    policy is the chance to jump in each room. Other roles read only what their prompt holds."""

    policy: dict[str, float]
    texts: dict[str, dict[Pair, list[str]]] = field(
        default_factory=lambda: {name: defaultdict(list) for name in ("policy", "target")}
    )

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        return [
            [self._complete(prompt, model, random.Random(f"{s} {j}")) for j in range(sampling.n)]
            for prompt, s in zip(prompts, seeds, strict=True)
        ]

    def learn(self, targets: dict[Pair, list[str]]) -> None:
        """A sweep: each pair's texts become its targets, for the policy's and the target's name."""
        for known in self.texts.values():
            known.update(targets)

    def value(self, pair: Pair) -> float:
        """The share of the pair's texts that name success, 0.5 where it has none."""
        named = [strict_outcome(text) for text in self.texts["policy"][pair]]
        return sum(map(bool, named)) / len(named) if named else 0.5

    def _complete(self, prompt: list[int], model: str, draw: random.Random) -> Completion:
        text = self._say(CHAT.text_of(prompt), model, draw)
        ids = CHAT.encode_action(text)
        return Completion(ids, [0.0] * len(ids), "stop")

    def _say(self, text: str, model: str, draw: random.Random) -> str:
        request, said = asked(text), [part.split("<|im_end|>")[0] for part in messages(text)]
        role = next((role for end, role in ENDS.items() if request.endswith(end)), "act")
        if role == "act":
            return JUMP if draw.random() < self.policy[request] else GO
        if role == "forecast":
            known = self.texts[model][said[-3], said[-2]]
            return draw.choice(known) if known else "Who knows."
        if role == "backup":
            return "It goes on. " + re.findall(r"Success\.|Failure\.", request)[-1]
        if role == "evaluate":
            mine, _, others = request.partition("Others:")
            worse = mine.count("Success.") < others.count("Success.")
            return f"Optimality: {'No' if worse else 'Yes'}. It was counted."
        turned = GO if said[-2] == JUMP else JUMP
        return turned if "Optimality: No" in request else said[-2]


def pair_of(episode: Episode, turn: int) -> Pair:
    played = episode.turns[turn]
    return played.observation[-1].content, played.action


def kendall(xs: list[float], ys: list[float]) -> float:
    """Kendall's tau-a: the share of pairs in the same order less the share in the opposite one."""
    signs = [
        (xs[i] - xs[j]) * (ys[i] - ys[j]) for i in range(len(xs)) for j in range(i + 1, len(xs))
    ]
    return sum((s > 0) - (s < 0) for s in signs) / len(signs)
