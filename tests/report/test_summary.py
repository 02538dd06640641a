"""What `--dry` predicts and what a run's end says, against hand counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl_cli.cli.train import start
from agentrl_cli.report.summary import comparison
from tests.builders.runs import SPEAKER, folders, settings


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
    head, success, turns = comparison(*rows)
    assert head.split() == ["base", "trained"]
    assert success.split()[:3] == ["test", "success", "25.0%"] and "50.0%" in success
    assert turns.split() == ["test", "turns", "to", "success", "9.5", "8.0"]
