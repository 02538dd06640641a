"""Folders that are no runs, or no longer quite: one sentence, and the other runs are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from agentrl_cli.cli.report import gather

from agentrl_cli.cli.reproduce import reproduce
from agentrl_cli.config.compose import conf_folder, groups
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.report.episode import find_episode
from agentrl_cli.report.page import run_page
from agentrl_cli.report.records import read_records
from agentrl_cli.runs.find import find_run, folders_of_runs, list_runs
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


BAD = {
    "empty": "",
    "foreign": '{"hello": 1}',
    "a list": "[]",
    "no text": '{"status": 1, "created": "", "history": []}',
    "no choices": '{"status": "", "created": "", "history": [], "choices": "x"}',
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_run_that_cannot_be_read_is_named_and_the_others_are_shown(here: Path, text: str):
    (here / "runs" / "b" / "meta.json").write_text(text)
    listed = agentrl("ls")
    assert (listed.exit_code, listed.stdout.split()[6]) == (0, "a")
    assert len(listed.stdout.splitlines()) == 2
    (told,) = listed.stderr.splitlines()
    assert told.startswith("left out: 'runs/b/meta.json'")
    assert agentrl("show", "a").exit_code == agentrl("show", "last").exit_code == 0
    assert [record.name for record in read_records(["runs"])] == ["a"]
    refused(agentrl("show", "runs/b"), "'runs/b/meta.json'")
    refused(agentrl("report", "runs/b"), "'runs/b/meta.json'")


def test_it_is_named_once_however_often_the_folder_is_listed(
    here: Path, capsys: pytest.CaptureFixture[str]
):
    (here / "runs" / "b" / "meta.json").write_text("{}")
    for _ in range(2):
        assert [run.name for run in list_runs(here / "runs")] == ["a"]
    assert capsys.readouterr().err.count("left out") == 1


@pytest.mark.parametrize("line", [b'{"garb', b"5", b"\xff\xfe", b'{"step": "x"}'])
def test_a_damaged_line_of_metrics_hides_no_run(here: Path, line: bytes):
    file = here / "runs" / "b" / "metrics.jsonl"
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([*lines[:2], line, *lines[3:]]))
    listed = agentrl("ls", "--json")
    assert [row["eval"] for row in json.loads(listed.stdout)] == [5 / 8, 5 / 8]
    assert listed.stderr == "run 'b': unreadable lines of metrics.jsonl left out: 1\n"
    with pytest.raises(UserError, match=r"is damaged \(unreadable lines: 1\)"):
        Run(here / "runs" / "b").metrics()


def spoil_metrics(run: Path, **entries: object) -> None:
    rows = files.read_jsonl(run / "metrics.jsonl")
    files.write_jsonl(run / "metrics.jsonl", [*rows[:-1], rows[-1] | entries])


def spoil_episode(run: Path, **entries: object) -> None:
    file = run / "episodes" / "eval-000020.jsonl"
    first, *others = files.read_jsonl(file)
    first["turns"][0] |= entries
    files.write_jsonl(file, [first, *others])


def spoil_index(run: Path, place: int, value: object) -> None:
    file = run / "episodes" / "eval-000020.index.json"
    content = files.read_json(file)
    content["episodes"][0][place] = value
    files.write_json(file, content)


SPOILED = {
    "no final success": lambda run: spoil_metrics(run, **{"eval/test_success": None}),
    "a success in words": lambda run: spoil_metrics(run, **{"eval/test_success": "high"}),
    "a number beyond floats": lambda run: spoil_metrics(run, **{"time/eval": 10**400}),
    "a step beyond floats": lambda run: spoil_metrics(run, step=10**400),
    "a nested line": lambda run: (run / "metrics.jsonl").write_text("[" * 100_000 + "\n"),
    "a binary configuration": lambda run: (run / "config.yaml").write_bytes(b"\xff\x00"),
    "a nested configuration": lambda run: (run / "config.yaml").write_text("[" * 100_000),
    "steps in a list": lambda run: (run / "config.yaml").write_text("steps: [20]"),
    "a nested index": lambda run: next(run.rglob("*20.index.json")).write_text("[" * 100_000),
    "an id of the index": lambda run: spoil_index(run, 0, None),
    "a place in the index": lambda run: spoil_index(run, 2, -1),
    "an episode's ids": lambda run: spoil_episode(run, action_ids=None),
    "an episode's info": lambda run: spoil_episode(run, info=[]),
    "a critic's numbers": lambda run: spoil_episode(run, info={"value": "red", "thoughts": 5}),
    "a critic's forecasts": lambda run: spoil_episode(run, info={"critic": {"forecasts": 5}}),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_report_is_made_or_refused_in_one_sentence_whatever_a_run_says(
    here: Path, spoil: Callable[[Path], object]
):
    spoil(here / "runs" / "b")
    try:
        compared = gather(["runs"]).comparisons
        assert [row.scores[0] for row in compared[0].rows] == [5 / 8]  # a's, and b's behind it
        for record in read_records(["runs"]):
            run_page(record, "")
    except UserError as error:
        assert "runs/b" in str(error) and "\n" not in str(error)


def test_stray_files_among_episodes_and_checkpoints_are_passed_over(here: Path):
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
    ("arguments", "sentence"),
    [
        (["show", LONG], f"run '{LONG}' not found in 'runs'; see agentrl ls"),
        (["report", LONG], f"run '{LONG}' not found in 'runs'; see agentrl ls"),
        (["ls", LONG], f"'{LONG}' is no folder; name one with runs in it"),
        (["list", "algo", "--config-dir", LONG], f"--config-dir '{LONG}' is not a folder; name"),
        (["ls", "nosuch"], "'nosuch' is no folder; name one with runs in it"),
        (["ls", "a.txt"], "'a.txt' is no folder; name one with runs in it"),
        (["reproduce", "twentyq_rft", "--folder", "a.txt"], "'a.txt' cannot be written (File exi"),
        (["reproduce", "twentyq_rft", "--folder", LONG], f"'{LONG}' cannot be written (File name"),
        (["reproduce", "all", "--smoke", "--folder", "a.txt"], "'a.txt/smoke' cannot be written"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_names_that_no_folder_has_are_one_sentence(here: Path, arguments: list[str], sentence: str):
    (here / "a.txt").write_text("text")
    refused(agentrl(*arguments), sentence)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["play", "--run", "a", "--script", "f"], "--run and --script both name who plays; give o"),
        (["play", "--run", "a", "--config-dir", "d"], "run 'a' plays by its own configuration; le"),
        (["eval", "a", "--config-dir", "d"], "run 'a' is evaluated by its own configuration; leav"),
        (["train", "--config", "f", "--config-dir", "d"], "--config repeats a run by its own conf"),
        (["sweep", "seed=0,1", "--jobs", "0"], "--jobs is 0; give at least 1"),
        (["report", "runs", "--threshold", "40"], "--threshold is 40.0: a share is at most 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_would_do_nothing_are_refused(arguments: list[str], sentence: str):
    refused(agentrl(*arguments), sentence)


def test_runs_in_a_folder_of_runs_are_told_where_somebody_looks_for_them(here: Path):
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
    inside = "it is a folder with runs in it; name one of the 2, like runs/grid/a, runs/grid/b"
    refused(agentrl("show", "runs/grid"), f"run 'runs/grid' not found: {inside}")
    there = "there are folders of runs in it, see agentrl ls FOLDER: runs/grid"
    for ref in ("last", "a", "README.md"):
        refused(agentrl("show", ref), f"run '{ref}' not found in 'runs'; {there}")
    refused(agentrl("report", "runs"), "folder 'runs' holds no runs; name one with runs in it, li")
    assert find_run("runs/grid/a").name == "a"


def test_runs_and_folders_of_runs_are_listed_together(here: Path):
    write_run(here / "runs" / "grid" / "c")
    told = agentrl("ls").stdout.splitlines()
    assert [line.split()[0] for line in told if line] == ["run", "a", "b", "folder", "runs/grid"]


def test_the_folder_conf_of_another_program_is_not_taken_for_ours(here: Path):
    (here / "conf").mkdir()
    (here / "conf" / "config.yaml").write_text("db: mysql\n")
    assert "algo" in groups() and conf_folder() != here / "conf"
    (here / "conf" / "algo").mkdir()
    assert conf_folder() == here / "conf"


def test_a_preset_s_runs_go_where_there_was_nothing(here: Path):
    kept = here / "new" / "folder"
    run = write_run(here / "ready")
    kept.mkdir(parents=True)
    run.rename(kept / "twentyq_rft_s0")
    (reproduction,) = reproduce("twentyq_rft", [0], kept, store=False)
    assert reproduction.measured.final == 5 / 8
