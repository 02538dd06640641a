"""No verb prints control characters from models, environments or files."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from agentrl_cli.cli.main import app
from agentrl_cli.config.comments import render, settings
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import echo, safe
from agentrl_cli.envs.tau.users import HumanUser
from agentrl_cli.report.summary import final_lines, table
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.loggers import step_line
from agentrl_cli.runs.run import Run
from tests.builders.report import episode, write_run
from tests.builders.runs import Agentrl

ESCAPE = "\x1b[2J\x1b]0;owned\x07"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs whose every text holds escapes."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    write_run(folder / "done", env=f"e{ESCAPE}", k=f"k{ESCAPE}", text=ESCAPE)
    write_run(folder / "dead", env=f"e{ESCAPE}", status="failed")
    meta = folder / "dead" / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "error": f"why {ESCAPE}"}))
    played = [replace(episode("cat", n, 0), id=f"e{n}{ESCAPE}") for n in range(3)]
    for turn in (turn for found in played for turn in found.turns):
        turn.finish_reason = ESCAPE  # type: ignore[assignment]
    episode_files.write(folder / "done" / "episodes" / "eval-000020.jsonl", played)
    return folder


@pytest.mark.parametrize("arguments", [
    ["ls", "runs"], ["show", "runs/done"], ["show", "runs/done", "--episode", ESCAPE],
    ["show", f"runs/{ESCAPE}"], ["report", "runs"], ["train", f"steps={ESCAPE}"],
])  # fmt: skip
def test_no_verb_prints_escapes(
    arguments: list[str], runs: Path, capfd: pytest.CaptureFixture[str]
):
    if arguments[0] == "report":
        pytest.importorskip("matplotlib", reason="reports draw with matplotlib (extra: report)")
    with pytest.raises(SystemExit):
        app(arguments)
    shown = capfd.readouterr()
    assert shown.out + shown.err and not set(shown.out + shown.err) & set(ESCAPE[0] + ESCAPE[-1])
    if arguments[0] != "train":
        assert "owned" in shown.out + shown.err or arguments[:2] == ["ls", "runs"]


def test_terminal_gets_no_escapes(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("agentrl_cli.cli.main.terminal_width", lambda: 80)
    monkeypatch.setattr("agentrl_cli.report.episode.painted", "\n".join)  # has colours
    with pytest.raises(SystemExit):
        app(["show", "runs/done"])
    shown = capfd.readouterr().out
    assert "turn 1" in shown and ESCAPE[0] not in shown


def test_human_user_sees_no_escapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stdin", io.StringIO("Yes.\n"))
    assert HumanUser(f"You want {ESCAPE}.").start().text == "Yes."
    assert "\x1b" not in capsys.readouterr().err


def test_metrics_and_errors_are_made_safe(capsys: pytest.CaptureFixture[str]):
    assert "\x1b" not in step_line(1, 2, {f"reward/{ESCAPE}": 1.0})
    echo(UserError(f"a\tb\n\ud800{ESCAPE}"), err=True)
    assert capsys.readouterr().err == "a b\n\\ud800\\x1b[2J\\x1b]0;owned\\x07\n"
    assert safe("Größe ┃ 🐟") == "Größe ┃ 🐟"


def test_narrow_terminal_shows_whole_words(agentrl: Agentrl, monkeypatch: pytest.MonkeyPatch):
    cells = [["run", "status", "reward", "success"], ["math-grpo_s1_k7f2", "done", "0.125", "20.0"]]
    lines = table([*cells, ["other", "failed", "", "–"]], "Runs of this folder", width=40)
    assert all(len(line) <= 40 for line in lines)
    words = [*cells[0][1:], *cells[1]]
    assert all(any(text in line for line in lines) for text in words)
    rows, notes = settings(["algo=grpo", "env=courier"])
    narrow, wide = render(rows, notes, 40), render(rows, notes)
    assert yaml.safe_load("\n".join(narrow)) == yaml.safe_load("\n".join(wide))
    assert all(len(line) <= 40 for line in narrow if line.lstrip().startswith("#"))
    monkeypatch.setenv("COLUMNS", "40")
    for verb in ([], ["sweep"]):
        assert all(len(line) <= 40 for line in agentrl(*verb, "--help").stdout.splitlines()
                   if not line.startswith("    agentrl "))  # fmt: skip


def test_result_fits_narrow_terminal(tmp_path: Path):
    run = Run(write_run(tmp_path / "it"))
    for width in (80, 40):
        lines = final_lines(run, width)
        commands = {line for line in lines if line.startswith("  agentrl ")}
        others = {*lines} - commands - {f"run {run.folder}"}
        assert commands and others and all(len(line) <= width for line in others)
