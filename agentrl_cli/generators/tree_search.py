"""Tree search over the steps of an answer, guided by the values of Self-AC's critic.

This is Tree of Thoughts (Yao et al. 2023, arXiv 2305.10601) with V as the judge. Each round expands
the most promising partial answers by a few sampled steps and evaluates V after each. The result is
the complete answer of highest value. It is a generator, so an episode is played as usual and the
environment gets no additional calls. Prefixes stay cached in the generator that it samples from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import derive_seed
from agentrl_cli.generators.base import Completion, Generator, Sampling

BOUNDARIES = {"blank_line": "\n\n", "line": "\n"}
StateValues = Callable[[list[list[int]]], list[float]]


@dataclass(eq=False)
class Node:
    """A partial or complete answer to a tree's prompt, with V after it."""

    tree: Tree
    ids: list[int]
    logprobs: list[float]
    value: float = 0.0
    complete: bool = False
    finish_reason: str = "stop"

    @property
    def state_ids(self) -> list[int]:
        return self.tree.prompt + self.ids


class Tree:
    """The answers to one prompt: `open` nodes that are not expanded yet, and complete `leaves`."""

    def __init__(self, prompt: list[int], seed: int) -> None:
        self.prompt, self.seed = prompt, seed
        self.open = [Node(self, [], [])]
        self.leaves: list[Node] = []


@dataclass(kw_only=True)
class TreeSearch(Generator):
    """Searches with `rounds` rounds of `expand` samples per expanded node.

    `order=beam` expands the `width` best nodes of the last round and drops the others.
    `order=best_first` expands the best open node until none is better than the best complete
    answer. With one round it is best-of-`expand` on complete answers.
    """

    order: Annotated[
        Literal["beam", "best_first"],
        Field(description="beam: expand the best nodes of the last round. best_first: the best "
              "open node."),
    ]  # fmt: skip
    expand: Annotated[int, Field(ge=1, description="Samples per expanded node.")]
    width: Annotated[int, Field(ge=1, description="Nodes that a beam keeps per round.")]
    rounds: Annotated[
        int, Field(ge=1, description="Rounds; the last one samples answers to their end.")
    ]
    boundary: Annotated[
        Literal["blank_line", "line"], Field(description="What separates the steps of an answer.")
    ]
    inner: Generator = field(init=False, repr=False)
    state_values: StateValues = field(init=False, repr=False)
    token_texts: list[str] = field(init=False, repr=False)  # by id
    boundary_ids: tuple[int, ...] = field(init=False, default=(), repr=False)
    sampled_tokens: int = field(init=False, default=0)
    judged_answers: int = field(init=False, default=0)  # partial and complete

    def bind(self, inner: Generator, state_values: StateValues, texts: list[str]) -> TreeSearch:
        """Set generator, critic and token texts. UserError if there are no hidden states."""
        if not inner.gives_hidden_states:
            line = "the search evaluates a critic on hidden states, which a server does not give"
            remedy = "evaluate with hardware=cpu or hardware=gpu"
            raise UserError(f"{line}; {remedy}", code="no-hidden-states")
        self.inner, self.state_values, self.token_texts = inner, state_values, texts
        end = BOUNDARIES[self.boundary]
        self.boundary_ids = tuple(i for i, text in enumerate(texts) if end in text)
        return self

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """Return the best answer for each prompt; one, whatever `sampling.n` is."""
        trees = [Tree(prompt, seed) for prompt, seed in zip(prompts, seeds, strict=True)]
        for number in range(1, self.rounds + 1):
            parents = [node for tree in trees for node in self._choose(tree)]
            if not parents:
                break
            children = self._expand(parents, sampling, model, to_the_end=number == self.rounds)
            if self.expand > 1:  # otherwise there is no choice
                self.judged_answers += len(children)
                values = self.state_values([child.state_ids for child in children])
                for child, value in zip(children, values, strict=True):
                    child.value = value
            for child in children:
                (child.tree.leaves if child.complete else child.tree.open).append(child)
        best = [max(tree.leaves, key=lambda leaf: leaf.value) for tree in trees]
        return [[Completion(leaf.ids, leaf.logprobs, leaf.finish_reason)] for leaf in best]

    def fitting(self, prompts: list[list[int]], model: str = "policy") -> int:
        return self.inner.fitting(prompts, model)

    def _choose(self, tree: Tree) -> list[Node]:
        ranked = sorted(tree.open, key=lambda node: node.value, reverse=True)
        if self.order == "beam":
            tree.open = []
            return ranked[: self.width]
        best = max((leaf.value for leaf in tree.leaves), default=-math.inf)
        chosen = [node for node in ranked[:1] if node.value > best]
        tree.open = ranked[len(chosen) :]
        return chosen

    def _expand(
        self, parents: list[Node], sampling: Sampling, model: str, *, to_the_end: bool
    ) -> list[Node]:
        """Sample different next steps after each node, or complete answers."""
        stop_ids = sampling.stop_ids if to_the_end else sampling.stop_ids + self.boundary_ids
        most = sampling.max_tokens - min(len(parent.ids) for parent in parents)
        step_sampling = replace(sampling, n=self.expand, max_tokens=most, stop_ids=stop_ids)
        prompts = [parent.state_ids for parent in parents]
        seeds = [derive_seed(parent.tree.seed, "search", *parent.ids) for parent in parents]
        rows = self.inner.generate(prompts, seeds, step_sampling, model)
        children: list[Node] = []
        for parent, row in zip(parents, rows, strict=True):
            self.sampled_tokens += sum(len(completion.ids) for completion in row)
            room, found = sampling.max_tokens - len(parent.ids), dict[tuple[int, ...], Node]()
            for sampled in row:
                length = len(sampled.ids) if to_the_end else self._step_length(sampled.ids)
                size = min(room, length)
                ids, logprobs = sampled.ids[:size], sampled.logprobs[:size]
                closed = ids[-1] in sampling.stop_ids
                child = Node(
                    parent.tree, parent.ids + ids, parent.logprobs + logprobs,
                    complete=closed or size == room, finish_reason="stop" if closed else "length",
                )  # fmt: skip
                found[tuple(child.ids)] = child
            children += found.values()
        return children

    def _step_length(self, ids: list[int]) -> int:
        """Return how many tokens the first step has."""
        text = ""
        for length, i in enumerate(ids, 1):
            if i < len(self.token_texts):  # a padded embedding has more rows
                text += self.token_texts[i]
            if BOUNDARIES[self.boundary] in text:
                return length
        return len(ids)
