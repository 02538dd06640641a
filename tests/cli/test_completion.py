"""What a person gets who presses Tab in bash."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.terminal import Terminal, terminal
from tests.paths import ROOT

BASH = shutil.which("bash")
PROGRAM = Path(sys.executable).parent / "agentrl"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BASH is None, reason="bash is not installed"),
    pytest.mark.skipif(not PROGRAM.is_file(), reason="agentrl is not installed"),
]


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"TERM": "dumb", "PS1": "> ", "PATH": path, "PYTHONPATH": str(ROOT)}
    command = [str(BASH), "--norc", "--noprofile", "-i"]
    with terminal(command, tmp_path_factory.mktemp("home"), variables, columns=500) as shell:
        shell.wait_for("> ")
        shell.type("source <(_AGENTRL_COMPLETE=source_bash agentrl); echo rea''dy\n")
        shell.wait_for("ready\r\n> ")
        yield shell


def completed(bash: Terminal, typed: str, tabs: int) -> str:
    """What stands behind these words once Tab was pressed, and all that was listed."""
    bash.type(f"{typed}" + "\t" * tabs + "|")
    shown = bash.wait_for("|")
    bash.type("\x15")  # the line is taken back
    bash.type("echo do''ne\n")
    bash.wait_for("done\r\n> ")
    return shown.replace("\x07", "").removesuffix("|")


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("agentrl train algo=gr", "agentrl train algo=grpo "),
        ("agentrl train env=tw", "agentrl train env=twentyq"),
        ("agentrl train seed=", "agentrl train seed=0 "),
        ("agentrl train see", "agentrl train seed="),  # and no space, so that the value follows
        ("agentrl train algo.opt", "agentrl train algo.optimizer."),
        ("agentrl train algo=grpo algo.cl", "agentrl train algo=grpo algo.clip_eps="),
        ("agentrl eval model=ti", "agentrl eval model=tiny "),
    ],
)
def test_tab_goes_on_with_a_word(bash: Terminal, typed: str, line: str):
    assert completed(bash, typed, 1) == line


@pytest.mark.parametrize("before", ["agentrl train ", "agentrl train seed=3 ", "agentrl sweep "])
def test_tab_twice_directly_behind_a_group_lists_its_options(bash: Terminal, before: str):
    shown = completed(bash, f"{before}algo=", 2)
    assert {"archer", "grpo", "nlac", "self_ac"} <= set(shown.split())
    assert shown.endswith(f"> {before}algo=")
