"""The current activity of a command: workers write it, and another thread shows it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import TYPE_CHECKING

from agentrl_cli.core.terminal import echo_err

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress

MINUTE = 60.0  # seconds between two lines where there is no terminal


@dataclass
class Activity:
    """`done` of `count` items (0: unknown) of the work `name`, since `began`.

    `partial` estimates how many items the unfinished ones amount to. `next` is what the current
    call to a generator will add to it, and `answered` the share of that call that is done.
    """

    name: str = ""
    done: int = 0
    count: int = 0
    began: float = field(default_factory=time.monotonic)
    partial: float = 0.0
    next: float = 0.0
    answered: float = 0.0

    def begin(self, name: str, count: int = 0) -> None:
        """Begin other work."""
        self.name, self.done, self.count, self.began = name, 0, count, time.monotonic()
        self.partial = self.next = self.answered = 0.0

    def advance(self, done: int, count: int, partial: float = 0.0, next: float = 0.0) -> None:
        """Set the number of finished items of the same work, and the parts of others."""
        if count != self.count or done < self.done:  # other items under the same name
            self.began = time.monotonic()
        self.done, self.count, self.partial, self.next = done, count, partial, next
        self.answered = 0.0

    @property
    def share(self) -> float:
        """The share of the work that is done, 0 to 1; 0 if the number of items is unknown."""
        amount = self.done + self.partial + self.next * self.answered
        return min(1.0, amount / self.count) if self.count else 0.0

    def text(self) -> str:
        """Return a line such as `play 12/128, 3.4/s, 34 s left`."""
        done, count, share = self.done, self.count, self.share
        seconds = time.monotonic() - self.began
        if not count:
            return self.name
        parts = [f"{self.name} {done}/{count}".strip()]
        if done and seconds > 0:
            parts.append(f"{done / seconds:.3g}/s")
        if share and seconds > 0:
            parts.append(f"{duration(seconds * (1 - share) / share)} left")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """Return `34 s`, `12 min` or `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Display:
    """Shows an activity on stderr: a bar with the time left in a terminal, else one line a minute.

    With `steps` the bar shows the completed steps, else the share of the activity. Nothing is shown
    before `start` and after `stop`, or outside `with`.
    """

    def __init__(self, activity: Activity, steps: int | None = None) -> None:
        self.activity, self.steps, self.step = activity, steps, 0
        self.bar: Progress | None = None
        self.stopped = Event()

    def start(self) -> None:
        if sys.stderr is not None and sys.stderr.isatty():
            self.bar = _bar(self)
            self.bar.start()
        else:
            Thread(target=self._lines, name="agentrl: display", daemon=True).start()

    def stop(self) -> None:
        self.stopped.set()
        if self.bar is not None:
            with suppress(OSError):  # the terminal was closed
                self.bar.stop()

    def print(self, text: str) -> None:
        """Print a line, in a terminal above the bar."""
        if self.bar is None:
            echo_err(text)
            return
        with suppress(OSError):
            self.bar.console.print(text, markup=False, highlight=False)

    def __enter__(self) -> Display:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _lines(self) -> None:
        while not self.stopped.wait(MINUTE):
            if text := self.activity.text():
                echo_err(text if self.steps is None else f"step {self.step}/{self.steps}  {text}")


def _bar(display: Display) -> Progress:
    """Return a bar with the completed steps, the current work, and elapsed and remaining time. It
    vanishes at the end."""
    from rich import progress as bars
    from rich.console import Console as Terminal
    from rich.text import Text

    activity, steps = display.activity, display.steps

    class CurrentWork(bars.ProgressColumn):
        def render(self, task: bars.Task) -> Text:
            return Text(activity.text(), overflow="ellipsis", no_wrap=True)

    class Bar(bars.Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            for task in self.tasks:
                task.completed = display.step if steps is not None else activity.share
            yield from super().get_renderables()

    columns = [bars.SpinnerColumn(), bars.BarColumn(bar_width=12)]
    columns += [bars.MofNCompleteColumn()] if steps is not None else []
    columns += [CurrentWork(), bars.TimeElapsedColumn()]
    columns += [bars.TimeRemainingColumn()] if steps is not None else []
    terminal = Terminal(stderr=True, force_jupyter=False)
    bar = Bar(*columns, console=terminal, transient=True, refresh_per_second=4)
    bar.add_task("work", total=1 if steps is None else steps)
    return bar
