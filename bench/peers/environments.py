"""The environments of other libraries, and their sides as processes that alternate with ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = {"trl": "trl[peft]", "agilerl": "agilerl[llm]", "verifiers": "verifiers"}
SIDES = Path(__file__).parent


class PeerError(RuntimeError):
    """A library that cannot be installed or run, with the reason."""


@dataclass
class Peer:
    """The process of another library, which runs until `close`."""

    name: str
    process: subprocess.Popen[str]
    log: Path

    def ask(self, call: str, **options: Any) -> dict[str, Any]:
        """Return the answer to a call. Raises PeerError with the last line of the log if
        the process has ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended, and gives no line
            self.process.stdin.write(json.dumps({"call": call, **options}) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise PeerError(f"{self.name} cannot {call}: {_last_line(self.log.read_text())}")
        return json.loads(line)

    @property
    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self.process.poll() is None

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def start(name: str, folder: Path, work: Path) -> Peer:
    """Start the side of a library with a work file. Its environment is made in `folder` if it
    is missing. Raises PeerError if that fails."""
    python = environment(name, folder)
    return launch(name, [str(python), str(SIDES / f"{name}_side.py"), str(work)], folder)


def launch(name: str, command: list[str], folder: Path) -> Peer:
    """Start a side by a command. Output other than answers goes to a log in `folder`."""
    log, pipe = folder / f"{name}.log", subprocess.PIPE
    with log.open("w") as said:
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=said, text=True, env=one_thread()
        )
    return Peer(name, process, log)


def environment(name: str, folder: Path) -> Path:
    """Return the Python of a peer's environment, which is made if it is missing. An existing one is
    kept, whatever its version. Raises PeerError with the last line of pip if that fails."""
    python = folder / name / "bin" / "python"
    if not _has(python, name):
        print(f"installing {PACKAGES[name]} into {folder / name}", file=sys.stderr)
        _run(name, sys.executable, "-m", "venv", str(folder / name))
        torch = f"torch=={version('torch').partition('+')[0]}"
        pip = (str(python), "-m", "pip", "install", "--quiet")
        _run(name, *pip, torch)  # first and alone, so that the same build as ours is taken
        _run(name, *pip, "--upgrade", PACKAGES[name])
    return python


def one_thread() -> dict[str, str]:
    """Return the environment variables of a process with one thread."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _has(python: Path, name: str) -> bool:
    if not python.exists():
        return False
    ask = f"from importlib.metadata import version; version({name!r})"
    return not subprocess.run([str(python), "-c", ask], capture_output=True, check=False).returncode


def _run(name: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerError(f"{name} cannot be installed: {_last_line(done.stderr or done.stdout)}")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]
