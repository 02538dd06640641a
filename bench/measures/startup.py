"""CPU seconds of commands in new processes, from their start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from bench.peers.environments import one_thread
from tests.paths import ROOT

AGENTRL = "from agentrl_cli.cli.main import app; app()"
TYPER = """
import typer
app = typer.Typer()
@app.command()
def one(): "One."
@app.command()
def two(): "Two."
app()
"""
FIRST_EPISODE = """
import os, time
from agentrl_cli.rollout.play import LiveEpisode

def end(*what):
    print(time.process_time(), flush=True)
    os._exit(0)

LiveEpisode._end = end
from agentrl_cli.cli.main import app
app()
"""
TRAIN = ("train", "algo=grpo", "env=twentyq", "eval.baseline=false", "hardware.threads=1")


def help_seconds() -> float:
    """Return the seconds of `agentrl --help`."""
    return _cpu_seconds(AGENTRL, "--help")


def bare_help_seconds() -> float:
    """Return the seconds of `--help` of the smallest Typer application with two commands."""
    return _cpu_seconds(TYPER, "--help")


def wrong_word_seconds() -> float:
    """Return the seconds until a command with an unknown algorithm is refused."""
    return _cpu_seconds(AGENTRL, "train", "algo=grop", "env=twentyq", status=2)


def first_episode_seconds() -> float:
    """Return the seconds until the first training episode of a run ends, when the process stops
    itself."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", FIRST_EPISODE, *TRAIN]
        done = subprocess.run(
            command, cwd=folder, env=_environment(), capture_output=True, text=True, check=True
        )
    return float(done.stdout)


def _cpu_seconds(program: str, *arguments: str, status: int = 0) -> float:
    """Return the CPU seconds of a Python program, which must end with that status."""
    command = [sys.executable, "-c", program, *arguments]
    nothing = subprocess.DEVNULL
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            command, cwd=folder, env=_environment(), stdout=nothing, stderr=nothing
        ) as child,
    ):
        _, ended, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(ended)
    if child.returncode != status:
        raise SystemExit(f"{' '.join(arguments)} ended with {child.returncode}, not {status}")
    return used.ru_utime + used.ru_stime


def _environment() -> dict[str, str]:
    return {**one_thread(), "PYTHONPATH": str(ROOT)}
