"""Pages keep their word: commands that they print succeed, links and files that they name exist.

A command is a line `$ agentrl ...` (or pip, python, printf, transformers) in a console block. They
run in the order of the page, in one folder per page, so a page may show what it made; a page that
installs something has an environment of its own. A block that opens with ```console small has small
sizes behind its commands, one that opens with ```console no-run is left out (what needs an account,
another machine, hours). Of `$ make ...` only the target is checked. Blocks that open with
```python run are one script per page, which runs in a folder of its own.
docs/log/ and CHANGELOG.md are history: their commands and files are those of their day.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.builders.page_commands import commands, place_for
from tests.paths import ROOT

HISTORY = [ROOT / "CHANGELOG.md", *sorted((ROOT / "docs" / "log").glob("*.md"))]
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")} - {*HISTORY})
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
FILE = re.compile(r"`((?:agentrl_cli|conf|docs|tests|tools)/[\w./]+)`")
PYTHON = re.compile(r"^```python run\n(.*?)^```", re.MULTILINE | re.DOTALL)
SCRIPTS = {page: "\n".join(PYTHON.findall(page.read_text())) for page in PAGES}
SECONDS = 1800


def makes(text: str) -> set[str]:
    return set(re.findall(r"^\$ make (\S+)", text, re.MULTILINE))


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_printed_make_targets_exist(page: Path):
    known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert makes(page.read_text()) <= known


@pytest.mark.parametrize(
    "page", [*PAGES, *HISTORY, *NOTEBOOKS], ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_between_pages_lead_somewhere(page: Path):
    for name, anchor in LINK.findall(page.read_text()):
        if "://" not in name:
            file = page.parent / name if name else page
            assert file.exists(), name
            is_line = file.suffix == ".py"
            known = anchor in anchors(file.read_text()) if anchor and not is_line else True
            assert known, f"{name}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path):
    found = FILE.findall(page.read_text())
    named = {name for name in found if "mine" not in name and "NAME" not in name}
    assert {name for name in named if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_that_a_page_writes_as_code_stand_in_the_code(page: Path):
    named = set(re.findall(r"`([A-Za-z_][\w.]*\w)(?:\(\))?`", page.read_text()))
    named = {name for name in named if not name.startswith("ENV_")}  # a preset of each world
    assert [n for n in named if not set(n.split(".")) <= all_words()] == []


@cache
def all_words() -> set[str]:
    """Return the words of all code, settings and build files, and of the names of the files."""
    folders = ("agentrl_cli", "conf", "tests", "bench", "stress", "tools")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.[py]*")]
    files = [file for file in files if file.suffix in (".py", ".pyi", ".yaml")]
    files += [ROOT / "Makefile", ROOT / "pyproject.toml"]
    return set(re.findall(r"\w+", "\n".join(f"{file.stem}\n{file.read_text()}" for file in files)))


def test_fields_in_notation_exist():
    table = (ROOT / "docs" / "notation.md").read_text().partition("| field |")[2]
    cells = re.findall(r"^\| ([^|]+) \|", table.partition("\n\n")[0], re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    code = "\n".join(file.read_text() for file in (ROOT / "agentrl_cli" / "algos").rglob("*.py"))
    assert len(named) > 15 and {n for n in named - {"mask"} if f'"{n}"' not in code} == set()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_printed_commands_succeed(page: Path, tmp_path: Path):
    printed = commands(page.read_text())
    place = place_for(printed, tmp_path)
    with place.servers:
        for command in printed:
            place.run(command)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in SCRIPTS if SCRIPTS[p]], ids=lambda page: page.name)
def test_printed_python_runs(page: Path, tmp_path: Path):
    command = [sys.executable, "-c", SCRIPTS[page]]
    subprocess.run(command, cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
