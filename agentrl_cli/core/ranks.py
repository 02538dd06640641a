"""The interface of the processes that train one run together. `Ranks` is a single process; several
are `ProcessRanks` in training/ranks.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Numbers = TypeVar("Numbers")


class Ranks:
    """Rank `rank` of `size`; rank 0 owns the run's folder. All ranks call the same methods in the
    same order. If weights are `sharded`, no rank holds them whole and a forward pass involves all
    ranks. `device` overrides the configured device unless it is None."""

    rank = 0
    size = 1
    sharded = False
    device: Any = None

    @property
    def is_main(self) -> bool:
        """Whether this rank owns the run and writes to the terminal."""
        return self.rank == 0

    def gather(self, value: Any, at: str) -> list[Any]:
        """Return the JSON values of all ranks, by rank. `at` names the place in the program, which
        must be the same on all ranks."""
        return [value]

    def any(self, claim: bool, at: str) -> bool:
        """Return whether `claim` is true on at least one rank."""
        return any(self.gather(claim, at))

    def share(
        self,
        items: list[Item],
        work: Callable[[list[Item]], list[Result]],
        to_json: Callable[[Result], Any],
        from_json: Callable[[Any], Result],
    ) -> list[Result]:
        """Apply `work` to this rank's slice of the items and return the results of all ranks, in
        the order of the items. An exception on one rank is raised on all."""
        return work(items)

    def sum(self, numbers: Numbers) -> Numbers:
        """Return the sum of a tensor over all ranks."""
        return numbers

    def sum_gradients(self, weights: list[Any]) -> None:
        """Replace each gradient by its sum over all ranks, or None if no rank has one."""

    @contextmanager
    def together(self, *, passes: bool = False) -> Iterator[None]:
        """Raise an exception of one rank on all ranks. Ranks must not communicate inside, except in
        forward passes of a sharded model if `passes` is true; an exception there ends the run."""
        yield
