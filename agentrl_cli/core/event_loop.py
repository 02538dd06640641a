"""Coroutines that are called from ordinary code."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import lru_cache
from threading import Lock, Thread
from typing import Any

LOCK = Lock()  # to make the event loop


@lru_cache(maxsize=1)
def _event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="agentrl-calls", daemon=True).start()
    return loop


def wait_for(call: Coroutine[Any, Any, Any], seconds: float | None = None) -> Any:
    """Run a coroutine on an event loop in a background thread and return its result.

    Only a coroutine can be cancelled while a server sends a byte now and then. It is cancelled
    after `seconds` (raising TimeoutError) and when this thread is interrupted.
    """
    with LOCK:
        loop = _event_loop()
    future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(call, seconds), loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
