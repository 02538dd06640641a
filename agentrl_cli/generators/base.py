"""The interface of generators: token ids in, token ids and log-probs out, several named weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from agentrl_cli.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_cli.core.activity import Activity


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample. Temperature 0 is greedy; `stop_ids` end a completion and belong to it."""

    max_tokens: int
    temperature: float
    stop_ids: tuple[int, ...]
    n: int = 1


@dataclass
class Completion:
    """Sampled ids with the stop token, log-probs at temperature 1, and `stop` or `length`."""

    ids: list[int]
    logprobs: list[float]
    finish_reason: str


class Generator(ABC):
    """Samples completions. Calls are stateless, but an engine may cache prefixes of prompts."""

    gives_hidden_states = True
    activity: Activity | None = None  # whose `answered` the engine may set during a call

    @abstractmethod
    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """Return `sampling.n` completions for each prompt.

        Completion j of prompt i draws from the random stream of (seeds[i], j), so the result does
        not depend on the order of the batch. Raises GeneratorError if some prompts get no answer.
        """

    def mark_changed(self, model: str) -> None:
        """Use nothing any more that was computed from the former weights of `model`."""

    def hidden(self, prompts: list[list[int]], model: str = "policy") -> Tensor:
        """Return the last hidden state [prompts, width] at each prompt's last token.

        Raises UserError if the engine gives none.
        """
        raise UserError(
            "this generator gives no hidden states; use hardware=cpu or hardware=gpu",
            code="no-hidden-states",
        )

    def fitting(self, prompts: list[list[int]], model: str = "policy") -> int:
        """Return how many of the first prompts to continue together; at least 1, default all."""
        return len(prompts)

    def check_context(self, most: int, model: str = "policy") -> None:
        """Raise UserError if the engine cannot hold a sequence of `most` tokens."""

    def clear(self) -> None:
        """Drop everything that is cached between calls."""

    def close(self) -> None:
        """Release resources outside of this process; the generator may be used again."""

    def metrics(self) -> dict[str, float]:
        """Return metrics of the engine since the last call."""
        return {}


@dataclass(kw_only=True)
class HFGeneratorConfig:
    """Settings of the generator in hf.py, in a module without torch."""

    max_batch: Annotated[int, Field(ge=1, description="Sequences that are decoded together.")]
    cache_tokens: Annotated[
        int,
        Field(ge=0, description="Tokens of each model with keys and values kept between turns."),
    ]
    cache_mib: Annotated[
        float | None,
        Field(gt=0, description="MiB for keys and values of all models, one half for the cache and "
              "one for the copy of a batch. null: half of the free GPU memory once models are "
              "loaded, no limit on a CPU."),
    ] = None  # fmt: skip
