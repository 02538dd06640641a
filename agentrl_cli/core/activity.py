"""The current work of a run, for display by another thread."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Activity:
    """`done` of `count` items of the work `name`; a count of 0 means unknown."""

    name: str = ""
    done: int = 0
    count: int = 0
    began: float = field(default_factory=time.monotonic)

    def begin(self, name: str, count: int = 0) -> None:
        """Start other work."""
        self.name, self.done, self.count, self.began = name, 0, count, time.monotonic()

    def advance(self, done: int, count: int) -> None:
        """Update the progress of the current work."""
        if count != self.count or done < self.done:  # other work under the same name
            self.began = time.monotonic()
        self.done, self.count = done, count

    def text(self) -> str:
        """Return a text like `play 12/128, 3.4/s, 34 s left`."""
        done, count, seconds = self.done, self.count, time.monotonic() - self.began
        if not count:
            return self.name
        parts = [f"{self.name} {done}/{count}"]
        if done and seconds > 0:
            parts += [f"{done / seconds:.3g}/s", f"{(count - done) * seconds / done:.0f} s left"]
        return ", ".join(parts)
