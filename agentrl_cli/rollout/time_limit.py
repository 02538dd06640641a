"""Calls that cannot be interrupted, as those of a world: made in threads of their own, and left
behind where they take too long. What a world is, is not known here."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from agentrl_cli.core.errors import WorldTimeout

ABANDONED = "agentrl: left behind"  # the name of such a thread


@dataclass(frozen=True)
class Outcome:
    """What a call returned or raised, and the seconds that it took."""

    value: Any
    error: BaseException | None
    seconds: float


def outcome_of(call: Callable[[], Any]) -> Outcome:
    """Make the call in this thread; whatever it raises is in the outcome."""
    began, value, error = time.perf_counter(), None, None
    try:
        value = call()
    except BaseException as raised:
        error = raised
    return Outcome(value, error, time.perf_counter() - began)


class OwnThread:
    """Makes calls one after the other, all in one thread, which does not keep the process alive.
    Outcomes go to the queue that was given with the call, with this object."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Submitted | None] = SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self._calls,), daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Any], outcomes: Outcomes) -> None:
        """Make the call behind those that were submitted before."""
        self._calls.put((self, call, outcomes))

    def abandon(self, seconds: float) -> WorldTimeout:
        """Leave the thread to the call that it is at, which took more than `seconds`; the error
        says at which place. What the call still does concerns nobody."""
        self._thread.name = ABANDONED
        self.close()
        frame = sys._current_frames().get(self._thread.ident or 0)
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "its thread is gone"
        line = f"no answer within {seconds:g} s ({place})"
        return WorldTimeout(f"{line}; rollout.env_timeout is the limit")

    def close(self) -> None:
        """Let the thread end behind its last call."""
        self._calls.put(None)


Outcomes = SimpleQueue[tuple[OwnThread, Outcome]]
Submitted = tuple[OwnThread, Callable[[], Any], Outcomes]


class TimeLimit:
    """Makes calls one after the other in a thread of its own, and waits at most `seconds` for
    each."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._thread = seconds, OwnThread()

    def __call__(self, call: Callable[[], Any]) -> Any:
        """What the call returns or raises. WorldTimeout, with the place where it is at work, where
        that takes too long."""
        outcomes: Outcomes = SimpleQueue()
        self._thread.submit(call, outcomes)
        try:
            _, outcome = outcomes.get(timeout=self.seconds)
        except Empty:
            raise self._thread.abandon(self.seconds) from None
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def close(self) -> None:
        """Let the thread end behind its last call."""
        self._thread.close()


def abandoned_threads() -> int:
    """How many threads of this process are left behind, still at a call that took too long."""
    return sum(thread.name == ABANDONED for thread in threading.enumerate())


def _serve(calls: SimpleQueue[Submitted | None]) -> None:
    while (submitted := calls.get()) is not None:
        thread, call, outcomes = submitted
        outcomes.put((thread, outcome_of(call)))
