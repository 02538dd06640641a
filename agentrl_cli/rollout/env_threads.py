"""Asks the worlds of many episodes at a time. Everything else about an episode happens in the main
thread, so that neither results nor their order depend on which world answers first."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from agentrl_cli.core.errors import StoppedRun
from agentrl_cli.rollout.time_limit import (
    Outcome,
    Outcomes,
    OwnThread,
    abandoned_threads,
    outcome_of,
)

Result = TypeVar("Result")
EnvCalls = Generator[Callable[[], Any], Outcome, Result]  # yields calls, is sent their outcomes
MOST_ABANDONED = 32  # threads; each keeps its world, and one that computes slows all others


class EnvThreads:
    """Makes the calls of at most `workers` episodes at a time, each episode's one after the other
    and all in the same thread. One that takes more than `timeout` seconds has WorldTimeout as its
    outcome, and its thread is left behind. One worker without a limit needs no thread."""

    def __init__(self, workers: int = 1, timeout: float | None = None) -> None:
        self.workers, self.timeout = workers, timeout
        self._threads: dict[Hashable, OwnThread] = {}  # by episode
        self._at_work: dict[OwnThread, tuple[EnvCalls[None], float]] = {}  # and since when
        self._outcomes: Outcomes = SimpleQueue()

    def __enter__(self) -> EnvThreads:
        return self

    def __exit__(self, *raised: object) -> None:
        """Let every thread end behind its last call."""
        for thread in self._threads.values():
            thread.close()

    def run(self, episodes: Sequence[tuple[Hashable, EnvCalls[None]]]) -> Iterator[None]:
        """Make the calls that each episode yields until it has no more; yields once for each, in
        order. Raises what an episode raises, and StoppedRun where too many threads are left
        behind."""
        waiting, ended = deque(episodes), set[EnvCalls[None]]()
        for _, calls in episodes:
            while calls not in ended:
                if self.workers == 1 and self.timeout is None:
                    _run_here(waiting.popleft()[1], ended)
                elif waiting and len(self._at_work) < self.workers:
                    episode, first = waiting.popleft()
                    self._go_on(self._thread(episode), first, None, ended)
                else:
                    self._go_on(*self._next_outcome(), ended)
            yield

    def forget(self, episode: Hashable) -> None:
        """Let the thread of an episode that has ended end, too."""
        if thread := self._threads.pop(episode, None):
            thread.close()

    def _thread(self, episode: Hashable) -> OwnThread:
        if episode not in self._threads:
            try:
                self._threads[episode] = OwnThread()
            except RuntimeError as error:
                line = f"the worlds of {len(self._threads)} episodes have threads, and {error}"
                raise StoppedRun(f"{line}; lower rollout.episodes_at_once") from None
        return self._threads[episode]

    def _go_on(
        self,
        thread: OwnThread,
        calls: EnvCalls[None],
        outcome: Outcome | None,
        ended: set[EnvCalls[None]],
    ) -> None:
        """Send an episode the outcome of its last call, if any, and submit its next one."""
        call = _next_call(calls, outcome)
        if call is None:
            ended.add(calls)
        else:
            self._at_work[thread] = (calls, time.monotonic())
            thread.submit(call, self._outcomes)

    def _next_outcome(self) -> tuple[OwnThread, EnvCalls[None], Outcome]:
        """Wait for the next outcome of a call, or for the one that has worked for longest to take
        too long."""
        while True:
            thread, (_, since) = next(iter(self._at_work.items()))
            try:
                thread, outcome = self._outcomes.get(timeout=self._left(since))
            except Empty:
                outcome = Outcome(None, thread.abandon(self.timeout or 0), self.timeout or 0)
                refuse_abandoned(str(outcome.error))
            if thread in self._at_work:  # else it was left behind before
                return thread, self._at_work.pop(thread)[0], outcome

    def _left(self, since: float) -> float | None:
        """The seconds that a call still has which began then."""
        return None if self.timeout is None else max(0, since + self.timeout - time.monotonic())


def _run_here(calls: EnvCalls[None], ended: set[EnvCalls[None]]) -> None:
    """Make all calls of an episode in this thread."""
    call = _next_call(calls, None)
    while call is not None:
        call = _next_call(calls, outcome_of(call))
    ended.add(calls)


def _next_call(calls: EnvCalls[None], outcome: Outcome | None) -> Callable[[], Any] | None:
    """What an episode asks behind this outcome; None where it is done."""
    try:
        return next(calls) if outcome is None else calls.send(outcome)
    except StopIteration:
        return None


def refuse_abandoned(last: str) -> None:
    """StoppedRun where more threads are left behind than are safe, with what the last one said."""
    count = abandoned_threads()
    if count > MOST_ABANDONED:
        line = f"{count} threads hang in calls of the environment, the last: {last}"
        raise StoppedRun(f"{line}; mend the environment or give more seconds before you go on")
