"""Scripted episodes of a corpus in place of play: how `algo=sft` makes an embedded model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from agentrl_cli.collect import Collector
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
class CorpusCollector(Collector):
    """Draws `texts_per_step` texts a step, by the stage that the step is in (the last one goes on
    for ever); the sampling numbers serve evaluation only."""

    corpus: Corpus
    stages: list[Stage]
    texts_per_step: int

    def count(self, group_size: int) -> int:
        """Each text stands alone."""
        return self.texts_per_step

    def collect(self, step: int, group_size: int) -> list[Episode]:
        """The step's texts with their token ids."""
        stage = next((one for one in self.stages if step < one.until), self.stages[-1])
        seed = derive_seed(self.seed, "corpus", step)
        episodes = self.corpus.episodes(self.texts_per_step, stage.mixture, seed)
        for episode in episodes:
            self.chat.encode_turns(episode.turns)
        return episodes
