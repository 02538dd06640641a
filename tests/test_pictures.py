"""The pictures equal those of the records, are small, and escape texts of models."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from agentrl_cli.core.types import Episode, Message
from tests.builders.report import episode
from tests.paths import ROOT

pytest.importorskip("matplotlib", reason="pictures are drawn with matplotlib (extra: report)")

from bench.results import PLAYERS
from tools import pictures
from tools.results_page import ENVIRONMENTS, load

LARGEST = 150_000  # bytes of a picture
SAID = {
    "forecasts": ["No. Success.", "No. Success.", "Yes. Failure."],
    "critique": "Optimality: No. It tells <little>.",
    "verdict": False,
    "refined": "Maybe a cat.\nIs it small?",
}


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter() if node.text]


@pytest.mark.slow
def test_stored_pictures_are_current():
    stored = {file.stem: file.read_text() for file in (ROOT / "docs" / "images").glob("*.svg")}
    assert max(map(len, stored.values())) < LARGEST
    drawn = pictures.figures()
    assert drawn.keys() | {"episode"} == stored.keys()
    assert drawn == {name: stored[name] for name in drawn}, "make pictures"


def test_every_run_has_a_curve():
    for env in ENVIRONMENTS:
        played = [row for row in load(env) if row["algo"] in PLAYERS and not row["variant"]]
        curves = load(f"{env}_curves")
        found = {(row["algo"], row["seed"]) for row in curves}
        assert found == {(row["algo"], row["seed"]) for row in played}
        for row in curves:
            assert row["episodes"][0] == row["seconds"][0] == 0
            assert len(row["success"]) == len(row["episodes"]) == len(row["seconds"])


def test_picture_shows_the_critic():
    shown = texts(pictures.picture(judged(), "nlac, seed 3"))
    assert any("it is: cat" in text and "nlac, seed 3" in text for text in shown)
    assert any("2 of 3" in text and "No. Success." in text for text in shown)
    assert "Optimality: No. It tells <little>." in shown
    assert shown.count("Maybe a cat. Is it small?") == 3  # a refinement where the critique says No
    assert shown[-1] == "You win."


def judged() -> Episode:
    found = episode("cat", 0, 1)
    found.turns = [*(episode("cat", 0, 1).turns[0] for _ in range(3)), found.turns[1]]
    for turn in found.turns:
        turn.info["critic"] = {**SAID, "verdict": turn is found.turns[-1]}
    found.final_observation = [Message("user", "You win.")]
    return found
