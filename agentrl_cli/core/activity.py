"""The current activity of a run: workers write it, and another thread displays it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Activity:
    """`done` of `count` items (0: unknown) of the work `name`, since `began`."""

    name: str = ""
    done: int = 0
    count: int = 0
    began: float = field(default_factory=time.monotonic)

    def begin(self, name: str, count: int = 0) -> None:
        """Begin other work."""
        self.name, self.done, self.count, self.began = name, 0, count, time.monotonic()

    def advance(self, done: int, count: int) -> None:
        """Set the number of finished items of the same work."""
        if count != self.count or done < self.done:  # other items under the same name
            self.began = time.monotonic()
        self.done, self.count = done, count

    def text(self) -> str:
        """Return a line such as `play 12/128, 3.4/s, 34 s left`."""
        done, count, seconds = self.done, self.count, time.monotonic() - self.began
        if not count:
            return self.name
        parts = [f"{self.name} {done}/{count}"]
        if done and seconds > 0:
            parts += [f"{done / seconds:.3g}/s", f"{(count - done) * seconds / done:.0f} s left"]
        return ", ".join(parts)
