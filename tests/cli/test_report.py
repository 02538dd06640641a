"""What a report says of critics, and the command that writes it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from zipfile import ZipFile

import pytest
from agentrl_cli.cli.report import FILE, gather

from agentrl_cli.report import critic
from agentrl_cli.runs import episode_files
from agentrl_cli.training.evaluate import episode_metrics
from tests.builders.report import BASE, BETTER, episode, episodes, write_run
from tests.builders.runs import Agentrl

pytest.importorskip("matplotlib", reason="reports draw with matplotlib (extra: report)")


def test_a_critic_is_held_against_outcomes_by_hand():
    played = [
        episode("cat", 0, 1, critic={"forecasts": ["Success.", "Failure.", "?"], "verdict": True}),
        episode("dog", 0, 0, critic={"forecasts": ["Success.", "Success."], "verdict": True}),
        episode("owl", 0, 0, value=0.25),
        episode("elk", 0, 1, critic={"forecasts": ["?"], "verdict": False}),
    ]
    predictions = critic.predictions(played)
    assert [(p.expected, p.won) for p in predictions] == [(0.5, True), (1.0, False), (0.25, False)]
    assert [p.episode for p in critic.most_wrong(predictions, 2)] == ["t-dog-e00", "t-cat-e00"]
    bins = critic.calibration(predictions)
    assert [(b.low, b.turns, b.won) for b in bins] == [(0.2, 1, 0), (0.4, 1, 1), (0.8, 1, 0)]
    verdicts = critic.verdicts(predictions)
    assert verdicts == critic.Verdicts(2, 1.0, 0.5, None)
    assert critic.verdicts(predictions[2:]) is None


def test_the_command_prints_a_table_and_says_where_the_page_is(agentrl: Agentrl, tmp_path: Path):
    for seed in (0, 1):
        write_run(tmp_path / "runs" / f"grpo-{seed}", seed=seed, final=BASE)
        write_run(tmp_path / "runs" / f"nlac-{seed}", algo="nlac", seed=seed)
    done = agentrl("report", "runs", "--against", "grpo-1")
    assert done.returncode == 0, done.stderr
    assert "62.5 [" in done.stdout and "less grpo [95 %]" in done.stdout
    assert done.stderr.splitlines()[-1] == f"page: {Path('runs') / 'report' / FILE}"
    assert (tmp_path / "runs" / "report" / FILE).is_file()


def test_the_final_results_are_given_as_one_markdown_table(agentrl: Agentrl, tmp_path: Path):
    for seed in (0, 1):
        write_run(tmp_path / "runs" / f"grpo-{seed}", seed=seed, final=BASE)
        write_run(tmp_path / "runs" / f"nlac-{seed}", algo="nlac", seed=seed)
    write_run(tmp_path / "runs" / "other", algo="nlac", k="a|b")
    write_run(tmp_path / "runs" / "dead", algo="rft", status="failed")
    done = agentrl("report", "runs", "--markdown")
    # finals of the sample runs are logged with an interval of 10 points to both sides
    better = "62.5 [52.5, 72.5]"
    assert done.stdout.splitlines() == [
        "| algorithm | base, % | final, %, seeds 0, 1 | gain, points | training seconds |",
        "|---|---|---|---|---|",
        "| grpo | 25.0 | 25.0 [15.0, 35.0], 25.0 [15.0, 35.0] | +0.0 | 60 |",
        f"| nlac | 25.0 | {better}, {better} | +37.5 | 60 |",
        f"| nlac k=a\\|b (seed 0) | 25.0 | {better} | +37.5 | 60 |",
    ]
    assert agentrl("report", "runs", "--markdown", "--json").returncode == 2


def test_a_run_s_interval_is_the_one_that_its_evaluation_logged(tmp_path: Path):
    played = episodes(BETTER)
    write_run(tmp_path / "it")
    measured = episode_metrics(played[::-1])  # tasks in another order than that of their names
    episode_files.write(tmp_path / "it" / "episodes" / "eval-000020.jsonl", played[::-1])
    (row,) = gather([str(tmp_path / "it")]).comparisons[0].rows
    logged = (measured["success"], measured["success_low"], measured["success_high"])
    assert (row.final.mean, row.final.low, row.final.high) == logged


def test_figures_are_given_as_json_and_mistakes_as_exit_code_two(agentrl: Agentrl, tmp_path: Path):
    write_run(tmp_path / "runs" / "young", status="running")
    done = agentrl("report", "young", "--out", "x", "--json")
    assert json.loads(done.stdout)["worlds"][0]["rows"] == []
    assert "still going" in done.stderr and (tmp_path / "x" / FILE).is_file()
    assert agentrl("report", "nowhere").returncode == 2


def test_what_is_printed_for_a_program_writes_nothing(agentrl: Agentrl, tmp_path: Path):
    write_run(tmp_path / "runs" / "it")
    agentrl("report", "runs")
    page = tmp_path / "runs" / "report" / FILE
    page.write_text("as it was")
    before = sorted(tmp_path.rglob("*"))
    for flag in ("--json", "--markdown"):
        done = agentrl("report", "runs", flag)
        assert done.returncode == 0 and done.stdout and "page" not in done.stderr
    assert page.read_text() == "as it was" and sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_the_report_of_one_run_lies_in_it(agentrl: Agentrl, tmp_path: Path):
    write_run(tmp_path / "runs" / "it")
    for ref in ("it", "runs/it", "last"):
        done = agentrl("report", ref)
        assert done.stderr.splitlines()[-1] == f"page: {Path('runs') / 'it' / 'report' / FILE}"
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_report_is_packed_whole_into_one_file(agentrl: Agentrl, tmp_path: Path):
    for seed, name in enumerate(("one", "two")):
        write_run(tmp_path / "runs" / name, seed=seed)
    (tmp_path / "runs" / "report" / "pages").mkdir(parents=True)
    (tmp_path / "runs" / "report" / "pages" / "gone.html").write_text("of another report")
    (tmp_path / "runs" / "report" / "my-gone.svg").write_text("somebody else's")
    done = agentrl("report", "runs", "--zip")
    packed = tmp_path / "runs" / "report" / "report.zip"
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "packed, to be sent: runs/report/report.zip"
    with ZipFile(packed) as archive:
        names, page = archive.namelist(), archive.read("report/report.html").decode()
    links = set(re.findall(r'href="(pages/[^"#]+)', page))
    assert links == {"pages/one.html", "pages/two.html"}
    assert {f"report/{link}" for link in links} < set(names) and "report/curves-1.svg" in names
    assert not any("gone" in name for name in names)
    assert (tmp_path / "runs" / "report" / "my-gone.svg").exists()
