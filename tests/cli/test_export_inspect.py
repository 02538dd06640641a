"""The evaluation of a run as a log of Inspect, by its fields and read by Inspect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl_cli.core.types import Episode, Message, Task, Turn
from agentrl_cli.runs.run import Run
from tests.builders.command_line import agentrl, refused
from tests.builders.report import write_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with an evaluation of two episodes of one task and a broken one."""
    made = Run(write_run(tmp_path / "runs" / "it"))
    seen = [Message("system", "Play."), Message("user", "Well?")]
    info = {"advantage": 0.25, "critic": {"critique": "it repeats"}}
    first = Turn(seen, "Is it alive?", [1, 2], [3], [-0.5], info=info)
    won = Turn([Message("tool", "Yes.")], "A cat.", [4], [5], [-0.1], 1.0, True,
               info={"success": True})  # fmt: skip
    task, other = Task("cat", "test", {}), Task("dog", "test", {})
    closing = [Message("user", "You win.")]
    played = [
        Episode("cat-e00", task, "cat", 7, [first, won], stop="done", final_observation=closing),
        Episode("cat-e01", task, "cat", 8, [first], stop="context"),
        Episode("dog-e00", other, "dog", 9, [first], stop="error", error="ValueError: boom"),
    ]
    made.write_episodes("eval", 99, played)
    return made


def exported(run: Run, folder: Path) -> Path:
    result = agentrl("export", str(run.folder), "--inspect", str(folder))
    (file,) = folder.iterdir()
    assert result.exit_code == 0 and result.stdout == f"{file}\n", result.output
    assert result.stderr.startswith("3 ") and str(folder) in result.stderr
    return file


def test_each_episode_is_a_sample(run: Run, tmp_path: Path):
    log = json.loads(exported(run, tmp_path / "logs").read_text())
    first, again, broken = log["samples"]
    assert [m["role"] for m in first["messages"]] == [
        "system", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    assert (first["id"], first["epoch"], again["epoch"]) == ("cat", 1, 2)
    assert first["input"] == "Well?" and first["output"]["choices"][0]["stop_reason"] == "stop"
    assert first["scores"] == {"success": {"value": "C"}, "reward": {"value": 1.0}}
    assert first["metadata"]["turns"][0]["critic"] == {"critique": "it repeats"}
    assert broken["error"]["message"] == "ValueError: boom" and "error" not in first
    means = [score["metrics"]["mean"]["value"] for score in log["results"]["scores"]]
    assert means == pytest.approx([1 / 3, 1 / 3]) and log["eval"]["config"] == {"epochs": 2}


@pytest.mark.extras
def test_inspect_reads_the_log(run: Run, tmp_path: Path):
    inspect_log = pytest.importorskip("inspect_ai.log", reason="needs inspect_ai (extra: inspect)")
    file = exported(run, tmp_path / "logs")
    log = inspect_log.read_eval_log(str(file))
    assert (log.status, log.results.total_samples) == ("success", 3)
    first, again, broken = log.samples
    assert first.messages[2].role == "assistant" and first.messages[2].text == "Is it alive?"
    assert first.scores["success"].value == "C" and first.scores["reward"].value == 1.0
    assert again.epoch == 2 and broken.error.message == "ValueError: boom"
    (info,) = inspect_log.list_eval_logs(str(tmp_path / "logs"))
    assert info.name.endswith(file.name) and info.task == "twentyq"


def test_impossible_export_is_refused(run: Run, tmp_path: Path):
    name = str(run.folder)
    file = exported(run, tmp_path / "logs")
    refused(agentrl("export", name, "--inspect", str(tmp_path / "logs")), f"'{file}'")
    young = write_run(tmp_path / "young", status="running")
    for file in (young / "episodes").glob("*"):
        file.unlink()
    refused(agentrl("export", str(young), "--inspect", "x"), "'young'")
