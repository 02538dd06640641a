"""Every command that the README and docs/ print does what the page says: it succeeds.

A command is a line `$ agentrl ...` in a console block. They run in the order of the page, in one
folder per page, so a page may show what it made. A block that opens with ```console no-run is left
out (what needs an account, another machine, hours). Of `$ make ...` only the target is checked.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```console[ ]*(?P<info>[^\n]*)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)
SECONDS = 1800


def commands(text: str) -> list[str]:
    """The `agentrl` commands of a page's console blocks; a backslash continues a line."""
    blocks = [match for match in BLOCK.finditer(text) if "no-run" not in match["info"]]
    lines = [
        line[2:]
        for block in blocks
        for line in block["body"].replace("\\\n", " ").splitlines()
        if line.startswith("$ ")
    ]
    return [line for line in lines if line.split()[0] == "agentrl"]


def makes(text: str) -> set[str]:
    """The targets of the `make` commands that a page prints."""
    return set(re.findall(r"^\$ make (\S+)", text, re.MULTILINE))


def test_commands_are_taken_from_console_blocks_only():
    page = (
        "$ agentrl not this\n```console\n$ agentrl ls\nout\n$ agentrl list \\\n  env\n```\n"
        "```console no-run\n$ agentrl resume last\n```\n```bash\n$ agentrl show\n```\n"
    )
    assert [line.split() for line in commands(page)] == [
        ["agentrl", "ls"],
        ["agentrl", "list", "env"],
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_printed_make_targets_exist(page: Path):
    known = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert makes(page.read_text()) <= known


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_printed_commands_succeed(page: Path, tmp_path: Path):
    bin_folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    for command in commands(page.read_text()):
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
