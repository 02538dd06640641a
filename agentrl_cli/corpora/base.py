"""What every corpus is: scripted episodes of several kinds, drawn afresh for every step."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

from agentrl_cli.core.types import Episode, derive_seed


class Corpus(ABC):
    """Writes one episode of a kind; `episodes` draws the kinds."""

    def episodes(self, count: int, mixture: dict[str, float], seed: int) -> list[Episode]:
        """`count` scripted episodes without token ids, of the kinds in proportion to `mixture`."""
        rng = random.Random(seed)
        kinds = rng.choices(list(mixture), list(mixture.values()), k=count)
        return [self._episode(kind, derive_seed(seed, i)) for i, kind in enumerate(kinds)]

    @abstractmethod
    def _episode(self, kind: str, seed: int) -> Episode:
        """An episode of this kind."""
