"""A generator that answers with a Python function of the prompt's text, for tests and experts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agentrl_cli.generators.base import Completion, Generator, Sampling


class ScriptedGenerator(Generator):
    """Answers with `answer(text)`; `read` decodes a prompt and `write` encodes an answer."""

    def __init__(
        self,
        answer: Callable[[str], str],
        *,
        read: Callable[[list[int]], str],
        write: Callable[[str], list[int]],
    ) -> None:
        self.answer, self.read, self.write = answer, read, write

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """Return the same answer `sampling.n` times, cut at `max_tokens`, with log-probs 0."""
        return [[self._complete(prompt, sampling) for _ in range(sampling.n)] for prompt in prompts]

    def load(self, model: str, version: int, path: Path | None = None) -> None:
        """Do nothing: a script has no weights."""

    def _complete(self, prompt: list[int], sampling: Sampling) -> Completion:
        ids = self.write(self.answer(self.read(prompt)))
        finish = "stop" if len(ids) <= sampling.max_tokens else "length"
        ids = ids[: sampling.max_tokens]
        return Completion(ids, [0.0] * len(ids), finish)
