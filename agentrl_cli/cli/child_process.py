"""An agentrl command in a process of its own, so that one that dies takes nothing with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run_agentrl(arguments: list[str], log: Path) -> int:
    """Run `agentrl ARGUMENTS` with its output in `log`; its exit code."""
    command = [sys.executable, "-m", "agentrl_cli.cli", *arguments]
    with log.open("w") as file:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    return done.returncode
