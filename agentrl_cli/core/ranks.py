"""The processes that train one run together, as the rest of the package sees them: `Ranks` is one
process, which has nobody to ask. Several are `ProcessRanks` in training/ranks.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Numbers = TypeVar("Numbers")


class Ranks:
    """Rank `rank` of `size`, of which rank 0 owns the run's folder. What is asked of all is called
    by all, in the same order. Where weights are `sharded` no rank holds them whole, and a pass
    through a model takes all ranks. `device` is where this one computes; None: as configured."""

    rank = 0
    size = 1
    sharded = False
    device: Any = None

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that owns the run and speaks to the user."""
        return self.rank == 0

    def gather(self, value: Any, at: str) -> list[Any]:
        """The JSON values of all ranks, by rank. `at` says where this one is: the others must be
        there, too."""
        return [value]

    def any(self, claim: bool, at: str) -> bool:
        """Whether one of the ranks says so."""
        return any(self.gather(claim, at))

    def share(
        self,
        items: list[Item],
        work: Callable[[list[Item]], list[Result]],
        to_json: Callable[[Result], Any],
        from_json: Callable[[Any], Result],
    ) -> list[Result]:
        """`work` gives a result for each item: every rank does that of its own slice and gets the
        results of all, in the order of the items. What is raised on one is raised on all."""
        return work(items)

    def sum(self, numbers: Numbers) -> Numbers:
        """A tensor of the same shape on each rank becomes the sum over all."""
        return numbers

    def sum_gradients(self, weights: list[Any]) -> None:
        """Every weight's gradient becomes the sum over all ranks; None where no rank has one."""

    @contextmanager
    def together(self, *, passes: bool = False) -> Iterator[None]:
        """What is raised inside on one rank is raised on all. Inside no rank asks the others, but
        in `passes` through a sharded model: what is raised there ends the run."""
        yield
