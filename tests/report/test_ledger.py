"""`agentrl show RUN --ledger`: the table of known figures, and the first part that is weak."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl_cli.core import files
from agentrl_cli.report import ledger
from agentrl_cli.report.critic import logged_metrics
from agentrl_cli.report.records import read_records
from agentrl_cli.runs.run import Run
from tests.builders.command_line import agentrl, refused
from tests.builders.report import write_run

WELL = {
    "turns": 20.0, "faulty": 0.4, "hits": 0.75, "false_alarms": 0.25, "mended": 0.5,
    "spoiled": 0.25, "lesson_share": 0.6, "lesson_gain": 0.2, "lesson_gain_low": 0.05,
}  # fmt: skip


def run_with(folder: Path, *ledgers: dict[str, float]) -> Run:
    """A run whose evaluations have these ledgers, at steps 10, 20, ..."""
    run = Run(write_run(folder / "it", algo="nlac"))
    rows, _ = run.readable_metrics()
    more = [
        {
            "step": 10 * (i + 1),
            "eval/test_success": 0.5,
            **{f"ledger/{k}": v for k, v in figures.items()},
        }
        for i, figures in enumerate(ledgers)
    ]
    files.write_jsonl(run.folder / "metrics.jsonl", [*rows, *more])
    return run


def rendered(folder: Path, **changes: float) -> list[str]:
    return ledger.render(ledger.read_ledger(run_with(folder, WELL | changes)))


def test_the_newest_ledger_is_shown_part_by_part(tmp_path: Path):
    run = run_with(tmp_path, WELL | {"faulty": 0.1}, WELL)
    shown = agentrl("show", str(run.folder), "--ledger")
    lines = shown.stdout.splitlines()
    assert shown.exit_code == 0 and lines[0] == "it, step 20: 20 turns measured"
    cells = [[part.strip() for part in line.split("  ") if part.strip()] for line in lines[3:10]]
    assert [row[:4] for row in cells] == [
        ["policy", "first actions that are faulty", "0.40", "20"],
        ["critique", "faulty ones flagged (hits)", "0.75", "8"],
        ["critique", "sound ones flagged (false alarms)", "0.25", "12"],
        ["refiner", "faulty ones mended", "0.50", "8"],
        ["refiner", "sound ones spoiled", "0.25", "12"],
        ["lessons", "turns learnt from", "0.60", "20"],
        ["lessons", "gain over what is drawn", "+0.20", "12"],
    ]
    assert cells[-1][-1] == "lower end from 0 (+0.05)" and lines[-1] == "no part is weak"
    earlier = agentrl("show", str(run.folder), "--ledger", "--step", "10").stdout
    assert earlier.startswith("it, step 10") and "0.10" in earlier


@pytest.mark.parametrize(
    ("changes", "part", "finding"),
    [
        ({"hits": 0.49}, "critique", "misses"),
        ({"hits": 0.49, "false_alarms": 0.9, "lesson_gain_low": -1.0}, "critique", "misses"),
        ({"false_alarms": 0.31, "spoiled": 1.0}, "critique", "flags too many"),
        ({"mended": 0.25, "spoiled": 0.2}, "refiner", "spoils"),  # 2 mended, 2.4 spoiled
        ({"lesson_share": 0.04, "lesson_gain_low": -1.0}, "lessons", "too few"),
        ({"lesson_gain_low": -0.01}, "lessons", "not shown to be better"),
    ],
)
def test_the_first_part_that_is_ill_is_named_with_what_to_do(
    tmp_path: Path, changes: dict[str, float], part: str, finding: str
):
    last = rendered(tmp_path, **changes)[-1]
    assert last.startswith(f"first weak part: the {part}, which ") and finding in last
    assert "; " in last and "algo." in last


@pytest.mark.parametrize(
    "changes",
    [
        {"hits": 0.5, "false_alarms": 0.3, "lesson_share": 0.05, "lesson_gain_low": 0.0},
        {"mended": 0.375, "spoiled": 0.25},  # three turns mended, three spoiled
        {"faulty": 0.0, "hits": 0.0, "mended": 0.0, "spoiled": 0.0},  # no fault to find
        {"faulty": 1.0, "false_alarms": 0.9, "spoiled": 0.9},  # no sound action to spoil
    ],
)
def test_what_is_on_the_line_or_cannot_be_judged_is_not_ill(
    tmp_path: Path, changes: dict[str, float]
):
    assert rendered(tmp_path, **changes)[-1] == "no part is weak"


def test_a_ledger_of_few_turns_says_so(tmp_path: Path):
    assert "too few to judge by" in rendered(tmp_path / "few", turns=19.0)[0]
    assert "too few" not in rendered(tmp_path / "enough", turns=20.0)[0]


def test_a_figure_of_no_turns_is_no_number(tmp_path: Path):
    hits = next(line for line in rendered(tmp_path, faulty=0.0, hits=0.0) if "hits" in line)
    assert "–" in hits and "0.00" not in hits


def test_a_ledger_as_json_says_what_the_table_says(tmp_path: Path):
    run = run_with(tmp_path, WELL | {"hits": 0.25})
    found = json.loads(agentrl("show", str(run.folder), "--ledger", "--json").stdout)
    assert found["figures"] == WELL | {"hits": 0.25} and found["step"] == 10
    assert found["weakness"]["part"] == "critique" and found["weakness"]["remedy"]
    well = ledger.to_json(ledger.read_ledger(run_with(tmp_path / "well", WELL)))
    assert well["weakness"] is None


def test_a_run_without_a_ledger_and_a_ledger_of_an_episode_are_refused(tmp_path: Path):
    run = run_with(tmp_path, WELL)
    bare = write_run(tmp_path / "bare")
    refused(agentrl("show", str(bare), "--ledger"), "run 'bare' has no ledger: algo=nlac writes")
    other = agentrl("show", str(run.folder), "--ledger", "--step", "7")
    refused(other, "run 'it' has no ledger of step 7: ")
    for more in (["--lost"], ["--episode", "t"]):
        refused(agentrl("show", str(run.folder), "--ledger", *more), "--ledger shows no episode; ")


def test_a_report_draws_the_ledger_among_what_critics_knew(tmp_path: Path):
    run_with(tmp_path, WELL)
    named = logged_metrics(read_records([str(tmp_path)]))
    assert "ledger/turns" not in named
    assert {f"ledger/{name}" for name in WELL.keys() - {"turns"}} <= set(named)
