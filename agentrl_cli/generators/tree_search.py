"""ToT-SelfAC: tree search over the thoughts of an answer, guided by the critic's values.

A tree of thoughts (Yao et al. 2023, arXiv 2305.10601) whose judge is V: each round expands the most
promising partial answers by a few sampled thoughts and reads V behind each; the answer is the whole
one of highest value. It is a generator, so an episode is played as ever and the world is asked
nothing that a plain player would not ask. Prefixes stay cached in the generator it samples from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from agentrl_cli.core.errors import UserError, require_at_least
from agentrl_cli.core.types import derive_seed
from agentrl_cli.generators.base import Completion, Generator, Sampling

BOUNDARIES = {"blank_line": "\n\n", "line": "\n"}
StateValues = Callable[[list[list[int]]], list[float]]


@dataclass(eq=False)
class PartialAnswer:
    """The thoughts of an answer to a tree's prompt so far: their sampled tokens, and V behind them;
    `complete` when nothing may follow."""

    tree: Tree
    ids: list[int]
    logprobs: list[float]
    value: float = 0.0
    complete: bool = False
    finish: str = "stop"

    @property
    def state_ids(self) -> list[int]:
        """The prompt and the answer so far."""
        return self.tree.prompt + self.ids


class Tree:
    """What is known of the answer to one prompt: `open` partial answers that were not expanded yet,
    and `leaves`, the complete ones."""

    def __init__(self, prompt: list[int], seed: int) -> None:
        self.prompt, self.seed = prompt, seed
        self.open = [PartialAnswer(self, [], [])]
        self.leaves: list[PartialAnswer] = []

    def add(self, answer: PartialAnswer) -> None:
        """Take in a new answer."""
        (self.leaves if answer.complete else self.open).append(answer)

    @property
    def best(self) -> Completion:
        """The complete answer of highest value."""
        leaf = max(self.leaves, key=lambda leaf: leaf.value)
        return Completion(leaf.ids, leaf.logprobs, leaf.finish)


@dataclass(kw_only=True)
class TreeSearch(Generator):
    """`order` says what a round expands: the `width` best thoughts of the last round, the others
    being dropped (beam), or the best of all that are open (best_first), until none is better than
    the best complete answer. With one round it is best-of-`expand` on complete answers."""

    order: Literal["beam", "best_first"]
    expand: int
    width: int
    rounds: int
    boundary: Literal["blank_line", "line"]
    inner: Generator = field(init=False, repr=False)
    state_values: StateValues = field(init=False, repr=False)
    token_texts: list[str] = field(init=False, repr=False)  # by id
    boundary_ids: tuple[int, ...] = field(init=False, default=(), repr=False)
    sampled_tokens: int = field(init=False, default=0)
    judged_answers: int = field(init=False, default=0)  # partial and complete ones

    def __post_init__(self) -> None:
        require_at_least(1, expand=self.expand, width=self.width, rounds=self.rounds)

    def bind(self, inner: Generator, state_values: StateValues, texts: list[str]) -> TreeSearch:
        """Receive what samples, the critic, and the text of every token. Raises UserError where
        that engine gives no hidden states, which the critic reads."""
        if not inner.gives_hidden_states:
            line = "the search reads a critic's values from hidden states, which a server does not"
            raise UserError(f"{line} give; evaluate with hardware=cpu or hardware=gpu")
        self.inner, self.state_values, self.token_texts = inner, state_values, texts
        end = BOUNDARIES[self.boundary]
        self.boundary_ids = tuple(i for i, text in enumerate(texts) if end in text)
        return self

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """The best answer found for each prompt; one, whatever `sampling.n` says."""
        trees = [Tree(prompt, seed) for prompt, seed in zip(prompts, seeds, strict=True)]
        for number in range(1, self.rounds + 1):
            parents = [answer for tree in trees for answer in self.choose(tree)]
            if not parents:
                break
            children = self.grow(parents, sampling, model, to_the_end=number == self.rounds)
            self.judge(children)
            for child in children:
                child.tree.add(child)
        return [[tree.best] for tree in trees]

    def fitting(self, prompts: list[list[int]], model: str = "policy") -> int:
        """As many as the inner generator says."""
        return self.inner.fitting(prompts, model)

    def choose(self, tree: Tree) -> list[PartialAnswer]:
        """What to expand next; it is open no longer."""
        ranked = sorted(tree.open, key=lambda answer: answer.value, reverse=True)
        if self.order == "beam":
            tree.open = []
            return ranked[: self.width]
        best = max((leaf.value for leaf in tree.leaves), default=-math.inf)
        chosen = [answer for answer in ranked[:1] if answer.value > best]
        tree.open = ranked[len(chosen) :]
        return chosen

    def grow(
        self, parents: list[PartialAnswer], sampling: Sampling, model: str, *, to_the_end: bool
    ) -> list[PartialAnswer]:
        """Different next thoughts behind each partial answer, or complete answers of it."""
        stop_ids = sampling.stop_ids if to_the_end else sampling.stop_ids + self.boundary_ids
        most = sampling.max_tokens - min(len(parent.ids) for parent in parents)
        thought_sampling = replace(sampling, n=self.expand, max_tokens=most, stop_ids=stop_ids)
        prompts = [parent.state_ids for parent in parents]
        seeds = [derive_seed(parent.tree.seed, "search", *parent.ids) for parent in parents]
        rows = self.inner.generate(prompts, seeds, thought_sampling, model)
        children: list[PartialAnswer] = []
        for parent, row in zip(parents, rows, strict=True):
            self.sampled_tokens += sum(len(completion.ids) for completion in row)
            grown = [self._extended(parent, c, sampling, to_the_end=to_the_end) for c in row]
            children += {tuple(child.ids): child for child in grown}.values()
        return children

    def judge(self, children: list[PartialAnswer]) -> None:
        """Read V behind each, unless there never is a choice."""
        if self.expand == 1:
            return
        self.judged_answers += len(children)
        values = self.state_values([child.state_ids for child in children])
        for child, value in zip(children, values, strict=True):
            child.value = value

    def load(self, model: str, version: int, path: Path | None = None) -> None:
        """The weights are the inner generator's."""
        self.inner.load(model, version, path)

    def _extended(
        self, parent: PartialAnswer, sampled: Completion, sampling: Sampling, *, to_the_end: bool
    ) -> PartialAnswer:
        """The partial answer with what was sampled behind it, up to the thought's end."""
        room = sampling.max_tokens - len(parent.ids)
        size = min(room, len(sampled.ids) if to_the_end else self._thought_length(sampled.ids))
        ids = parent.ids + sampled.ids[:size]
        closed = ids[-1] in sampling.stop_ids
        return PartialAnswer(
            parent.tree, ids, parent.logprobs + sampled.logprobs[:size],
            complete=closed or size == room, finish="stop" if closed else "length",
        )  # fmt: skip

    def _thought_length(self, ids: list[int]) -> int:
        """How many tokens the first thought has."""
        text = ""
        for length, i in enumerate(ids, 1):
            if i < len(self.token_texts):  # a padded embedding has more rows
                text += self.token_texts[i]
            if BOUNDARIES[self.boundary] in text:
                return length
        return len(ids)
