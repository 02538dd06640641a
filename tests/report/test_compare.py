"""Results of groups against hand computation, grouping of runs, and damaged or old runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import fmean

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.files import write_jsonl
from agentrl_cli.report.compare import (
    Report,
    Section,
    gather,
    interval,
    markdown,
    render,
    results,
    settings_table,
)
from agentrl_cli.report.episode import known_end, predictions, texts
from agentrl_cli.report.records import read_records
from agentrl_cli.runs import episode_files
from agentrl_cli.training.evaluate import episode_metrics
from tests.builders.report import BASE, BETTER, break_lines, episodes, write_run


@pytest.fixture
def two(tmp_path: Path) -> Path:
    for seed in (0, 1):
        write_run(tmp_path / f"grpo-{seed}", seed=seed, final=BASE)
        write_run(tmp_path / f"nlac-{seed}", algo="nlac", seed=seed)
    return tmp_path


def report_of(folder: Path) -> Report:
    return gather([str(folder)])


def only(folder: Path, against: str | None = None, threshold: float | None = None) -> Section:
    (section,) = gather([str(folder)], against, threshold).sections
    return section


def test_results_of_a_group_by_hand(two: Path):
    rows = {row.group: row for row in only(two, "grpo").rows}
    nlac = rows["nlac"]
    assert (nlac.seeds, nlac.scores) == ([0, 1], [5 / 8, 5 / 8])
    assert nlac.base is not None and nlac.base.mean == 2 / 8
    assert nlac.final.mean == 5 / 8
    assert nlac.gain is not None and nlac.gain.mean == 3 / 8
    # by task the gains are 1/2, 1/2, 0, 1/2, the same in both seeds
    assert nlac.difference is not None and nlac.difference.mean == pytest.approx(3 / 8)
    assert rows["grpo"].difference is None
    grpo = rows["grpo"].cost
    assert grpo["episodes"] == 200 and grpo["tokens_played"] == 2000
    assert grpo["tokens_read"] == 1600 and grpo["seconds"] == pytest.approx(60)
    assert grpo["seconds_rollout"] == 20 and grpo["seconds_eval"] == 14
    header, first, second = results(only(two, "grpo"))
    assert [row[header.index("base")] for row in (first, second)] == ["25.0", "25.0"]
    assert second[header.index("each seed")] == "62.5 62.5"
    # the standard error over four tasks is 12.5, times Student's 3.182 for three degrees
    assert second[header.index("gain [95 %]")] == "+37.5 [-2.3, +77.3]"


def test_failed_episodes_are_counted(tmp_path: Path):
    folder = write_run(tmp_path / "a", final=BASE)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["eval/test_failed"] = 0.125
    write_jsonl(folder / "metrics.jsonl", rows)
    assert only(tmp_path).rows[0].failed == 0.125


def test_truncated_episodes_do_not_judge_a_critic():
    (won,) = episodes({"cat": [1]}, critic={"forecasts": ["Outcome: success"]})
    assert [(p.expected, p.won) for p in predictions(won)] == [(1, True)]
    assert "reality" in dict(texts(won.turns[0], known_end(won)))
    won.stop = "context"
    assert predictions(won) == [] and "reality" not in dict(texts(won.turns[0], known_end(won)))


def test_failed_run_changes_no_result(two: Path):
    before = only(two, "nlac", threshold=0.399).rows[0]
    dead = write_run(two / "dead", seed=2, status="failed")
    lines = (dead / "metrics.jsonl").read_text().splitlines(keepends=True)
    (dead / "metrics.jsonl").write_text("".join(lines[:4]))
    after = only(two, "nlac", threshold=0.399).rows[0]
    assert after == before and after.cost["episodes"] == 200
    assert after.efficiency is not None and after.efficiency.runs == 2


def test_threshold_uses_mean_of_five_updates(two: Path):
    # the mean of updates n-4 to n is 0.2 + 0.02 (n - 2): 0.40 first at n = 12
    efficiency = only(two, threshold=0.399).rows[0].efficiency
    assert efficiency is not None and (efficiency.reached, efficiency.runs) == (2, 2)
    assert (efficiency.episodes, efficiency.seconds) == (120, 36)
    never = only(two, threshold=0.9).rows[0].efficiency
    assert never is not None and (never.reached, never.episodes) == (0, None)
    halfway = only(two).rows[0].efficiency
    assert halfway is not None and halfway.threshold == pytest.approx((2 / 8 + 5 / 8) / 2)
    record = read_records([str(two / "grpo-0")])[0]
    assert [record.axis(x)[-1] for x in ("episodes", "gradient steps", "seconds")] == [200, 40, 60]


def test_logged_interval_equals_the_recomputed_one(tmp_path: Path):
    played = episodes(BETTER)
    write_run(tmp_path / "it")
    measured = episode_metrics(played[::-1])  # tasks in another order than that of their names
    episode_files.write(tmp_path / "it" / "episodes" / "eval-000020.jsonl", played[::-1])
    (row,) = only(tmp_path).rows
    logged = (measured["success"], measured["success_low"], measured["success_high"])
    assert (row.final.mean, row.final.low, row.final.high) == logged


def test_markdown_table_by_hand(two: Path):
    write_run(two / "other", algo="nlac", k="a|b")
    write_run(two / "dead", algo="rft", status="failed")
    # finals of the sample runs are logged with an interval of 10 points to both sides
    better = "62.5 [52.5, 72.5]"
    report = report_of(two)
    gains = {row.group: interval(row.gain, signed=True) for row in report.sections[0].rows}
    expected = [
        ["grpo", "25.0", "25.0 [15.0, 35.0], 25.0 [15.0, 35.0]", gains["grpo"], "60"],
        ["nlac", "25.0", f"{better}, {better}", gains["nlac"], "60"],
        ["nlac k=a\\|b (seed 0)", "25.0", better, gains["nlac k=a|b"], "60"],
    ]
    assert cells(markdown(report))[2:] == expected
    assert gains["grpo"].startswith("+0.0 [") and gains["nlac"].startswith("+37.5 [")
    header, _, *rows = cells(markdown(gather([str(two)], "grpo")))
    assert header[-1] == "less grpo, points" and [row[:-1] for row in rows] == expected
    less = [row[-1].partition(" [")[0] for row in rows]
    assert less == ["–", "+37.5", "+37.5"]


def cells(table: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in table.splitlines()]


# groups


def test_groups_are_named_by_settings_that_differ(tmp_path: Path):
    write_run(tmp_path / "a", algo="nlac", init=None)
    write_run(tmp_path / "b", algo="nlac", init="elsewhere/base", seed=1)
    write_run(tmp_path / "c", algo="rft", seed=1, hardware={"threads": 1})
    write_run(tmp_path / "d", algo="rft", seed=2, hardware={"threads": 2})
    labels = [row.group for row in only(tmp_path).rows]
    assert labels == ["nlac init=null", "nlac init=elsewhere/base", "rft"]


def test_seeds_that_start_from_their_own_runs_are_one_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for seed in range(3):
        write_run(tmp_path / f"sft-s{seed}", algo="sft", seed=seed)
        init = str(tmp_path / f"sft-s{seed}") if seed else "sft-s0"  # a sibling's name, too
        write_run(tmp_path / f"dpo-s{seed}", algo="dpo", seed=seed, init=init)
    write_run(tmp_path / "sft-long", algo="sft", seed=0, steps=30)
    write_run(tmp_path / "dpo-long", algo="dpo", seed=0, init=str(tmp_path / "sft-long"))
    write_run(tmp_path / "dpo-lost", algo="dpo", seed=0, init="gone")
    section = only(tmp_path)
    found = {g.label: sorted(record.name for record in g.records) for g in section.groups}
    assert ["dpo-s0", "dpo-s1", "dpo-s2"] in found.values()
    assert ["dpo-long"] in found.values() and ["dpo-lost"] in found.values()
    labels = {name.partition("-")[0] for name in found if name.startswith("dpo")}
    assert labels == {"dpo init=sft", "dpo init=gone"}
    for seed in (0, 1):  # the report may be made in another folder than the runs were
        write_run(tmp_path / "runs" / f"own-{seed}", seed=seed, init=f"runs/base-{seed}")
        write_run(tmp_path / "runs" / f"base-{seed}", algo="sft", seed=seed)
    monkeypatch.chdir(tmp_path / "runs")
    (section,) = gather(["own-0", "own-1"]).sections
    assert [len(group.records) for group in section.groups] == [2]


def test_settings_that_some_groups_lack_are_only_counted(tmp_path: Path):
    write_run(tmp_path / "a", algo="rft", lr=0.1, same=1, clip=2)
    write_run(tmp_path / "b", algo="rft", seed=1, lr=0.2, same=1)
    cells, left_out = settings_table(only(tmp_path))
    assert cells == [["setting", "rft clip=2 lr=0.1", "rft lr=0.2"], ["lr", "0.1", "0.2"]]
    assert left_out == 1
    write_run(tmp_path / "c", algo="rft", lr=0.3, same=1, clip=2)
    header, *rows = settings_table(only(tmp_path))[0]
    assert len(header) == 4 and [row[0] for row in rows] == ["lr"]


def test_threshold_needs_a_gain(tmp_path: Path):
    write_run(tmp_path / "a", final={task: [0, 0] for task in BASE})
    assert [row.efficiency for row in only(tmp_path).rows] == [None]


def test_copies_of_a_run_count_once(two: Path):
    shutil.copytree(two / "grpo-1", two / "grpo-1 copy")
    report = report_of(two)
    (row,) = (row for row in report.sections[0].rows if row.group == "grpo")
    assert len(row.scores) == 2 and len(report.notes) == 1 and "'grpo-1 copy'" in report.notes[0]


def test_environments_are_compared_separately(two: Path):
    write_run(two / "else", env="math", seed=5)
    found = report_of(two)
    assert [comparison.label for comparison in found.sections] == ["twentyq", "math"]
    assert len(found.notes) == 1


# mistakes and damage


@pytest.mark.parametrize("threshold", [40, -1, float("nan")])
def test_invalid_threshold_is_refused(two: Path, threshold: float):
    with pytest.raises(UserError, match="--threshold"):
        gather([str(two)], threshold=threshold)


def test_missing_runs_and_references_are_refused(tmp_path: Path):
    with pytest.raises(UserError) as error:
        report_of(tmp_path)
    assert error.value.code == "no-runs"
    write_run(tmp_path / "a")
    with pytest.raises(UserError, match=r"'b'.*grpo") as error:
        gather([str(tmp_path)], against="b")
    assert error.value.code == "unknown-reference"


def test_damaged_metrics_are_used_as_far_as_readable(two: Path):
    break_lines(two / "nlac-0", 3, 4)
    with (two / "nlac-1" / "metrics.jsonl").open("a") as file:
        file.write('[1]\n{"step": "x"}\n\xff\xfe\n{"cut off')
    found = report_of(two)
    assert ["nlac-0" in found.notes[0], " 2 " in found.notes[0]] == [True, True]
    assert ["nlac-1" in found.notes[1], " 3 " in found.notes[1]] == [True, True]
    assert [row.scores for row in found.sections[0].rows] == [[2 / 8] * 2, [5 / 8] * 2]


def test_unfinished_runs_are_noted_and_not_in_the_results(two: Path):
    write_run(two / "young", algo="rft", status="running", seed=3)
    write_run(two / "dead", algo="rft", status="failed", seed=4)
    found = report_of(two)
    assert [row.group for row in found.sections[0].rows] == ["grpo", "nlac"]
    assert ["'young'" in found.notes[0], "'dead'" in found.notes[1]] == [True, True]
    assert report_of(write_run(two / "alone" / "young", status="running").parent).sections
    assert render(report_of(two / "alone"))


def test_run_without_first_episodes_has_its_weight_in_the_base(two: Path):
    (two / "nlac-0" / "episodes" / "eval-000000.jsonl").unlink()
    (row,) = [row for row in only(two, against="grpo").rows if row.group == "nlac"]
    assert row.difference is not None and row.difference.mean == pytest.approx(5 / 8 - 2 / 8)
    bases = [json.loads(next((two / name / "metrics.jsonl").open()))["eval/test_success"]
             for name in ("nlac-0", "nlac-1")]  # fmt: skip
    assert row.base is not None and row.base.mean == pytest.approx(fmean(bases))
    assert row.gain is not None and row.gain.mean == pytest.approx(row.final.mean - fmean(bases))


def test_runs_without_episodes_are_compared_by_means(two: Path):
    for file in (two / "nlac-0" / "episodes").iterdir():
        file.unlink()
    (two / "grpo-0" / "episodes" / "eval-000020.jsonl").write_text("nothing\n")
    (two / "nlac-1" / "config.yaml").write_text("{")
    found = report_of(two)
    finals = {row.group: row.final.mean for comparison in found.sections for row in comparison.rows}
    assert finals["grpo"] == 2 / 8 and finals["nlac"] == 5 / 8
    assert any("config.yaml" in note for note in found.notes)
