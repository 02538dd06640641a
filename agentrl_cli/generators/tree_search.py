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

from agentrl_cli.core.errors import require_at_least
from agentrl_cli.core.types import derive_seed
from agentrl_cli.generators.base import Completion, Generator, Sampling

BOUNDARIES = {"blank_line": "\n\n", "line": "\n"}
Values = Callable[[list[list[int]]], list[float]]


@dataclass(eq=False)
class Thoughts:
    """A partial answer, its sampled tokens and its value; `whole` when nothing may follow."""

    ids: list[int]
    logprobs: list[float]
    value: float = 0.0
    whole: bool = False
    finish: str = "stop"


@dataclass
class Tree:
    """What is known of the answer to one prompt: `open` partial answers that were not expanded yet,
    and `leaves`, the whole ones."""

    prompt: list[int]
    seed: int
    open: list[Thoughts] = field(default_factory=lambda: [Thoughts([], [])])
    leaves: list[Thoughts] = field(default_factory=list)

    @property
    def answer(self) -> Completion:
        """The whole answer of highest value."""
        best = max(self.leaves, key=value_of)
        return Completion(best.ids, best.logprobs, best.finish)


@dataclass(kw_only=True)
class TreeSearch(Generator):
    """`order` says what a round expands: the `width` best thoughts of the last round, the others
    being dropped (beam), or the best of all that are open (best_first), until none is better than
    the best whole answer. With one round it is best-of-`expand` on whole answers."""

    order: Literal["beam", "best_first"]
    expand: int
    width: int
    rounds: int
    boundary: Literal["blank_line", "line"]
    inner: Generator = field(init=False, repr=False)
    values: Values = field(init=False, repr=False)
    texts: list[str] = field(init=False, repr=False)
    sampled: int = field(init=False, default=0)  # tokens
    judged: int = field(init=False, default=0)  # partial and whole answers
    ends: tuple[int, ...] = field(init=False, default=(), repr=False)  # ids with the boundary

    def __post_init__(self) -> None:
        require_at_least(1, expand=self.expand, width=self.width, rounds=self.rounds)

    def bind(self, inner: Generator, values: Values, texts: list[str]) -> TreeSearch:
        """Receive what samples, the critic, and the text of every token."""
        self.inner, self.values, self.texts = inner, values, texts
        self.ends = tuple(i for i, text in enumerate(texts) if BOUNDARIES[self.boundary] in text)
        return self

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """The best answer found for each prompt; one, whatever `sampling.n` says."""
        trees = [Tree(prompt, seed) for prompt, seed in zip(prompts, seeds, strict=True)]
        for number in range(1, self.rounds + 1):
            chosen = [(tree, node) for tree in trees for node in self.choose(tree)]
            if not chosen:
                break
            children = self.grow(chosen, sampling, model, to_the_end=number == self.rounds)
            self.judge(children)
            for tree, child in children:
                (tree.leaves if child.whole else tree.open).append(child)
        return [[tree.answer] for tree in trees]

    def choose(self, tree: Tree) -> list[Thoughts]:
        """What to expand next; it is open no longer."""
        ranked = sorted(tree.open, key=value_of, reverse=True)
        if self.order == "beam":
            tree.open = []
            return ranked[: self.width]
        best = max(map(value_of, tree.leaves), default=-math.inf)
        chosen = [node for node in ranked[:1] if node.value > best]
        tree.open = ranked[len(chosen) :]
        return chosen

    def grow(
        self, chosen: list[tuple[Tree, Thoughts]], sampling: Sampling, model: str, to_the_end: bool
    ) -> list[tuple[Tree, Thoughts]]:
        """Different next thoughts behind each partial answer, or whole answers of it."""
        stop_ids = sampling.stop_ids if to_the_end else sampling.stop_ids + self.ends
        most = sampling.max_tokens - min(len(node.ids) for _, node in chosen)
        how = replace(sampling, n=self.expand, max_tokens=most, stop_ids=stop_ids)
        prompts = [tree.prompt + node.ids for tree, node in chosen]
        seeds = [derive_seed(tree.seed, "search", *node.ids) for tree, node in chosen]
        found = []
        for (tree, node), row in zip(
            chosen, self.inner.generate(prompts, seeds, how, model), strict=True
        ):
            self.sampled += sum(len(one.ids) for one in row)
            children = [self._behind(node, one, sampling, to_the_end) for one in row]
            found += [(tree, child) for child in {tuple(c.ids): c for c in children}.values()]
        return found

    def judge(self, children: list[tuple[Tree, Thoughts]]) -> None:
        """Read V behind each, unless there never is a choice."""
        if self.expand == 1:
            return
        self.judged += len(children)
        values = self.values([tree.prompt + child.ids for tree, child in children])
        for (_, child), value in zip(children, values, strict=True):
            child.value = value

    def load(self, model: str, version: int, path: Path | None = None) -> None:
        """The weights are the inner generator's."""
        self.inner.load(model, version, path)

    def _behind(
        self, node: Thoughts, one: Completion, sampling: Sampling, to_the_end: bool
    ) -> Thoughts:
        """The partial answer with what was sampled behind it, up to the thought's end."""
        room = sampling.max_tokens - len(node.ids)
        size = min(room, len(one.ids) if to_the_end else self._thought(one.ids))
        ids = node.ids + one.ids[:size]
        closed = ids[-1] in sampling.stop_ids
        return Thoughts(
            ids, node.logprobs + one.logprobs[:size], whole=closed or size == room,
            finish="stop" if closed else "length",
        )  # fmt: skip

    def _thought(self, ids: list[int]) -> int:
        """How many tokens the first thought has."""
        text = ""
        for size, i in enumerate(ids, 1):
            text += self.texts[i] if i < len(self.texts) else ""  # a padded embedding has more rows
            if BOUNDARIES[self.boundary] in text:
                return size
        return len(ids)


def value_of(node: Thoughts) -> float:
    """V behind a partial answer."""
    return node.value
