"""Episode files: one episode is found and read without the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Message, Task, Turn
from agentrl_cli.report.episode import find_episode, render
from agentrl_cli.rollout.replay_buffer import read_episodes
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.run import Run
from tests.builders.errors import user_error


def episode(name: str, *, won: bool = False, **info: Any) -> Episode:
    asked = Turn([Message("user", "é\nAsk.")], "Is it big?", [1], [2], [0.0])
    asked.info = {"kind": "question"}
    guessed = Turn([], "A cat.", [3], [4], [0.0], float(won), info={"success": won, **info})
    return Episode(name, Task(name[:1], "test", {}), name[:1], 0, [asked, guessed])


def made(folder: Path, evaluations: dict[int, dict[str, bool]]) -> Run:
    (folder / "episodes").mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"created": "", "status": "done", "history": []}))
    run = Run(folder)
    for step, outcomes in evaluations.items():
        run.write_episodes("eval", step, [episode(n, won=won) for n, won in outcomes.items()])
    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    episode_files.write(
        tmp_path / "eval-000001.jsonl", [episode("a-0"), episode("b-0", won=True, value=1)]
    )
    return tmp_path / "eval-000001.jsonl"


def test_an_episode_is_read_alone(file: Path):
    first, second = episode_files.search(file)
    assert (second.task, second.success, second.turns) == ("b", True, 2)
    assert (first.annotated, second.annotated) == (False, True)
    assert episode_files.read(file, second) == episode("b-0", won=True, value=1)
    file.write_bytes(b"x" * first.size + file.read_bytes()[first.size :])  # the other is gone
    assert episode_files.read(file, second).id == "b-0"


def test_failed_episode_is_not_won(tmp_path: Path):
    broken = episode("a-0", won=True)
    broken.error = "OSError: cannot close"
    episode_files.write(tmp_path / "eval-000001.jsonl", [broken])
    (entry,) = episode_files.search(tmp_path / "eval-000001.jsonl")
    assert not entry.success and not broken.success


def test_search_skips_other_and_cut_lines(file: Path):
    file.write_text('{"id": "broken\n' + file.read_text() + '{"id": "b-1", "ta')
    assert [entry.id for entry in episode_files.search(file, "b-")] == ["b-0"]
    with user_error("not-episodes", file):
        list(episode_files.search(file))


def test_blank_lines_are_skipped(file: Path):
    first, second = episode_files.read_all(file)
    file.write_text(file.read_text().replace("\n", "\n\n \n"))
    assert episode_files.read_all(file) == read_episodes(file, 9) == [first, second]
    assert [episode_files.read(file, e) for e in episode_files.search(file)] == [first, second]


def test_filters_find_what_was_won_lost_and_changed(tmp_path: Path):
    before = {"a-0": False, "a-1": True, "b-0": False, "b-1": True}
    after = {"a-0": True, "a-1": True, "b-0": False, "b-1": False}
    run = made(tmp_path / "it", {0: before, 20: after})

    def ids(*filters: str, step: int | None = None) -> list[str]:
        return [entry.id for entry in find_episode(run, None, step, filters).entries]

    assert (ids("won"), ids("lost")) == (["a-0", "a-1"], ["b-0", "b-1"])
    assert (ids("changed"), ids("won", "changed")) == (["a-0", "b-1"], ["a-0"])
    assert ids("won", step=0) == ["a-1", "b-1"]
    with pytest.raises(UserError, match="no episode --won --lost"):
        ids("won", "lost")


def test_nonsense_of_a_critic_is_shown():
    game = episode("a-0", critic={"forecasts": [{"x": 1}], "critique": 3, "verdict": [1]})
    text = "\n".join(render(game, "here"))
    assert '{"x": 1}' in text and "unreadable" in text


def test_changed_needs_a_base(tmp_path: Path):
    run = made(tmp_path / "it", {20: {"a-0": True}})
    with pytest.raises(UserError, match=r"--changed .*eval\.baseline"):
        find_episode(run, None, None, ["changed"])
