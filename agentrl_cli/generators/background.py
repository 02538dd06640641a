"""One event loop in a thread of its own, for calls over the network that other threads wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import lru_cache
from threading import RLock, Thread, current_thread
from typing import Any

LOOP_THREAD = "agentrl-calls"
# held to make the loop, which two threads may ask for at once; one thread may come twice, since the
# garbage collector may end a generator between any two lines
ONE_AT_A_TIME = RLock()


def wait_for(asked: Coroutine[Any, Any, Any], seconds: float | None = None) -> Any:
    """The result of a call; TimeoutError where it takes longer. A call that nobody waits for any
    more, as after Ctrl-C, is stopped. RuntimeError in the loop's own thread, where a wait would
    never end."""
    if current_thread().name == LOOP_THREAD:
        asked.close()
        raise RuntimeError("a call is waited for where calls are made; use run_beside_loop")

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


def run_beside_loop(job: Callable[[], None]) -> None:
    """Run a job that waits for calls: here, or, in the loop's own thread, where the garbage
    collector may ask for it, in a thread of its own, whose end is not awaited."""
    if current_thread().name == LOOP_THREAD:
        Thread(target=job).start()
    else:
        job()


@lru_cache(maxsize=1)
def _event_loop() -> asyncio.AbstractEventLoop:
    """An event loop in a thread of its own: only there can a call be stopped whatever the other
    side does, as where it sends a byte now and then."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name=LOOP_THREAD, daemon=True).start()
    return loop
