"""A limit of time for what cannot be interrupted: a world's answers. What a world is, is not known
here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from agentrl_cli.core.errors import WorldTimeout


class TimeLimit:
    """Makes calls one after the other, all in a thread of its own, and waits at most `seconds` for
    each; None: in the caller's thread, without a limit. A call that takes longer is left behind to
    its thread, which does not keep the process alive; what it still does concerns nobody."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._thread = Thread(target=_serve, args=(self._calls, self._results), daemon=True)
        if seconds is not None:
            self._thread.start()

    def __call__(self, call: Callable[[], Any]) -> Any:
        """What the call returns or raises. WorldTimeout, with the place where it is at work, where
        that takes too long."""
        if self.seconds is None:
            return call()
        self._calls.put(call)
        try:
            value, error = self._results.get(timeout=self.seconds)
        except Empty:
            line = f"no answer within {self.seconds:g} s ({self._place()})"
            raise WorldTimeout(f"{line}; rollout.env_timeout is the limit") from None
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Let the thread end behind its last call."""
        self._calls.put(None)

    def _place(self) -> str:
        """`FILE:LINE` at which the thread is."""
        frame = sys._current_frames()[self._thread.ident or 0]
        return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _serve(
    calls: SimpleQueue[Callable[[], Any] | None],
    results: SimpleQueue[tuple[Any, BaseException | None]],
) -> None:
    while (call := calls.get()) is not None:
        try:
            results.put((call(), None))
        except BaseException as error:
            results.put((None, error))
