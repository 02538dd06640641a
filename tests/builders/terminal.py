"""A program in a real pseudo-terminal, for tests."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Terminal:
    """The side of the terminal on which a person sits; `seen` is all that was shown."""

    handle: int
    program: subprocess.Popen[bytes]
    seen: str = ""

    def type(self, text: str) -> None:
        os.write(self.handle, text.encode())

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """What is shown from now on until this text was; AssertionError where it never is."""
        began, shown = time.monotonic(), ""
        while text not in shown:
            more = self._read(0.2)
            shown += more or ""
            is_over = more is None or time.monotonic() - began > seconds
            assert text in shown or not is_over, f"{text!r} is not in {shown!r}"
        return shown

    def rest(self) -> str:
        shown = ""
        while (more := self._read(0.2)) is not None:
            shown += more
        self.program.wait()
        return shown

    def _read(self, seconds: float) -> str | None:
        ready, _, _ = select.select([self.handle], [], [], seconds)
        try:
            text = os.read(self.handle, 65536).decode(errors="replace") if ready else ""
        except OSError:  # Linux says so where nobody has the other side open
            return None
        self.seen += text
        return text


@contextmanager
def terminal(
    command: list[str],
    folder: Path,
    variables: dict[str, str],
    *,
    rows: int = 30,
    columns: int = 100,
) -> Iterator[Terminal]:
    """The command in a terminal of its own, in a folder and with these environment variables."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", **variables}
    with subprocess.Popen(
        command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
        start_new_session=True,
    ) as program:  # fmt: skip
        os.close(theirs)
        try:
            yield Terminal(ours, program)
        finally:
            program.kill()
            os.close(ours)


CODE = re.compile(r"\x1b\[[?]?([\d;]*)([A-Za-z])|(\r|\n)|([^\x1b\r\n]+)")


def screen(shown: str) -> list[str]:
    """The lines that stand in a terminal after this was sent to it: text, ends of lines, cursor
    up and left, lines erased; what colours and hides changes nothing."""
    lines, row, column = [""], 0, 0
    for number, letter, end, text in CODE.findall(shown):
        if end == "\n":
            row += 1
            lines += [""] * (row >= len(lines))
        elif end == "\r" or letter == "G":
            column = 0
        elif letter == "A":
            row = max(row - int(number or 1), 0)
        elif letter == "K":
            lines[row] = "" if number == "2" else lines[row][:column]
        elif text:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in lines]
