"""Environments of the peers' own, and their sides as processes that take turns with ours."""

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
    """A peer that cannot be installed or run, and why."""


@dataclass
class Peer:
    """A peer at work, which stays alive until `close`."""

    name: str
    process: subprocess.Popen[str]
    log: Path

    def ask(self, call: str, **options: Any) -> dict[str, Any]:
        """Its answer. PeerError with the last line of its log where it ended instead."""
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
        """Whether it still answers."""
        return self.process.poll() is None

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def start(name: str, folder: Path, work: Path) -> Peer:
    """The peer of that name on the work, its environment in `folder` made first where it is
    missing. PeerError where it cannot be made."""
    python = environment(name, folder)
    return launch(name, [str(python), str(SIDES / f"{name}_side.py"), str(work)], folder)


def launch(name: str, command: list[str], folder: Path) -> Peer:
    """Start a peer by a command. All it prints other than answers goes to a log in `folder`."""
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
    """The environment of a process that computes on one thread."""
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
