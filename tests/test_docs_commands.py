"""Pages keep their word: commands that they print succeed, links and files that they name exist.

A command is a line `$ agentrl ...` in a console block. They run in the order of the page, in one
folder per page, so a page may show what it made. A block that opens with ```console no-run is left
out (what needs an account, another machine, hours). Of `$ make ...` only the target is checked.
docs/log/ and CHANGELOG.md are history: their commands and files are those of their day.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

HISTORY = [ROOT / "CHANGELOG.md", *sorted((ROOT / "docs" / "log").glob("*.md"))]
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")} - {*HISTORY})
BLOCK = re.compile(r"^```console[ ]*(?P<info>[^\n]*)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
FILE = re.compile(r"`((?:agentrl_cli|conf|docs|tests|tools)/[\w./]+)`")
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


def anchors(text: str) -> set[str]:
    """The anchors that a host gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


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


@pytest.mark.parametrize("page", [*PAGES, *HISTORY], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path):
    for name, anchor in LINK.findall(page.read_text()):
        if "://" not in name:
            file = page.parent / name if name else page
            assert file.exists(), name
            is_line = file.suffix == ".py"  # tests/test_formula_links.py holds these
            known = anchor in anchors(file.read_text()) if anchor and not is_line else True
            assert known, f"{name}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path):
    named = {name for name in FILE.findall(page.read_text()) if "mine" not in name}
    assert {name for name in named if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_that_a_page_writes_as_code_stand_in_the_code(page: Path):
    folders = ("agentrl_cli", "conf", "tests", "tools")
    found = [file for folder in folders for file in (ROOT / folder).rglob("*.[py]*")]
    code = "\n".join(file.read_text() for file in found if file.suffix in (".py", ".pyi", ".yaml"))
    named = set(re.findall(r"`([A-Za-z_][\w.]*\w)(?:\(\))?`", page.read_text()))
    named = {name for name in named if not name.startswith("ENV_")}  # a preset of each world
    other = ROOT.joinpath("Makefile").read_text() + ROOT.joinpath("pyproject.toml").read_text()
    gone = [n for n in named if not all(part in code + other for part in n.split("."))]
    assert gone == []


def test_streams_of_the_notation_are_those_of_the_code():
    table = (ROOT / "docs" / "notation.md").read_text().partition("| stream |")[2]
    cells = re.findall(r"^\| ([^|]+) \|", table.partition("\n\n")[0], re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    code = "\n".join(file.read_text() for file in (ROOT / "agentrl_cli" / "algos").rglob("*.py"))
    assert len(named) > 15 and {n for n in named - {"mask"} if f'"{n}"' not in code} == set()


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
