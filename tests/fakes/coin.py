"""A world won by an even number of letters, and a generator that plays it and knows every role."""

from __future__ import annotations

import random
from dataclasses import dataclass

from agentrl_cli.core.types import Message, Step, Task
from agentrl_cli.envs.base import Env, require_split
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.rollout.chat_template import Chat

ROLE_ANSWERS = {  # what an instruction of conf/algo/nlac.yaml ends with, and an answer in form
    "Forecast this turn.": ("It goes on. Success.", "It goes on. Failure."),
    "Write one forecast of this turn.": ("It went on. Success.", "It went on. Failure."),
    "Judge this turn.": ("Optimality: Yes. It wins.", "Optimality: No. It loses."),
}
MAX_HEADER_LENGTH = (
    45  # letters that a template puts between an instruction and its answer, at most
)
ACTIONS = ("Is it a dog?", "Is it an owl?", "Is it alive?", "Can it fly?")


@dataclass(kw_only=True)
class CoinEnv(Env):
    """Ends after `turns` actions; a success where the last has an even number of letters."""

    turns: int

    def system(self) -> str:
        return "Say something."

    def tasks(self, split: str) -> list[Task]:
        require_split(split)
        return [Task(f"{split}-{i}", split, {"name": f"{split}-{i}"}) for i in range(4)]

    def reset(self, task: Task, seed: int) -> list[Message]:
        self.played = 0
        return [Message("user", f"This is {task.id}.")]

    def step(self, action: str) -> Step:
        if self.played >= self.turns:
            raise RuntimeError("the episode is over")
        self.played += 1
        done = self.played == self.turns
        success = done and len(action) % 2 == 0
        info = {"success": success} if done else {"repeated": self.played > 1}
        return Step([Message("user", "Go on.")], float(success), done, False, info)


@dataclass(kw_only=True)
class RandomRoleGenerator(Generator):
    """Answers every prompt in the form that its last message asks for, drawn by the seed."""

    models: ModelSet

    def __post_init__(self) -> None:
        self.chat = Chat(self.models.tokenizer)

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        return [
            [self._complete(prompt, random.Random(f"{seed} {j}")) for j in range(sampling.n)]
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]

    def _complete(self, prompt: list[int], draw: random.Random) -> Completion:
        text = self.chat.text_of(prompt[-200:])
        asked = [
            answers
            for end, answers in ROLE_ANSWERS.items()
            if end in text[-len(end) - MAX_HEADER_LENGTH :]
        ]
        ids = self.chat.encode_action(draw.choice(asked[0] if asked else ACTIONS))
        return Completion(ids, [-1.0] * len(ids), "stop")
