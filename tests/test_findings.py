"""Every figure of docs/findings.md stands before the evidence that it is from, and where that is a
record in docs/results, the record says so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.paths import ROOT
from tools.results_page import configurations, gains

DOCS = ROOT / "docs"
TEXT = (DOCS / "findings.md").read_text()
LINK = re.compile(r"\[[^]]*\]\(([^)]+)\)")
FIGURE = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?![\w.]*\))")  # with decimals: others are counts
ITEMS = re.findall(r"^(?:- |\| ).*(?:\n  .*)*", TEXT, re.MULTILINE)


def evidence(item: str) -> Iterator[tuple[list[str], str]]:
    """The figures of an item with the link behind them, "" where none is."""
    begin = 0
    for link in LINK.finditer(item):
        yield FIGURE.findall(item[begin : link.start()]), link[1]
        begin = link.end()
    yield FIGURE.findall(item[begin:]), ""


def leaves(node: Any) -> Iterator[float]:
    """Every number in what JSON holds."""
    if isinstance(node, dict):
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            yield from leaves(inner)
    elif isinstance(node, int | float):
        yield float(node)


def known(file: Path) -> set[float]:
    """What a record says, as it stands and in per cent; of runs also gains, and means."""
    content = json.loads(file.read_text())
    found = {*leaves(content)}
    if isinstance(content, list) and "final" in content[0]:
        for split in ("test", "train"):
            for runs in configurations(content, split):
                found |= {*gains(runs), fmean(gains(runs))}
                found |= {fmean(row[key] for row in runs) for key in ("base", "final", "seconds")}
    return found | {100 * number for number in found}


def says(numbers: set[float], figure: str) -> bool:
    """Whether one of the numbers, rounded, is the figure."""
    wanted, decimals = float(figure.replace(",", "")), len(figure.partition(".")[2])
    return any(abs(abs(number) - wanted) <= 0.5001 * 10**-decimals for number in numbers)


@pytest.mark.parametrize(
    "item", [item for item in ITEMS if FIGURE.search(item)], ids=lambda i: i[2:50]
)
def test_a_figure_has_its_evidence(item: str):
    for figures, link in evidence(item):
        assert link or not figures, f"{figures}: name the record or the log behind them"
        file = (DOCS / link.partition("#")[0]).resolve()
        if file.suffix == ".json":
            numbers = known(file)
            assert [figure for figure in figures if not says(numbers, figure)] == [], link
