"""The loop of a side in another environment: requests come in and answers go out, as one JSON
object per line. The process stays alive, so the sides can alternate. It needs only Python."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


class Stopwatch:
    """Counts the CPU seconds of this process inside the functions that it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its seconds counted."""

        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += time.process_time() - began

        return timed

    def take(self) -> float:
        """Return the seconds so far, and start again from zero."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def serve(calls: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Answer each line of stdin, `{"call": NAME, ...}`, with the result of that call. Output of
    libraries goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(calls[request.pop("call")](**request)), file=answers)
