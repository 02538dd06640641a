"""The pictures equal those of the records and are small."""

from __future__ import annotations

import pytest

from tests.paths import ROOT

pytest.importorskip("matplotlib", reason="pictures are drawn with matplotlib (extra: report)")

from bench.results import PLAYERS
from tools import pictures
from tools.results_page import ENVIRONMENTS, load

LARGEST = 150_000  # bytes of a picture


@pytest.mark.slow
def test_stored_pictures_are_current():
    stored = {file.stem: file.read_text() for file in (ROOT / "docs" / "images").glob("*.svg")}
    assert max(map(len, stored.values())) < LARGEST
    drawn = pictures.figures()
    assert drawn == stored, "make pictures"


def test_every_run_has_a_curve():
    for env in ENVIRONMENTS:
        played = [row for row in load(env) if row["algo"] in PLAYERS and not row["variant"]]
        curves = load(f"{env}_curves")
        found = {(row["algo"], row["seed"]) for row in curves}
        assert found == {(row["algo"], row["seed"]) for row in played}
        for row in curves:
            assert row["episodes"][0] == row["seconds"][0] == 0
            assert len(row["success"]) == len(row["episodes"]) == len(row["seconds"])
