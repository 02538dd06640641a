"""Scripted texts of a corpus instead of episodes, for `algo=pretraining`."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from functools import partial

from agentrl_cli.core.types import Episode, Message, Task, Turn, derive_seed
from agentrl_cli.envs.base import train_tasks
from agentrl_cli.rollout.collector import Collector
from agentrl_cli.rollout.play import EpisodeStart
from tools.tiny_models.base import Branch, Corpus, Text


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The proportions of texts until step `until`. In play, each role writes about a turn
    `roles[role]` times on average. The model also plays `own_play` episodes per step, to learn how
    they end.

    The tokens of a turn's thought, all before its last line, have weight `thought_weight`; the
    output of a role has weight `role_weight`.
    """

    until: int
    mixture: dict[str, float]
    roles: dict[str, float]
    own_play: int
    thought_weight: float
    role_weight: float


@dataclass(kw_only=True)
class CorpusCollector(Collector):
    """Draws `texts_per_step` texts per step by the stage of the step; the last stage does not end.
    The sampling settings are those of the model's own play and of evaluations."""

    corpus: Corpus
    stages: list[Stage]
    texts_per_step: int

    def count(self, group_size: int) -> int:
        return self.texts_per_step

    def collect(self, step: int, group_size: int) -> list[Episode]:
        """Return the texts of a step with token ids; branches are in `info["branches"]` of their
        turn."""
        stage = next((stage for stage in self.stages if step < stage.until), self.stages[-1])
        seed = derive_seed(self.seed, "corpus", step)
        texts = self.corpus.texts(self.texts_per_step, stage.mixture, stage.roles, seed)
        texts += [self.corpus.own_play(e) for e in self._play(stage.own_play, seed, step)]
        return [self._encode(text, f"{step}-{i}", stage) for i, text in enumerate(texts)]

    def _play(self, count: int, seed: int, step: int) -> list[Episode]:
        """Play `count` episodes of random train tasks; return those that ended."""
        rng = random.Random(derive_seed(seed, "own play"))
        env = self.corpus.other_world(rng)
        tasks = rng.choices(train_tasks(env), k=count)
        starts = [
            EpisodeStart(task, "own", derive_seed(seed, "own play", i), f"own-{step}-{i}")
            for i, task in enumerate(tasks)
        ]
        episodes = self.play(starts, self.sampling, make_env=partial(copy.copy, env))
        return [episode for episode in episodes if episode.stop == "done"]

    def _encode(self, text: Text, name: str, stage: Stage) -> Episode:
        self.chat.encode_turns(text.turns)
        for turn in text.turns:
            turn.info |= {"weight": self._weights(turn, stage), "branches": []}
        for branch in text.branches:
            turn = text.turns[branch.turn]
            turn.info["branches"].append(self._encode_branch(turn, branch, stage.role_weight))
        task = Task(f"corpus-{text.kind}", "train", {"kind": text.kind})
        return Episode(f"{text.kind}-{name}", task, text.kind, 0, text.turns)

    def _weights(self, turn: Turn, stage: Stage) -> list[float]:
        thought, newline, _ = turn.action.rstrip("\n").rpartition("\n")
        thinking = len(self.chat.encode_action(thought + newline)) - 1 if newline else 0
        acting = len(turn.action_ids) - thinking
        weights = [stage.thought_weight] * thinking
        weights += [turn.info.get("action_weight", 1.0)] * acting
        other = stage.role_weight if turn.info.get("role") else 1.0
        return [weight * turn.info.get("weight", other) for weight in weights]

    def _encode_branch(self, turn: Turn, branch: Branch, weight: float) -> dict[str, object]:
        """Return the place of a branch (before or after the action), the ids that are read, the ids
        that are trained, and their weight."""
        action_ids, read = turn.action_ids, []
        if branch.action is not None:
            goes_on = bool(self.turn_delimiter) and branch.action.endswith(self.turn_delimiter)
            read = action_ids = self.chat.encode_action(branch.action)[: -1 if goes_on else None]
        prompt = self.chat.extend([Message("user", branch.prompt)], action_ids[-1])
        return {
            "place": "behind" if branch.action is None else "before",
            "prompt_ids": read + prompt,
            "answer_ids": self.chat.encode_action(branch.answer),
            "weight": weight,
        }

    @property
    def turn_delimiter(self) -> str:
        return self.make_env().turn_delimiter
