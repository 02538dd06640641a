"""README's pictures are drawn from runs, are small, and let no text of a model be markup."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from agentrl_cli.core.types import Episode, Message
from agentrl_cli.runs import episode_files
from tests.builders.report import BASE, BETTER, episode, write_run
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


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter() if node.text]


def test_the_stored_pictures_are_small():
    sizes = {file.name: file.stat().st_size for file in (ROOT / "docs" / "images").iterdir()}
    assert {"curves.svg", "episode.svg"} <= sizes.keys()
    assert max(sizes.values()) < LARGEST


def test_curves_of_three_seeds_of_three_algorithms_are_one_small_picture(tmp_path: Path):
    runs = [
        write_run(tmp_path / f"{algo}-s{seed}", algo=algo, seed=seed, final=final)
        for algo, final in zip(pictures.ALGOS, (BETTER, BASE, BETTER), strict=True)
        for seed in pictures.SEEDS
    ]
    assert all(map(pictures.is_done, runs))
    drawn = pictures.curves(runs)
    assert drawn == pictures.curves(runs) and len(drawn) < LARGEST
    assert ElementTree.fromstring(drawn).tag.endswith("svg")


def test_an_episode_s_picture_says_what_the_critic_said():
    shown = texts(pictures.picture(judged(), "nlac, seed 3"))
    assert "Find the hidden object (it is: cat). nlac, seed 3, a test game, won." in shown
    assert "2 of 3 end in success; most often: No. Success." in shown
    assert "Optimality: No. It tells <little>." in shown
    assert shown.count("Maybe a cat. Is it small?") == 3  # a refinement where the critique says No
    assert shown[-1] == "You win."


def test_the_episode_is_won_judged_at_every_turn_and_has_both_verdicts(tmp_path: Path):
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


def test_a_run_that_was_left_half_way_is_not_trained_over(tmp_path: Path):
    run = write_run(tmp_path / "nlac-s0", algo="nlac", status="stopped")
    with pytest.raises(SystemExit, match="not done"):
        pictures.train(run, "nlac", 0)


def judged() -> Episode:
    """Four turns with critiques, the last of which approves; won."""
    found = episode("cat", 0, 1)
    found.turns = [*(episode("cat", 0, 1).turns[0] for _ in range(3)), found.turns[1]]
    for turn in found.turns:
        turn.info["critic"] = {**SAID, "verdict": turn is found.turns[-1]}
    found.closing = [Message("user", "You win.")]
    return found
