"""Scripted episodes of a corpus in place of play: how `algo=sft` makes an embedded model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from agentrl_cli.chat import Chat
from agentrl_cli.envs.base import Env
from agentrl_cli.generators.base import Generator, Sampling
from agentrl_cli.types import Episode, derive_seed


class Corpus(Protocol):
    """Texts as scripted episodes without token ids."""

    def episodes(self, count: int, mixture: dict[str, float], seed: int) -> list[Episode]:
        """`count` texts of the kinds in proportion to `mixture`, drawn with `seed`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Texts in these proportions until step `until`."""

    until: int
    mixture: dict[str, float]


@dataclass(kw_only=True)
class CorpusCollector:
    """Draws `texts_per_step` texts a step, by the stage that the step is in (the last one goes on
    for ever); the sampling numbers serve evaluation only."""

    corpus: Corpus
    stages: list[Stage]
    texts_per_step: int
    max_tokens: int
    temperature: float
    max_context: int
    chat: Chat = field(init=False)
    seed: int = field(init=False)

    def bind(
        self, *, make_env: Callable[[], Env], chat: Chat, generator: Generator, seed: int
    ) -> None:
        """Receive the given objects before the first step."""
        self.chat, self.seed = chat, seed

    @property
    def sampling(self) -> Sampling:
        """How actions are sampled at evaluation."""
        return Sampling(
            max_tokens=self.max_tokens, temperature=self.temperature, stop_ids=self.chat.stop_ids
        )

    def collect(self, step: int, group_size: int) -> list[Episode]:
        """The step's texts with their token ids."""
        stage = next((one for one in self.stages if step < one.until), self.stages[-1])
        seed = derive_seed(self.seed, "corpus", step)
        episodes = self.corpus.episodes(self.texts_per_step, stage.mixture, seed)
        for episode in episodes:
            self.chat.encode_turns(episode.turns)
        return episodes
