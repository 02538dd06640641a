"""Output, exit codes and terminal safety of the verbs that show runs and episodes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from omegaconf import OmegaConf

from agentrl_cli.core.types import Episode, Message, Task, Turn
from agentrl_cli.report.page import FILE
from agentrl_cli.runs.run import Run
from tests.builders.command_line import agentrl as invoke
from tests.builders.report import BASE, write_run
from tests.builders.runs import Agentrl

HOSTILE = "\x1b[2J\x1b[Hgone\r\x07\u202eevil"
VERBS = ("train", "resume", "sweep", "eval", "play", "export", "reproduce", "show", "report", "ls",
         "list", "config", "check", "grade", "serve", "demos", "calibrate", "new")  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Run:
    forecasts = ["It will be won.", "It will be lost."]
    critic = {"forecasts": forecasts, "others": ["Is it red?"], "refined": "Is it a pet?"}
    critic |= {"critique": "the question repeats", "verdict": False}
    info = {"advantage": 0.25, "value": 0.5, "critic": critic}
    seen = [Message("system", "Play."), Message("user", HOSTILE)]
    first = Turn(seen, "Is it alive?", [1, 2], [3], [-0.5], info=info)
    last = Turn([Message("user", "Yes.\nGo on.")], "Is it a cat?", [4], [5], [-0.1], 1.0, True)
    choices = {"env": "twentyq", "algo": "nlac", "model": "tiny"}
    cfg = {"runs": str(tmp_path / "runs"), "name": "mine", "seed": 3, "choices": choices}
    made = Run.create(OmegaConf.create(cfg), command="agentrl train", overrides=[])
    task, closing = Task("cat", "train", {}), [Message("user", "You win.")]
    plain = Episode("s1-t0-g0", task, "g", 7, [last])
    long = Episode("s1-t1-g0", task, "g", 8, [first, last], final_observation=closing)
    made.write_episodes("train", 1, [plain, long])
    made.log(1, {"reward/mean": 0.75})
    return made


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(verb: str):
    assert f"agentrl {verb} " in invoke(verb, "--help").stdout.replace("Usage: agentrl", "", 1)
    assert f"  {verb} " in invoke("--help").stdout


def test_show_prints_the_critic_turn_by_turn(agentrl: Agentrl, run: Run):
    text = agentrl("show", "last").stdout
    lines = [line.strip() for line in text.splitlines()]
    for part in ("turn 1  reward 0  return 1  value +0.500  advantage +0.250",
                 "turn 2  reward 1  return 1", "action    Is it alive?",
                 "forecast  It will be won.", "other     Is it red?",
                 "critique  the question repeats", "refined   Is it a pet?",
                 "user      You win."):  # fmt: skip
        assert part in lines
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "\\x1b[2J" in text and "\\u202e" in text


def test_only_a_terminal_gets_colours(agentrl: Agentrl, run: Run):
    assert "\x1b" not in agentrl("show", "last").stdout
    master, slave = os.openpty()
    command = [sys.executable, "-m", "agentrl_cli.cli", "show", str(run.folder)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    for extra, is_coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        done = subprocess.run(
            command, stdout=slave, stderr=subprocess.PIPE, env={**environment, **extra}
        )
        written = os.read(master, 100_000).decode()
        assert done.returncode == 0 and ("\x1b[1;36m" in written) is is_coloured, written
        assert "\\x1b[2J" in written and "\x1b[2J" not in written
    os.close(master)
    os.close(slave)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["show", "mien"], "'mine'"),
        (["show", "mine", "--episode", "zz"], "'zz'"),
        (["train", "loud"], "'loud'"),
        (["train", "--config", "none.yaml"], "'none.yaml'"),
        (["play", "env=twentyqq"], "'twentyq'"),
        (["play", "env=twentyq", "--task", "nosuchtask"], "'nosuchtask'"),
        (["resume", "nothing"], "'nothing'"),
        (["trian"], "train"),
        (["report", "nowhere"], "'nowhere'"),
    ],
)
def test_mistake_exits_with_two(
    agentrl: Agentrl, run: Run, arguments: list[str], value: str, tmp_path: Path
):
    before = sorted(tmp_path.rglob("*"))
    done = agentrl(*arguments)
    assert value in done.stderr
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (2, "", False)
    assert sorted(tmp_path.rglob("*")) == before


def test_ls_shows_status_step_and_reward(agentrl: Agentrl, run: Run):
    line = agentrl("ls").stdout.splitlines()[1]
    assert line.split() == ["mine", "started", "1", "0.750"]
    (row,) = json.loads(agentrl("ls", "--json").stdout)
    assert (row["run"], row["step"], row["reward"]) == ("mine", 1, 0.75)


# report


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Two algorithms with two seeds each, in the folder `runs`."""
    pytest.importorskip("matplotlib", reason="reports draw with matplotlib (extra: report)")
    for seed in (0, 1):
        write_run(tmp_path / "runs" / f"grpo-{seed}", seed=seed, final=BASE)
        write_run(tmp_path / "runs" / f"nlac-{seed}", algo="nlac", seed=seed)
    return tmp_path / "runs"


def test_report_prints_a_table_and_writes_a_page(agentrl: Agentrl, grid: Path):
    done = agentrl("report", "runs", "--against", "grpo-1")
    assert done.returncode == 0 and "62.5 [" in done.stdout, done.stderr
    assert done.stderr.splitlines()[-1].endswith(str(Path("runs") / "report" / FILE))
    page = grid / "report" / FILE
    assert page.is_file()
    page.write_text("as it was")
    before = sorted(grid.rglob("*"))
    for flag in ("--json", "--markdown"):
        done = agentrl("report", "runs", flag)
        assert done.returncode == 0 and done.stdout and FILE not in done.stderr
    assert page.read_text() == "as it was" and sorted(grid.rglob("*")) == before


@pytest.mark.slow
def test_zip_contains_the_report_only(agentrl: Agentrl, grid: Path):
    (grid / "report" / "pages").mkdir(parents=True)
    (grid / "report" / "pages" / "gone.html").write_text("of another report")
    (grid / "report" / "my-gone.svg").write_text("of another program")
    done = agentrl("report", "runs", "--zip")
    assert done.returncode == 0, done.stderr
    with ZipFile(grid / "report" / "report.zip") as archive:
        names, page = archive.namelist(), archive.read("report/report.html").decode()
    links = set(re.findall(r'href="(pages/[^"#]+)', page))
    assert links == {f"pages/{name}-{seed}.html" for name in ("grpo", "nlac") for seed in (0, 1)}
    assert {f"report/{link}" for link in links} < set(names) and "report/curves-1.svg" in names
    assert not any("gone" in name for name in names)
    assert (grid / "report" / "my-gone.svg").exists()


@pytest.mark.parametrize(
    ("option", "code"), [pytest.param("-O", 0, marks=pytest.mark.slow), ("-OO", 2)]
)
def test_python_without_docstrings_is_refused(agentrl: Agentrl, option: str, code: int):
    done = agentrl("list", program=(option, "-m", "agentrl_cli.cli"))
    assert (done.returncode, len(done.stderr.splitlines())) == (code, code // 2)
