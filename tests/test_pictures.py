"""The pictures are drawn from the records, are small, and let no text of a model be markup."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl_cli.core.types import Episode, Message
from agentrl_cli.runs import episode_files
from tests.builders.report import episode, write_run
from tests.paths import ROOT

pytest.importorskip("matplotlib", reason="pictures are drawn with matplotlib (extra: report)")

from tools import pictures

LARGEST = 150_000  # bytes of a picture
SAID = {
    "forecasts": ["No. Success.", "No. Success.", "Yes. Failure."],
    "critique": "Optimality: No. It tells <little>.",
    "verdict": False,
    "refined": "Maybe a cat.\nIs it small?",
}


def test_stored_pictures_equal_their_records():
    stored = {file.stem: file.read_text() for file in (ROOT / "docs" / "images").glob("*.svg")}
    assert max(map(len, stored.values())) < LARGEST
    drawn = pictures.curves()
    assert drawn.keys() | {"episode"} == stored.keys()
    assert drawn == {name: stored[name] for name in drawn}, "make pictures"


def test_picked_episode_has_both_verdicts(tmp_path: Path):
    run = write_run(tmp_path / "nlac-s0", algo="nlac")
    lost, half = judged(), judged()
    lost.turns[-1].info["success"] = False
    del half.turns[1].info["critic"]
    found = [episode("dog", 0, 1), lost, half, judged()]
    for number, one in enumerate(found):
        one.id = f"e{number}"
    episode_files.write(run / "episodes" / "eval-000020.jsonl", found)
    assert pictures.pick(run).id == "e3"
    episode_files.write(run / "episodes" / "eval-000020.jsonl", found[:3])
    with pytest.raises(SystemExit, match="no episode"):
        pictures.pick(run)


def judged() -> Episode:
    """Four turns with critiques, the last of which approves; won."""
    found = episode("cat", 0, 1)
    found.turns = [*(episode("cat", 0, 1).turns[0] for _ in range(3)), found.turns[1]]
    for turn in found.turns:
        turn.info["critic"] = {**SAID, "verdict": turn is found.turns[-1]}
    found.closing = [Message("user", "You win.")]
    return found
