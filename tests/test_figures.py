"""Figures on pages stand in the records or in the log that their paragraph links. Those of findings
and of results.md are computed from the records, and literal ones stand in the log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from bench.trl_learning import UPDATES, gap
from tests.paths import ROOT
from tools.results_page import text_of

DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(DOCS.glob("*.md")) if page.stem not in ("results", "findings")),
]
TEMPLATES = {"results": DOCS, "findings": DOCS, "readme": ROOT}  # of tools/pages, and their folders
COMPUTED = re.compile(r"\{[^}]*\}")
AIMS = re.compile(r"(?<=\|)[^|\n]*\|$", re.MULTILINE)  # the last column of tables of aims
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
NO_FIGURE = re.compile(
    r"```.*?```|`[^`]*`|\]\([^)]*\)|95 % (?:interval|band|half)|arXiv [\d.]+|[Vv]ersion\s\d\.\d"
    r"|0\.5\sis\schance|p\s<\s0\.05|95\s%\snoise\sband|TRL \d+\.\d+(?:\.\d+)?",
    re.DOTALL,
)
IN_PERCENT = r"\d[\d,]*(?=(?:(?:,| and| to| or)\s\d+)*\s%)"
FIGURE = re.compile(rf"(?<![\w.,/-])[+−-]?(?:\d[\d,]*\.\d+|{IN_PERCENT})(?![\w.]*\w)")


def paragraphs(text: str) -> Iterator[str]:
    """Return the paragraphs, list items and tables of a page, a table with what leads to it."""
    before = ""
    for part in re.split(r"\n\s*\n", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if part.lstrip().startswith("|"):
            yield f"{before}\n{part}"
        else:
            yield from re.split(r"\n(?=\s*(?:[-*]|\d+\.) )", part)
            before = part


def figures(paragraph: str) -> list[str]:
    """Return the numbers with decimals or in percent outside code."""
    return FIGURE.findall(NO_FIGURE.sub(" ", paragraph))


def sources(paragraph: str, folder: Path) -> list[Path]:
    """Return the records and logs that a paragraph links, and the page of the results."""
    linked = [(folder / found).resolve() for found in LINK.findall(paragraph)]
    return [file for file in linked if {"results", "log"} & {file.parent.name, file.stem}]


@cache
def numbers(file: Path) -> list[str]:
    """Return all numbers of a record or a page, without signs."""
    if file.suffix != ".json":
        return re.findall(r"(?<![\d.])\d+(?:\.\d+)?", file.read_text().replace(",", ""))
    record = json.loads(file.read_text())
    derived = quarters(record) if file.stem == "trl_learning" else []
    return [f"{abs(value):.9f}" for value in (*values(record), *derived)]


def values(record: Any) -> Iterator[float]:
    """Return all numbers of a record."""
    if isinstance(record, dict | list):
        for part in record.values() if isinstance(record, dict) else record:
            yield from values(part)
    elif isinstance(record, float | int):
        yield float(record)


def quarters(sides: dict[str, dict[str, Any]]) -> list[float]:
    """Return the mean reward of the first and of the last quarter of updates of each side, and the
    gap at the end."""
    rewards = [[run["rewards"] for run in side.values()] for side in sides.values()]
    ends = (slice(UPDATES // 4), slice(-UPDATES // 4, None))
    means = [fmean(fmean(run[end]) for run in runs) for runs in rewards for end in ends]
    return [*means, *gap(sides).values()]


@cache
def rounded(file: Path, digits: int) -> set[str]:
    """Return the numbers of a source with so many digits behind the point, as they are and in
    percent. Those of a page that have fewer digits are left out."""
    return {
        f"{scale * float(found):.{digits}f}"
        for found in numbers(file)
        for scale in (1, 100)
        if len(found.partition(".")[2]) - (scale == 100) * 2 >= digits
    }


def stands_in(figure: str, file: Path) -> bool:
    """Return whether a source has a figure, whatever its sign."""
    text = figure.replace(",", "").lstrip("+−-")
    return text in rounded(file, len(text.partition(".")[2]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_figures_stand_in_their_sources(page: Path):
    missing = [
        (figure, paragraph[:60])
        for paragraph in paragraphs(page.read_text())
        if (linked := sources(paragraph, page.parent))
        for figure in figures(paragraph)
        if not any(stands_in(figure, file) for file in linked)
    ]
    assert not missing


@pytest.mark.parametrize("name", TEMPLATES)
def test_findings_are_computed_or_stand_in_the_log(name: str):
    missing = []
    for paragraph in paragraphs(text_of(name)):
        literal = COMPUTED.sub("", AIMS.sub("", paragraph) if "| aim |" in paragraph else paragraph)
        logs = [file for file in sources(literal, TEMPLATES[name]) if file.parent.name == "log"]
        missing += [f for f in figures(literal) if not any(stands_in(f, file) for file in logs)]
    assert not missing


@pytest.mark.parametrize("name", ["findings", "readme"])
def test_each_finding_names_its_source(name: str):
    found = [part for part in paragraphs(text_of(name)) if figures(part) or COMPUTED.search(part)]
    assert found and not [part for part in found if not sources(part, TEMPLATES[name])]


def test_wrong_figure_is_found(tmp_path: Path):
    record = tmp_path / "results" / "shop.json"
    record.parent.mkdir()
    record.write_text('[{"final": 0.6127, "low": -0.05, "seconds": 1024}]')
    text = "NLAC reaches 61.3 % from −5.0, [record](results/shop.json), in 1,024.0 s, not 61.4 %"
    assert sources(text, tmp_path) == [record]
    outcome = {figure: stands_in(figure, record) for figure in figures(text)}
    assert outcome == {"61.3": True, "−5.0": True, "1,024.0": True, "61.4": False}
