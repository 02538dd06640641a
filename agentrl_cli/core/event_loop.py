"""Coroutines that are called from ordinary code."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import cache
from threading import Lock, Thread
from typing import Any

LOCK = Lock()  # to make the event loop


@cache
def _event_loop(name: str) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name=f"agentrl-{name}", daemon=True).start()
    return loop


def wait_for(
    call: Coroutine[Any, Any, Any], seconds: float | None = None, *, loop: str = "calls"
) -> Any:
    """Run a coroutine on an event loop in a background thread and return its result. Code that may
    block has a `loop` of its own.

    Only a coroutine can be cancelled while a server sends a byte now and then. It is cancelled
    after `seconds` (raising TimeoutError) and when this thread is interrupted.
    """
    with LOCK:
        running = _event_loop(loop)
    future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(call, seconds), running)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
