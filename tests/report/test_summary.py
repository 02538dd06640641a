"""The table at the end of a run, NLAC's critique and `--dry` against hand counts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from agentrl_cli.cli.evaluate import evaluate_command
from agentrl_cli.cli.train import start
from agentrl_cli.core import files
from agentrl_cli.core.statistics import Interval
from agentrl_cli.report import summary
from agentrl_cli.report.records import read_records, shown_metrics
from agentrl_cli.report.summary import comparison, final_lines
from agentrl_cli.runs.run import Run
from tests.builders.command_line import agentrl, refused
from tests.builders.report import BASE, Outcomes, write_run
from tests.builders.runs import SPEAKER, folders, settings, trained


@pytest.mark.parametrize(
    ("algo", "size", "episodes"), [("grpo", 4, 8), ("grpo", 3, 6), ("sft", 1, 8)]
)
def test_dry_counts_whole_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algo: str, size: int, episodes: int
):
    group = [f"algo.group_size={size}"] if size > 1 else []
    small = settings(tmp_path / "runs", algo, "it", *group, SPEAKER)
    start(small, config_dirs=[folders(tmp_path)], dry=True)
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert rows["episodes per step"].strip() == str(episodes)
    assert rows["episodes in total"].strip() == str(4 * episodes)
    assert not (tmp_path / "runs").exists()


def test_base_and_trained_are_compared_by_split():
    base = {"success": 0.25, "success_low": 0.2, "success_high": 0.3, "turns_to_success": 9.5}
    trained = {"success": 0.5, "success_low": 0.4, "success_high": 0.6, "turns_to_success": 8.0}
    rows = [{f"eval/test_{k}": v for k, v in each.items()} for each in (base, trained)]
    _, success, turns = comparison(rows[0], rows[1], Interval(0.25, 0.1, 0.4))
    assert success.split()[2:] == [
        "25.0%", "[20.0,", "30.0]", "50.0%", "[40.0,", "60.0]", "+25.0", "[+10.0,", "+40.0]",
    ]  # fmt: skip
    assert re.split("  +", turns) == ["test turns to win", "9.5", "8.0", "-1.5"]
    assert comparison(rows[0], rows[1])[1].split()[-1] == "+25.0"
    _, success, turns = comparison(None, rows[1])  # without an evaluation before training
    assert success.split()[2:] == ["–", "50.0%", "[40.0,", "60.0]", "–"]
    assert turns.split()[-3:] == ["–", "8.0", "–"]
    none = dict.fromkeys(rows[0], 0.0)  # no episode was won, so their mean length is unknown
    assert comparison(none, rows[1])[2].split()[-3:] == ["–", "8.0", "–"]


def test_final_difference_is_paired_by_task(tmp_path: Path):
    run = trained(tmp_path, "grpo", "it", "steps=1", SPEAKER)
    outcomes = [
        {e.id: float(e.success) for e in run.read_episodes("eval", step)} for step in (0, 1)
    ]
    gain = sum(outcomes[1][name] - outcomes[0][name] for name in outcomes[0]) / len(outcomes[0])
    line = final_lines(run)[1]
    shown = re.escape(f"{100 * gain:+.1f} [")
    assert re.search(shown + r"[+-][\d.]+, [+-][\d.]+\]$", line)


def test_evaluation_shows_the_table_of_the_run(tmp_path: Path):
    run = trained(tmp_path, "grpo", "it", "steps=1", "eval.greedy=false", SPEAKER)
    shown: list[list[str]] = []
    for more in ([], ["eval.tasks=1"]):
        evaluate_command(str(run.folder), more, show=lambda record, lines: shown.append(lines))
    table = summary.result_table(run)
    assert len(table) > 1 and shown[0][1 : 1 + len(table)] == table
    (success,) = (line for line in shown[1] if line.startswith("test success"))
    assert success.count("[") == 1  # of other episodes than those before training


@pytest.mark.parametrize(
    ("final", "verbs"),
    [
        ({task: [1, 1] for task in BASE}, ["show", "train"]),
        (BASE, ["show", "resume"]),
        ({task: [0, 0] for task in BASE}, ["show", "resume"]),  # two of eight were won before
    ],
)
def test_next_commands_depend_on_the_gain(tmp_path: Path, final: Outcomes, verbs: list[str]):
    run = Run(write_run(tmp_path / "it", final=final))
    found = summary.result(run)
    assert found is not None and found.gain is not None
    commands = [command for _, command in summary.next_commands(run, found)]
    assert [command.split()[1] for command in commands] == verbs
    assert ("--changed" in commands[0]) is (found.gain.low > 0)
    worse = replace(found, gain=Interval(-0.3, -0.5, -0.1))
    assert "algo.optimizer.lr" in list(summary.next_commands(run, worse))[-1][1]
    found.record.config["algo"] = {"ppo": {"optimizer": {}}}  # of stepagent_inverse
    assert "algo.ppo.optimizer.lr" in list(summary.next_commands(run, worse))[-1][1]


@pytest.mark.parametrize(("init", "next_init"), [
    ("runs/sft_s0", " seed=1 init=runs/sft_s1 "), ("runs/base", " seed=1 "), (None, " seed=1 ")
])  # fmt: skip
def test_next_seed_starts_from_the_run_of_that_seed(tmp_path: Path, init: str, next_init: str):
    final = {task: [1, 1] for task in BASE}
    found = summary.result(run := Run(write_run(tmp_path / "it", final=final, init=init)))
    assert found is not None
    (_, (_, command)) = summary.next_commands(run, found)
    assert next_init in f"{command} " and command.count("init=") == next_init.count("init=")


# accuracy of the critique

TURNS, FAULTY, RECALL = (f"critique/{name}" for name in ("turns", "faulty", "recall"))
FALSE, FIX, BREAK = "critique/false_positive_rate", "refinement/fix_rate", "refinement/break_rate"
SHARE, GAIN = "refinement/target_share", "refinement/target_gain_low"
WELL = {
    TURNS: 20.0, FAULTY: 0.4, RECALL: 0.75, FALSE: 0.25, FIX: 0.5, BREAK: 0.25, SHARE: 0.6,
    "refinement/target_gain": 0.2, GAIN: 0.05,
}  # fmt: skip


def run_with(folder: Path, *measured: dict[str, float]) -> Run:
    run = Run(write_run(folder / "it", algo="nlac"))
    rows, _ = run.readable_metrics()
    for n, figures in enumerate(measured, start=1):
        rows.append({"step": 10 * n, "eval/test_success": 0.5, **figures})
    files.write_jsonl(run.folder / "metrics.jsonl", rows)
    return run


def test_newest_critique_is_shown_by_part(tmp_path: Path):
    run = run_with(tmp_path, WELL | {"critique/faulty": 0.1}, WELL)
    lines = agentrl("show", str(run.folder), "--critique").stdout.splitlines()
    cells = [[part.strip() for part in line.split("  ") if part.strip()] for line in lines[3:10]]
    assert [[row[0], *row[2:4]] for row in cells] == [
        ["policy", "0.40", "20"], ["critique", "0.75", "8"], ["critique", "0.25", "12"],
        ["refinement", "0.50", "8"], ["refinement", "0.25", "12"],
        ["training targets", "0.60", "20"], ["training targets", "+0.20", "12"],
    ]  # fmt: skip
    found = json.loads(agentrl("show", str(run.folder), "--critique", "--json").stdout)
    assert found == {"run": "it", "step": 20, "figures": WELL, "weakness": None}
    earlier = agentrl("show", str(run.folder), "--ledger", "--step", "10", "--json").stdout
    assert json.loads(earlier)["figures"]["critique/faulty"] == 0.1
    shown = shown_metrics(read_records([str(tmp_path)]))["critic"]
    assert WELL.keys() - {"critique/turns"} <= set(shown)
    assert "critique/turns" not in shown


@pytest.mark.parametrize(
    ("changes", "weakness"),
    [
        ({RECALL: 0.49}, RECALL),
        ({RECALL: 0.49, FALSE: 0.9, GAIN: -1.0}, RECALL),
        ({FALSE: 0.31, BREAK: 1.0}, FALSE),
        ({FIX: 0.25, BREAK: 0.2}, BREAK),  # 2 fixed, 2.4 broken
        ({SHARE: 0.04, GAIN: -1.0}, SHARE),
        ({GAIN: -0.01}, GAIN),
        ({RECALL: 0.5, FALSE: 0.3, SHARE: 0.05, GAIN: 0.0}, None),
        ({FIX: 0.375, BREAK: 0.25}, None),  # three turns fixed, three broken
        ({FAULTY: 0.0, RECALL: 0.0, FIX: 0.0, BREAK: 0.0}, None),  # no fault to find
        ({FAULTY: 1.0, FALSE: 0.9, BREAK: 0.9}, None),  # no sound action
    ],
)
def test_first_weakness_is_found(changes: dict[str, float], weakness: str | None):
    assert summary.first_weakness(WELL | changes) == weakness
    assert weakness is None or weakness in yaml.safe_load(summary.WEAKNESSES.read_text())


def test_missing_critique_is_refused(tmp_path: Path):
    run = str(run_with(tmp_path, WELL).folder)
    refused(agentrl("show", str(write_run(tmp_path / "bare")), "--critique"), "'bare'")
    refused(agentrl("show", run, "--critique", "--step", "7"), "7")
    for more in (["--lost"], ["--episode", "t"]):
        refused(agentrl("show", run, "--critique", *more), "--critique")
