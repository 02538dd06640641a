"""Scripted episodes of a corpus in place of play: how `algo=sft` makes an embedded model."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_cli.core.types import Episode, Turn, derive_seed
from agentrl_cli.corpora.base import Corpus
from agentrl_cli.rollout.collector import Collector


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Texts in these proportions until step `until`.

    A turn's thought, all before its last line, weighs `thought_weight` times as much as an action:
    its few telling tokens drown in the others' noise, and weighing every thought alike leaves the
    distribution of actions what it was. What a role writes weighs `role_weight`.
    """

    until: int
    mixture: dict[str, float]
    thought_weight: float
    role_weight: float


@dataclass(kw_only=True)
class CorpusCollector(Collector):
    """Draws `texts_per_step` texts a step, by the stage that the step is in (the last one goes on
    for ever). The sampling numbers serve evaluation only."""

    corpus: Corpus
    stages: list[Stage]
    texts_per_step: int

    def count(self, group_size: int) -> int:
        """Each text stands alone."""
        return self.texts_per_step

    def collect(self, step: int, group_size: int) -> list[Episode]:
        """The step's texts with their token ids."""
        stage = next((stage for stage in self.stages if step < stage.until), self.stages[-1])
        seed = derive_seed(self.seed, "corpus", step)
        episodes = self.corpus.episodes(self.texts_per_step, stage.mixture, seed)
        for episode in episodes:
            self.chat.encode_turns(episode.turns)
            for turn in episode.turns:
                turn.info["weight"] = self._weights(turn, stage)
        return episodes

    def _weights(self, turn: Turn, stage: Stage) -> list[float]:
        """The weight of each id of the action."""
        thought, newline, _ = turn.action.rpartition("\n")
        thinking = len(self.chat.encode_action(thought + newline)) - 1 if newline else 0
        weights = [stage.thought_weight] * thinking + [1.0] * (len(turn.action_ids) - thinking)
        turn_weight = turn.info.get("weight", stage.role_weight if turn.info.get("role") else 1.0)
        return [weight * turn_weight for weight in weights]
