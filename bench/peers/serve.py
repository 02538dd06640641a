"""How a side that lives in another environment takes its turn: requests in, answers out, one JSON
object a line. It stays alive between its turns, so that sides alternate without starting anew.
Nothing here needs more than Python, and nothing of agentrl."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


class Stopwatch:
    """CPU seconds of this process spent inside the functions that it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its seconds counted."""

        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += time.process_time() - began

        return timed

    def take(self) -> float:
        """The seconds so far; counts from zero again."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def serve(calls: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Answer each line of stdin, `{"call": NAME, ...}`, by what that call returns, until there are
    no more. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(calls[request.pop("call")](**request)), file=answers)
