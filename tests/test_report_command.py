"""What a report says of critics, and the command that writes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl_cli.report import critic
from agentrl_cli.report.command import FILE
from tests.sample_report import BASE, episode, write_run
from tests.sample_runs import Agentrl

pytest.importorskip("matplotlib", reason="reports draw with matplotlib (extra: report)")


def test_a_critic_is_held_against_outcomes_by_hand():
    played = [
        episode("cat", 0, 1, critic={"forecasts": ["Success.", "Failure.", "?"], "verdict": True}),
        episode("dog", 0, 0, critic={"forecasts": ["Success.", "Success."], "verdict": True}),
        episode("owl", 0, 0, value=0.25),
        episode("elk", 0, 1, critic={"forecasts": ["?"], "verdict": False}),
    ]
    said = critic.judgements(played)
    assert [(one.expected, one.came) for one in said] == [(0.5, True), (1.0, False), (0.25, False)]
    assert [one.episode for one in critic.most_wrong(said, 2)] == ["t-dog-e00", "t-cat-e00"]
    bins = critic.calibration(said)
    assert [(b.low, b.turns, b.came) for b in bins] == [(0.2, 1, 0), (0.4, 1, 1), (0.8, 1, 0)]
    verdicts = critic.verdicts(said)
    assert verdicts == critic.Verdicts(2, 1.0, 0.5, None)
    assert critic.verdicts(said[2:]) is None


def test_the_command_prints_a_table_and_says_where_the_page_is(agentrl: Agentrl, tmp_path: Path):
    for seed in (0, 1):
        write_run(tmp_path / "runs" / f"grpo-{seed}", seed=seed, final=BASE)
        write_run(tmp_path / "runs" / f"nlac-{seed}", algo="nlac", seed=seed)
    done = agentrl("report", "runs", "--against", "grpo-1")
    assert done.returncode == 0, done.stderr
    assert "62.5 [" in done.stdout and "less grpo [95 %]" in done.stdout
    assert done.stderr.splitlines()[-1] == f"page: {Path('runs') / 'report' / FILE}"
    assert (tmp_path / "runs" / "report" / FILE).is_file()


def test_figures_are_given_as_json_and_mistakes_as_exit_code_two(agentrl: Agentrl, tmp_path: Path):
    write_run(tmp_path / "runs" / "young", status="running")
    done = agentrl("report", "young", "--out", "x", "--json")
    assert json.loads(done.stdout)["worlds"][0]["rows"] == []
    assert "still going" in done.stderr and (tmp_path / "x" / FILE).is_file()
    assert agentrl("report", "nowhere").returncode == 2
