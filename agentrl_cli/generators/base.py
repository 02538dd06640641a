"""What a generator is: token ids in, ids and log-probs out, several named weights on one base."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_cli.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample. Temperature 0 is greedy; `stop_ids` end a completion and are part of it."""

    max_tokens: int
    temperature: float
    stop_ids: tuple[int, ...]
    n: int = 1


@dataclass
class Completion:
    """Sampled ids (closing token included), log-probs at temperature 1, and stop or length."""

    ids: list[int]
    logprobs: list[float]
    finish: str


class Generator(ABC):
    """A stateless interface; an engine may recognise that a prompt extends one it has seen."""

    gives_hidden_states = True

    @abstractmethod
    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """`sampling.n` completions for each prompt. Completion j of prompt i draws from a random
        stream of its own, derived from (seeds[i], j), so the result does not depend on the order of
        the batch. Raises GeneratorError where some prompts stay without an answer."""

    @abstractmethod
    def load(self, model: str, version: int, path: Path | None = None) -> None:
        """Take over weights `version` of `model`, from a folder (None: from shared memory)."""

    def hidden(self, prompts: list[list[int]], model: str = "policy") -> Tensor:
        """The last hidden state [prompts, width] at each prompt's last token. Raises UserError
        where the engine gives none."""
        raise UserError("this generator gives no hidden states; use hardware=cpu or hardware=gpu")

    def fitting(self, prompts: list[list[int]], model: str = "policy") -> int:
        """How many of the first prompts are best continued together, call after call; at least 1
        of any. The others wait. By default all."""
        return len(prompts)

    def check_context(self, most: int, model: str = "policy") -> None:
        """Raise UserError where a sequence of `most` tokens is more than the engine can hold."""

    def usage(self) -> dict[str, float]:
        """What a server counted of what it was asked, as metrics; nothing without one."""
        return {}

    def clear(self) -> None:
        """Forget what is cached between calls."""

    def close(self) -> None:
        """Give back what is not this process's, as a server's memory; it may be used again."""

    def metrics(self) -> dict[str, float]:
        """What is to be logged of the engine's work since this was asked last."""
        return {}
