"""Damaged runs and unknown folders: one sentence, and all other runs are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.report.compare import gather
from agentrl_cli.report.episode import find_episode
from agentrl_cli.report.page import run_page
from agentrl_cli.report.records import read_records
from agentrl_cli.runs.find import find_run, folders_of_runs
from agentrl_cli.runs.run import Run
from tests.builders.command_line import agentrl, refused
from tests.builders.report import write_run

LONG = "x" * 300


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with runs `a` and `b` in it."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("ab"):
        write_run(tmp_path / "runs" / name, seed=seed)
    return tmp_path


BAD = ["", '{"hello": 1}', "[]", '{"status": 1, "created": "", "history": []}',
       '{"status": "", "created": "", "history": [], "choices": "x"}']  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_unreadable_run_hides_no_other(here: Path, text: str):
    (here / "runs" / "b" / "meta.json").write_text(text)
    listed = agentrl("ls")
    assert (listed.exit_code, listed.stdout.split()[5]) == (0, "a")
    assert len(listed.stdout.splitlines()) == 2
    (warning,) = listed.stderr.splitlines()
    assert "'runs/b/meta.json'" in warning
    assert agentrl("show", "a").exit_code == agentrl("show", "last").exit_code == 0
    assert [record.name for record in read_records(["runs"])] == ["a"]
    for verb in ("show", "report"):
        refused(agentrl(verb, "runs/b"), "'runs/b/meta.json'")


@pytest.mark.parametrize("line", [b'{"garb', b"5", b"\xff\xfe", b'{"step": "x"}'])
def test_damaged_metrics_hide_no_run(here: Path, line: bytes):
    file = here / "runs" / "b" / "metrics.jsonl"
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([*lines[:2], line, *lines[3:]]))
    listed = agentrl("ls", "--json")
    assert [row["eval"] for row in json.loads(listed.stdout)] == [5 / 8, 5 / 8]
    assert "'b'" in listed.stderr and " 1 " in listed.stderr
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
        Run(here / "runs" / "b").metrics()


def spoil_metrics(run: Path, **entries: object) -> None:
    rows = files.read_jsonl(run / "metrics.jsonl")
    files.write_jsonl(run / "metrics.jsonl", [*rows[:-1], rows[-1] | entries])


def spoil_episode(run: Path, **entries: object) -> None:
    file = run / "episodes" / "eval-000020.jsonl"
    first, *others = files.read_jsonl(file)
    first["turns"][0] |= entries
    files.write_jsonl(file, [first, *others])


SPOILED = {
    "no final success": lambda run: spoil_metrics(run, **{"eval/test_success": None}),
    "a success in words": lambda run: spoil_metrics(run, **{"eval/test_success": "high"}),
    "a number beyond floats": lambda run: spoil_metrics(run, **{"time/eval": 10**400}),
    "a step beyond floats": lambda run: spoil_metrics(run, step=10**400),
    "a nested line": lambda run: (run / "metrics.jsonl").write_text("[" * 100_000 + "\n"),
    "a binary configuration": lambda run: (run / "config.yaml").write_bytes(b"\xff\x00"),
    "a nested configuration": lambda run: (run / "config.yaml").write_text("[" * 100_000),
    "steps in a list": lambda run: (run / "config.yaml").write_text("steps: [20]"),
    "a nested episode": lambda run: next(run.rglob("*20.jsonl")).write_text("[" * 100_000 + "\n"),
    "an episode's ids": lambda run: spoil_episode(run, action_ids=None),
    "an episode's info": lambda run: spoil_episode(run, info=[]),
    "a critic's numbers": lambda run: spoil_episode(run, info={"value": "red", "thoughts": 5}),
    "a critic's forecasts": lambda run: spoil_episode(run, info={"critic": {"forecasts": 5}}),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_report_of_a_damaged_run_never_crashes(here: Path, spoil: Callable[[Path], object]):
    spoil(here / "runs" / "b")
    try:
        compared = gather(["runs"]).sections
        assert [row.scores[0] for row in compared[0].rows] == [5 / 8]  # a's, and b's behind it
        for record in read_records(["runs"]):
            run_page(record, "")
    except UserError as error:
        assert "runs/b" in str(error) and "\n" not in str(error)


def test_stray_files_are_ignored(here: Path):
    run = Run(here / "runs" / "b")
    before = run.episode_files()
    for name in ("eval-copy.jsonl", "eval-²².jsonl", "notes-.jsonl", "eval.jsonl"):
        (run.folder / "episodes" / name).touch()
    for name in ("step-old", "step-000010"):
        (run.folder / "checkpoints" / name).mkdir(parents=True)
    assert run.episode_files() == before and len(before) == 2
    assert [folder.name for folder in run.checkpoints()] == ["step-000010"]
    assert find_episode(run, None, None).file == before[-1]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["show", LONG], LONG),
        (["report", LONG], LONG),
        (["ls", LONG], LONG),
        (["list", "algo", "--config-dir", LONG], LONG),
        (["ls", "nosuch"], "nosuch"),
        (["ls", "a.txt"], "a.txt"),
        (["reproduce", "twentyq_rft", "--folder", "a.txt"], "a.txt"),
        (["reproduce", "twentyq_rft", "--folder", LONG], LONG),
        (["reproduce", "all", "--smoke", "--folder", "a.txt"], "a.txt/smoke"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_unknown_folder_is_refused(here: Path, arguments: list[str], value: str):
    (here / "a.txt").write_text("text")
    refused(agentrl(*arguments), value)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["play", "--run", "a", "--script", "f"], "--script"),
        (["play", "--run", "a", "--config-dir", "d"], "--config-dir"),
        (["play", "--run", "a", "--json"], "--json"),
        (["eval", "a", "--config-dir", "d"], "--config-dir"),
        (["train", "--config", "f", "--config-dir", "d"], "--config-dir"),
        (["train", "--config", "f", "--cfg", "job"], "--cfg"),
        (["sweep", "seed=0,1", "--jobs", "0"], "--jobs"),
        (["report", "runs", "--threshold", "40"], "--threshold"),
        (["report", "runs", "--json", "--markdown"], "--markdown"),
        (["show", "a", "--won", "--lost"], "--lost"),
        (["export", "a"], "--inspect"),
        (["export", "a", "out", "--inspect", "x"], "--inspect"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_conflicting_options_are_refused(arguments: list[str], value: str):
    refused(agentrl(*arguments), value)


def test_nested_runs_are_named_in_errors(here: Path):
    (here / "runs").rename(here / "grid")
    (here / "runs").mkdir()
    (here / "grid").rename(here / "runs" / "grid")
    (here / "runs" / "grid" / "a" / "copy").mkdir()
    (here / "runs" / "grid" / "a" / "copy" / "meta.json").write_text("{}")
    assert folders_of_runs(Path("runs")) == {Path("runs/grid"): 2}
    assert folders_of_runs(Path("runs/grid")) == {}
    listed = agentrl("ls")
    assert listed.stdout.split() == ["folder", "runs", "runs/grid", "2"]
    assert listed.exit_code == 0 and listed.stderr == ""
    refused(agentrl("show", "runs/grid"), "runs/grid/a, runs/grid/b")
    for ref in ("last", "a", "README.md"):
        refused(agentrl("show", ref), "runs/grid")
    refused(agentrl("report", "runs"), "runs/grid")
    assert find_run("runs/grid/a").name == "a"
