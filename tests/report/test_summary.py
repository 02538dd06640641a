"""The table at the end of a run, NLAC's ledger and `--dry` against hand counts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentrl_cli.cli.train import start
from agentrl_cli.core import files
from agentrl_cli.core.statistics import Interval
from agentrl_cli.core.terminal import echo_progress
from agentrl_cli.report import summary
from agentrl_cli.report.records import critic_metrics, read_records
from agentrl_cli.report.summary import comparison, final_table
from agentrl_cli.runs.run import Run
from tests.builders.command_line import agentrl, refused
from tests.builders.report import write_run
from tests.builders.runs import SPEAKER, folders, settings, trained


@pytest.mark.parametrize(
    ("algo", "size", "episodes"), [("grpo", 4, 8), ("grpo", 3, 6), ("sft", 1, 8)]
)
def test_dry_counts_whole_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algo: str, size: int, episodes: int
):
    group = [f"algo.group_size={size}"] if size > 1 else []
    small = settings(tmp_path / "runs", algo, "it", *group, SPEAKER)
    start(small, config_dir=folders(tmp_path), dry=True)
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert rows["episodes per step"].strip() == str(episodes)
    assert rows["episodes in total"].strip() == str(4 * episodes)
    assert not (tmp_path / "runs").exists()


def test_dry_tries_at_most_hundred_demonstrations(capsys: pytest.CaptureFixture[str]):
    start(["algo=sft", "env=twentyq", "data.demos=expert:100000", "hardware.threads=1"], dry=True)
    assert re.search("^demonstrations +100 of 100,000", capsys.readouterr().out, re.MULTILINE)


def test_base_and_trained_are_compared_by_split():
    base = {"success": 0.25, "success_low": 0.2, "success_high": 0.3, "turns_to_success": 9.5}
    trained = {"success": 0.5, "success_low": 0.4, "success_high": 0.6, "turns_to_success": 8.0}
    rows = [{f"eval/test_{k}": v for k, v in each.items()} for each in (base, trained)]
    _, success, turns = comparison(rows[0], rows[1], Interval(0.25, 0.1, 0.4))
    assert success.split()[2:] == [
        "25.0%", "[20.0,", "30.0]", "50.0%", "[40.0,", "60.0]", "+25.0", "[+10.0,", "+40.0]",
    ]  # fmt: skip
    assert re.split("  +", turns) == ["test turns to success", "9.5", "8.0", "-1.5"]
    assert comparison(rows[0], rows[1])[1].split()[-1] == "+25.0"
    none = dict.fromkeys(rows[0], 0.0)  # no episode was won, so their mean length is unknown
    assert comparison(none, rows[1])[2].split()[-3:] == ["–", "8.0", "–"]


def test_run_without_base_shows_dashes(tmp_path: Path):
    run = trained(tmp_path, "grpo", "it", "steps=2", "eval_every=1", "eval.baseline=false", SPEAKER)
    _, success, *_, last = final_table(run).splitlines()
    assert success.split()[2] == "–" and success.endswith("–") and "%" in success
    assert last.endswith(f"agentrl show {run.folder}")


def test_final_difference_is_paired_by_task(tmp_path: Path):
    run = trained(tmp_path, "grpo", "it", "steps=1", SPEAKER)
    outcomes = [
        {e.id: float(e.success) for e in run.read_episodes("eval", step)} for step in (0, 1)
    ]
    gain = sum(outcomes[1][name] - outcomes[0][name] for name in outcomes[0]) / len(outcomes[0])
    line = final_table(run).splitlines()[1]
    shown = re.escape(f"{100 * gain:+.1f} [")
    assert re.search(shown + r"[+-][\d.]+, [+-][\d.]+\]$", line)


def test_long_work_reports_each_tenth(capsys: pytest.CaptureFixture[str]):
    for done in range(1, 2001):
        echo_progress("episodes", done, 2000)
    for done in range(1, 101):
        echo_progress("few", done, 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "episodes: 200 of 2,000" and len(lines) == 10


# the ledger

WELL = {
    "turns": 20.0, "faulty": 0.4, "hits": 0.75, "false_alarms": 0.25, "mended": 0.5,
    "spoiled": 0.25, "lesson_share": 0.6, "lesson_gain": 0.2, "lesson_gain_low": 0.05,
}  # fmt: skip


def run_with(folder: Path, *ledgers: dict[str, float]) -> Run:
    """A run with these ledgers at steps 10, 20, ..."""
    run = Run(write_run(folder / "it", algo="nlac"))
    rows, _ = run.readable_metrics()
    for n, figures in enumerate(ledgers, start=1):
        ledger = {f"ledger/{key}": value for key, value in figures.items()}
        rows.append({"step": 10 * n, "eval/test_success": 0.5, **ledger})
    files.write_jsonl(run.folder / "metrics.jsonl", rows)
    return run


def test_newest_ledger_is_shown_by_part(tmp_path: Path):
    run = run_with(tmp_path, WELL | {"faulty": 0.1}, WELL)
    lines = agentrl("show", str(run.folder), "--ledger").stdout.splitlines()
    cells = [[part.strip() for part in line.split("  ") if part.strip()] for line in lines[3:10]]
    assert [[row[0], *row[2:4]] for row in cells] == [
        ["policy", "0.40", "20"], ["critique", "0.75", "8"], ["critique", "0.25", "12"],
        ["refiner", "0.50", "8"], ["refiner", "0.25", "12"], ["lessons", "0.60", "20"],
        ["lessons", "+0.20", "12"],
    ]  # fmt: skip
    found = json.loads(agentrl("show", str(run.folder), "--ledger", "--json").stdout)
    assert found == {"run": "it", "step": 20, "figures": WELL, "weakness": None}
    earlier = agentrl("show", str(run.folder), "--ledger", "--step", "10", "--json").stdout
    assert json.loads(earlier)["figures"]["faulty"] == 0.1
    shown = critic_metrics(read_records([str(tmp_path)]))
    assert {f"ledger/{name}" for name in WELL.keys() - {"turns"}} <= set(shown)
    assert "critique/turns" not in shown


@pytest.mark.parametrize(
    ("changes", "weakness"),
    [
        ({"hits": 0.49}, 0),
        ({"hits": 0.49, "false_alarms": 0.9, "lesson_gain_low": -1.0}, 0),
        ({"false_alarms": 0.31, "spoiled": 1.0}, 1),
        ({"mended": 0.25, "spoiled": 0.2}, 2),  # 2 mended, 2.4 spoiled
        ({"lesson_share": 0.04, "lesson_gain_low": -1.0}, 3),
        ({"lesson_gain_low": -0.01}, 4),
        ({"hits": 0.5, "false_alarms": 0.3, "lesson_share": 0.05, "lesson_gain_low": 0.0}, None),
        ({"mended": 0.375, "spoiled": 0.25}, None),  # three turns mended, three spoiled
        ({"faulty": 0.0, "hits": 0.0, "mended": 0.0, "spoiled": 0.0}, None),  # no fault to find
        ({"faulty": 1.0, "false_alarms": 0.9, "spoiled": 0.9}, None),  # no sound action
    ],
)
def test_first_weakness_is_found(tmp_path: Path, changes: dict[str, float], weakness: int | None):
    found = summary.first_weakness(summary.Ledger("it", 10, WELL | changes))
    assert found is (None if weakness is None else summary.WEAKNESSES[weakness])


def test_missing_ledger_is_refused(tmp_path: Path):
    run = str(run_with(tmp_path, WELL).folder)
    refused(agentrl("show", str(write_run(tmp_path / "bare")), "--ledger"), "'bare'")
    refused(agentrl("show", run, "--ledger", "--step", "7"), "7")
    for more in (["--lost"], ["--episode", "t"]):
        refused(agentrl("show", run, "--ledger", *more), "--ledger")
