"""One event loop in a thread of its own, for calls over the network that other threads wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import lru_cache
from threading import Lock, Thread
from typing import Any

ONE_AT_A_TIME = Lock()  # held to make the loop, which two threads may ask for at once


def wait_for(asked: Coroutine[Any, Any, Any], seconds: float | None = None) -> Any:
    """The result of a call; TimeoutError where it takes longer. A call that nobody waits for any
    more, as after Ctrl-C, is stopped."""

    async def limited() -> Any:
        return await asyncio.wait_for(asked, seconds)

    with ONE_AT_A_TIME:
        loop = _event_loop()
    future = asyncio.run_coroutine_threadsafe(limited(), loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


@lru_cache(maxsize=1)
def _event_loop() -> asyncio.AbstractEventLoop:
    """An event loop in a thread of its own: only there can a call be stopped whatever the other
    side does, as where it sends a byte now and then."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, daemon=True).start()
    return loop
