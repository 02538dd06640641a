"""What `--dry` predicts and what a run's end says, against hand counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrl_cli.cli.train import start
from agentrl_cli.core.statistics import Interval
from agentrl_cli.core.terminal import tell_tenths
from agentrl_cli.report.summary import comparison, final_table
from tests.builders.runs import SPEAKER, folders, settings, trained


@pytest.mark.parametrize(
    ("algo", "size", "episodes"), [("grpo", 4, 8), ("grpo", 3, 6), ("sft", 1, 8)]
)
def test_dry_counts_whole_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algo: str, size: int, episodes: int
):
    group = [f"algo.episodes_per_group={size}"] if size > 1 else []
    small = settings(tmp_path / "runs", algo, "it", *group, SPEAKER)
    start(small, config_dir=folders(tmp_path), dry=True)
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert rows["episodes a step"].strip() == str(episodes)
    assert rows["episodes in all"].strip() == str(4 * episodes)
    assert not (tmp_path / "runs").exists()


def test_base_and_trained_stand_side_by_side():
    base = {"success": 0.25, "success_low": 0.2, "success_high": 0.3, "turns_to_success": 9.5}
    trained = {"success": 0.5, "success_low": 0.4, "success_high": 0.6, "turns_to_success": 8.0}
    rows = [{f"eval/test_{k}": v for k, v in each.items()} for each in (base, trained)]
    head, success, turns = comparison(rows[0], rows[1], Interval(0.25, 0.1, 0.4))
    assert head.split() == ["base", "trained", "difference"]
    assert success.split()[:3] == ["test", "success", "25.0%"] and "50.0%" in success
    assert success.endswith("+25.0 [+10.0, +40.0]")
    assert turns.split() == ["test", "turns", "to", "success", "9.5", "8.0", "-1.5"]
    assert comparison(rows[0], rows[1])[1].split()[-1] == "+25.0"


def test_a_mean_over_wins_is_a_dash_where_there_are_none():
    none = {"success": 0.0, "success_low": 0.0, "success_high": 0.5, "turns_to_success": 0.0}
    won = {"success": 0.5, "success_low": 0.2, "success_high": 0.8, "turns_to_success": 8.0}
    rows = [{f"eval/test_{k}": v for k, v in each.items()} for each in (none, won)]
    assert comparison(rows[0], rows[1])[2].split() == [
        "test",
        "turns",
        "to",
        "success",
        "–",
        "8.0",
        "–",
    ]


def test_a_run_that_did_not_play_its_start_shows_no_base(tmp_path: Path):
    run = trained(tmp_path, "grpo", "it", "steps=2", "eval_every=1", "eval.baseline=false", SPEAKER)
    _, success, *_ = final_table(run).splitlines()
    assert success.split()[2] == "–" and success.endswith("–") and "%" in success


def test_the_difference_at_the_end_is_paired_by_task(tmp_path: Path):
    run = trained(tmp_path, "grpo", "it", "steps=1", SPEAKER)
    outcomes = [
        {e.id: float(e.success) for e in run.read_episodes("eval", step)} for step in (0, 1)
    ]
    gain = sum(outcomes[1][name] - outcomes[0][name] for name in outcomes[0]) / len(outcomes[0])
    line = final_table(run).splitlines()[1]
    shown = re.escape(f"{100 * gain:+.1f} [")
    assert re.search(shown + r"[+-][\d.]+, [+-][\d.]+\]$", line)


def test_dry_tries_a_hundred_demonstrations_of_however_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    start(["algo=sft", "env=twentyq", "data.demos=expert:100000", "hardware.threads=1"], dry=True)
    shown = capsys.readouterr()
    assert "demonstrations           100 of 100,000 are tried" in shown.out.splitlines()


def test_long_work_is_told_by_its_tenths(capsys: pytest.CaptureFixture[str]):
    for done in range(1, 2001):
        tell_tenths("episodes", done, 2000)
    for done in range(1, 101):
        tell_tenths("few", done, 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "episodes: 200 of 2,000" and len(lines) == 10
