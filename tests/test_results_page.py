"""docs/results.md and README's small table say what the records in docs/results say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.paths import ROOT
from tools import results_page

OTHER_PAGES = {  # which name their records and quote no figure
    "reliability": "reliability.md", "performance": "performance.md", "gpu": "performance.md",
    "memory_plan": "scaling.md", "wiki_cost": "wiki.md",
}  # fmt: skip
RECORDS = sorted((ROOT / "docs" / "results").glob("**/*.json"))
LEARNING = [file for file in RECORDS if file.stem in ("twentyq", "math", "tau_mini", "wiki")]
PAGE, OLD_PAGE = ((ROOT / "docs" / f"results{old}.md").read_text() for old in ("", "_0.1"))


def test_generated_pages_equal_their_records():
    assert results_page.page() == PAGE, "make results-page"
    assert results_page.old_page() == OLD_PAGE, "make results-page"
    assert results_page.readme() == (ROOT / "README.md").read_text(), "make results-page"


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_record_is_on_the_page(file: Path):
    loaded: list[str] = []

    def load(name: str) -> Any:
        loaded.append(name)
        return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results_page, "load", load)
        results_page.page()
        results_page.old_page()
    if file.stem in OTHER_PAGES:
        assert file.name in (ROOT / "docs" / OTHER_PAGES[file.stem]).read_text()
        return
    name = str(file.relative_to(ROOT / "docs" / "results").with_suffix(""))
    assert name in loaded, f"give {file.name} a section in tools/pages"


@pytest.mark.parametrize("file", LEARNING, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_each_configuration_has_its_row(file: Path):
    """Start, finals with intervals, gain and seconds, computed here once more."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in json.loads(file.read_text()):
        if row["split"] == "test":
            groups.setdefault((row["algo"], row["variant"]), []).append(row)
    page = OLD_PAGE if file.parent.name == results_page.OLD else PAGE
    lines = [numbers(line) for line in page.splitlines() if line.startswith("| ")]
    for configuration, rows in groups.items():
        finals = [100 * row[key] for row in rows for key in ("final", "low", "high")]
        gains = [100 * (row["final"] - row["base"]) for row in rows]
        base = 100 * fmean(row["base"] for row in rows)
        ends = [min(gains), max(gains)] if len(gains) > 1 else []
        expected = [base, *finals, fmean(gains), *ends]
        shown = pytest.approx(expected, abs=0.0501)
        found = [line for line in lines if line[: len(expected)] == shown]
        assert found, f"{configuration} is not on the page"
        seconds = pytest.approx(fmean(row["seconds"] for row in rows), abs=0.501)
        assert any(line[-1] == seconds for line in found)  # of two that learn the same, too


def numbers(line: str) -> list[float]:
    """The numbers of a table's line behind its first cell."""
    cells = re.sub(r"(?<=\d),(?=\d{3}\b)", "", line.split("|", 2)[2]).replace("−", "-")
    return [float(found) for found in re.findall(r"[+-]?\d+(?:\.\d+)?", cells)]
