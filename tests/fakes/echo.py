"""A world that says how many letters it heard, and what is needed to play it: for tests."""

from dataclasses import dataclass, field

import torch

from agentrl_cli.core.errors import EpisodeError
from agentrl_cli.core.types import Message, Step, Task
from agentrl_cli.envs.base import Env
from agentrl_cli.generators.base import Completion, Generator
from agentrl_cli.generators.hf import HFGenerator
from agentrl_cli.rollout.chat_template import Chat
from tests.builders.tiny_models import tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
CHAT = Chat(TOKENIZER)


@dataclass(kw_only=True)
class EchoEnv(Env):
    """Says how many letters it heard and its mood, which the seed decides; ends after `turns`."""

    turns: int = 3
    limit: int = 9
    fails_at: int = -1
    error: type[Exception] = EpisodeError
    closed: list[str] = field(default_factory=list)

    def system(self) -> str:
        return "Say something."

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{i}", split, {"i": i}) for i in range(5)]

    def reset(self, task: Task, seed: int) -> list[Message]:
        self.played, self.task, self.mood = 0, task, seed % 7
        self._fail(0)
        return [Message("user", f"Task {task.data['i']}, mood {self.mood}.")]

    def step(self, action: str) -> Step:
        self.played += 1
        self._fail(self.played)
        done = self.played == self.turns or "stop" in action
        info = {"success": done and "stop" in action}
        heard = [Message("user", f"Heard {len(action)}, mood {self.mood}.")]
        return Step(heard, float(done), done, self.played == self.limit, info)

    def close(self) -> None:
        self.closed.append(self.task.id)

    def _fail(self, at: int) -> None:
        if at == self.fails_at:
            raise self.error(f"broken at {at}")


class TinyWeights:
    device = torch.device("cpu")
    model = tiny_model(TOKENIZER)

    def module(self, name):
        return self.model


def random_sampler() -> HFGenerator:
    torch.set_num_threads(1)
    return HFGenerator(TinyWeights(), max_batch=64, cache_tokens=10_000)


class ScriptedGenerator(Generator):
    """Answers with a function of the prompt's text."""

    def __init__(self, answer):
        self.answer = answer

    def generate(self, prompts, seeds, sampling, model="policy"):
        return [[self._complete(prompt, sampling)] * sampling.n for prompt in prompts]

    def _complete(self, prompt, sampling):
        ids = CHAT.encode_action(self.answer(CHAT.text_of(prompt)))
        finish = "stop" if len(ids) <= sampling.max_tokens else "length"
        ids = ids[: sampling.max_tokens]
        return Completion(ids, [0.0] * len(ids), finish)


script = ScriptedGenerator
