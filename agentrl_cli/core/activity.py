"""What a run is doing at this moment. What works writes it, what shows it reads it, from another
thread; nothing depends on it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Activity:
    """`done` of `count` pieces (0: how many is not known) of the work `name`, since `began`."""

    name: str = ""
    done: int = 0
    count: int = 0
    began: float = field(default_factory=time.monotonic)

    def begin(self, name: str, count: int = 0) -> None:
        """Go over to other work."""
        self.name, self.done, self.count, self.began = name, 0, count, time.monotonic()

    def advance(self, done: int, count: int) -> None:
        """So many pieces of the same work are done."""
        if count != self.count or done < self.done:  # another piece of work by the same name
            self.began = time.monotonic()
        self.done, self.count = done, count

    def text(self) -> str:
        """`play 12/128, 3.4/s, 34 s left`, as far as it is known."""
        done, count, seconds = self.done, self.count, time.monotonic() - self.began
        if not count:
            return self.name
        parts = [f"{self.name} {done}/{count}"]
        if done and seconds > 0:
            parts += [f"{done / seconds:.3g}/s", f"{(count - done) * seconds / done:.0f} s left"]
        return ", ".join(parts)
