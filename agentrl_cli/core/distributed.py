"""The processes that train one run together, as seen by the rest of the package.

`Ranks` is a single process. `ProcessRanks` in training/distributed.py are several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Numbers = TypeVar("Numbers")


class Ranks:
    """Rank `rank` of `size` processes; rank 0 owns the run's folder.

    All ranks call the collective methods in the same order. If weights are `sharded`, no rank holds
    them whole, and a forward pass involves all ranks. `device` is the device of this rank; None: as
    configured.
    """

    rank = 0
    size = 1
    sharded = False
    device: Any = None

    @property
    def is_main(self) -> bool:
        """Return whether this rank owns the run and prints."""
        return self.rank == 0

    def gather(self, value: Any, at: str) -> list[Any]:
        """Return the values of all ranks. `at` names the call: it must be the same on all ranks."""
        return [value]

    def any(self, claim: bool, at: str) -> bool:
        """Return whether the claim is true on some rank."""
        return any(self.gather(claim, at))

    def share(self, items: list[Item], work: Callable[[list[Item]], list[Result]]) -> list[Result]:
        """Return `work(items)`, where every rank works on a slice. Errors are raised on all."""
        return work(items)

    def sum(self, numbers: Numbers) -> Numbers:
        """Replace a tensor, of equal shape on all ranks, by the sum over ranks."""
        return numbers

    def sum_gradients(self, weights: list[Any]) -> None:
        """Replace gradients by the sum over ranks; None if no rank has one."""

    @contextmanager
    def together(self, *, passes: bool = False) -> Iterator[None]:
        """Raise an error inside on all ranks.

        There are no collective calls inside, except with `passes` forward passes of a sharded
        model; an error in these ends the run.
        """
        yield
