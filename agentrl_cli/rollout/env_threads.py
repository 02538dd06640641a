"""Calls in threads with a time limit: environments block, and cannot be interrupted.

`concurrent.futures` has no thread that may hang: its executors wait for theirs when Python exits.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from agentrl_cli.core.errors import EnvTimeout, RunAborted

ABANDONED = "agentrl: abandoned"  # the name of a thread that hangs
MAX_ABANDONED = 32  # threads: each keeps its environment, and a busy one slows all others
Result = TypeVar("Result")


@dataclass(frozen=True)
class Outcome:
    """The value or the error of a call, and its seconds."""

    value: Any
    error: BaseException | None
    seconds: float


EnvCalls = Generator[Callable[[], Any], Outcome, Result]  # yields calls, receives their outcomes


def outcome_of(call: Callable[[], Any]) -> Outcome:
    """Make the call in this thread and return its outcome; never raises."""
    began, value, error = time.perf_counter(), None, None
    try:
        value = call()
    except BaseException as raised:
        error = raised
    return Outcome(value, error, time.perf_counter() - began)


class CallThread:
    """A daemon thread that makes calls one after another. `future.result()` is an Outcome."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Outcome]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Any]) -> Future[Outcome]:
        """Make the call after those submitted before."""
        future = Future[Outcome]()
        self._calls.put((call, future))
        return future

    def abandon(self, seconds: float) -> EnvTimeout:
        """Let the thread hang in its call and end after it. Returns the error, with the place."""
        self._thread.name = ABANDONED
        self.close()
        frame = sys._current_frames().get(self._thread.ident or 0)
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "its thread is gone"
        line = f"no answer within {seconds:g} s ({place})"
        return EnvTimeout(f"{line}; raise rollout.env_timeout if it needs longer")

    def close(self) -> None:
        """End the thread after its last call."""
        self._calls.put(None)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            future.set_result(outcome_of(call))


def abandoned_threads() -> int:
    """Return how many threads of this process still hang in a call that timed out."""
    return sum(thread.name == ABANDONED for thread in threading.enumerate())


class EnvThreads:
    """Makes the calls of at most `workers` episodes at a time, those of one episode in one thread.
    A call of more than `timeout` seconds ends with EnvTimeout, and its thread is abandoned. The
    episodes themselves run in the caller's thread, so results do not depend on timing."""

    def __init__(self, workers: int = 1, timeout: float | None = None) -> None:
        self.workers, self.timeout = workers, timeout
        self.uses_threads = workers > 1 or timeout is not None
        self._threads: dict[Hashable, CallThread] = {}  # by episode

    def __enter__(self) -> EnvThreads:
        return self

    def __exit__(self, *raised: object) -> None:
        for episode in list(self._threads):
            self.forget(episode)

    def forget(self, episode: Hashable) -> None:
        """End the thread of an episode that is over."""
        if thread := self._threads.pop(episode, None):
            thread.close()

    def run(self, episodes: Sequence[tuple[Hashable, EnvCalls[None]]]) -> Iterator[None]:
        """Make the calls that each episode yields. Yields when the next episode, in order, has no
        more. Raises what an episode raises, and RunAborted if too many threads hang."""
        waiting, ended = deque(episodes), set[EnvCalls[None]]()
        pending: dict[Future[Outcome], tuple[Hashable, EnvCalls[None], float]] = {}
        done = SimpleQueue[Future[Outcome]]()

        def resume(episode: Hashable, calls: EnvCalls[None], outcome: Outcome | None) -> None:
            try:
                call = next(calls) if outcome is None else calls.send(outcome)
                while not self.uses_threads:
                    call = calls.send(outcome_of(call))
            except StopIteration:
                ended.add(calls)
                return
            future = self._thread(episode).submit(call)
            pending[future] = episode, calls, time.monotonic()
            future.add_done_callback(done.put)

        for _, its_calls in episodes:
            while its_calls not in ended:
                if waiting and len(pending) < self.workers:
                    resume(*waiting.popleft(), None)
                    continue
                oldest, (episode, _, since) = next(iter(pending.items()))
                left = self.timeout and max(0, since + self.timeout - time.monotonic())
                try:
                    future = done.get(timeout=left)
                    outcome = future.result()
                except Empty:
                    future, limit = oldest, self.timeout or 0.0
                    outcome = Outcome(None, self._threads[episode].abandon(limit), limit)
                    check_abandoned(str(outcome.error))
                if future in pending:  # else it was abandoned before
                    resume(*pending.pop(future)[:2], outcome)
            yield

    def _thread(self, episode: Hashable) -> CallThread:
        if episode not in self._threads:
            try:
                self._threads[episode] = CallThread()
            except RuntimeError as error:
                line = f"cannot start thread {len(self._threads) + 1} for an environment ({error})"
                raise RunAborted(f"{line}; lower rollout.max_concurrent_episodes") from None
        return self._threads[episode]


def check_abandoned(last: str) -> None:
    """Raise RunAborted if more than MAX_ABANDONED threads hang; `last` is the newest error."""
    if (count := abandoned_threads()) > MAX_ABANDONED:
        line = f"{count} threads hang in calls of the environment, the last: {last}"
        raise RunAborted(f"{line}; fix the environment or raise rollout.env_timeout")
