"""Run a program in a pseudo-terminal, for tests."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path


def run_in_terminal(
    command: list[str], folder: Path, variables: dict[str, str], size: tuple[int, int] = (30, 100)
) -> tuple[int, str]:
    """Return the exit code of a command and everything that the terminal received."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    environment = {**os.environ, "TERM": "xterm", **variables}
    with subprocess.Popen(
        command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
        start_new_session=True,
    ) as program:  # fmt: skip
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:  # Linux raises it after the last writer has closed the terminal
            pass
        finally:
            os.close(ours)
    return program.returncode, shown.decode(errors="replace")
