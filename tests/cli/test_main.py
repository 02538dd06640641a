"""The verbs as a person meets them: output, exit codes, and text that cannot harm the terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner

from agentrl_cli.cli.main import app
from agentrl_cli.core.types import Episode, Message, Task, Turn
from agentrl_cli.report.episode import Style, render, render_turn
from agentrl_cli.runs.run import Run
from tests.builders.command_line import agentrl as invoke
from tests.builders.runs import Agentrl

HOSTILE = "\x1b[2J\x1b[Hgone\r\x07\u202eevil"


def turns() -> list[Turn]:
    critic = {
        "forecasts": ["It will be won.", "It will be lost."],
        "others": ["Is it red?"],
        "critique": "the question repeats",
        "verdict": False,
        "refined": "Is it a pet?",
    }
    info = {"advantage": 0.25, "value": 0.5, "critic": critic}
    seen = [Message("system", "Play."), Message("user", HOSTILE)]
    first = Turn(seen, "Is it alive?", [1, 2], [3], [-0.5], info=info)
    seen = [Message("user", "Yes.\nGo on.")]
    last = Turn(seen, "Is it a cat?", [4], [5], [-0.1], 1.0, True, info={"success": True})
    return [first, last]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    choices = {"env": "twentyq", "algo": "nlac", "model": "tiny"}
    cfg = {"runs": str(tmp_path / "runs"), "name": "mine", "seed": 3, "choices": choices}
    made = Run.create(OmegaConf.create(cfg), command="agentrl train", overrides=[])
    task = Task("cat", "train", {})
    plain = Episode("s1-t0-g0", task, "g", 7, turns()[1:])
    full = Episode("s1-t1-g0", task, "g", 8, turns(), closing=[Message("user", "You win.")])
    made.write_episodes("train", 1, [plain, full])
    made.log(1, {"reward/mean": 0.75})
    return made


def test_version_is_printed(agentrl: Agentrl):
    assert agentrl("--version").stdout.startswith("agentrl 0.")


def test_help_has_two_examples(agentrl: Agentrl):
    text = agentrl("--help").stdout
    assert text.count("  agentrl ") == 2 and "train" in text


def test_a_shell_is_offered_the_verbs_that_begin_so():
    asked = {"_AGENTRL_COMPLETE": "complete_bash", "COMP_WORDS": "agentrl re", "COMP_CWORD": "1"}
    offered = CliRunner().invoke(app, env=asked, prog_name="agentrl").stdout
    assert offered.split() == ["resume", "reproduce", "report"]


TERMINAL = {"TERM": "xterm-256color", "COLUMNS": "80"}
VERBS = ("train", "resume", "sweep", "eval", "play", "export", "reproduce", "show", "report", "ls",
         "list", "config", "check", "grade")  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_s_help_has_two_examples_that_name_it(verb: str):
    text = invoke(verb, "--help").stdout
    assert text.partition("Examples:")[2].count(f"agentrl {verb} ") >= 1
    assert len(re.findall(rf"^ *agentrl {verb}\b", text, re.MULTILINE)) >= 2


def test_show_prints_what_the_critic_said_turn_by_turn(agentrl: Agentrl, run: Run):
    lines = agentrl("show", "last").stdout.splitlines()
    said = [line.strip() for line in lines]
    for part in ("turn 1  reward 0  return 1  value +0.500  advantage +0.250",
                     "turn 2  reward 1  return 1",
                 "action    Is it alive?", "forecast  It will be won.", "other     Is it red?",
                 "critique  the question repeats", "verdict   a better action exists",
                 "refined   Is it a pet?", "user      You win."):  # fmt: skip
        assert part in said
    assert "success, reward 1, 2 turns, done" in "".join(lines[:5])


@pytest.mark.parametrize("width", [100, 60, 31, 12])
def test_an_episode_fits_any_width_and_later_lines_hang_below_the_first(width: int):
    text = "a question of many words that goes on for longer than any line is, " * 3
    turn = Turn([Message("user", text)], text, [1], [2], [-0.5], info={"advantage": 0.25})
    lines = render(Episode("e", Task("t", "train", {}), "g", 7, [turn]), "here", Style(width))
    assert width < 24 or max(map(len, lines)) <= width
    at = next(i for i, line in enumerate(lines) if line.startswith("  action"))
    first = at if width > 40 else at + 1  # in a narrow terminal the text stands below its label
    indent = lines[first].index("a question" if width > 12 else "a")
    assert lines[first + 1].startswith(" " * indent) and lines[first + 1][indent] != " "


def test_many_forecasts_are_folded_to_what_they_say():
    said = ["A cat. Success.", "A dog. Success.", "A cat. Success.", "An owl. Failure.", "?"]
    turn = Turn(
        [], "go", [1], [2], [-0.5], info={"critic": {"forecasts": said, "others": said[:1]}}
    )
    folded = [line.strip() for line in render_turn(1, turn, how=Style(folds=True))]
    counts = "forecasts 3 x Success, 1 x Failure, 1 x without an outcome (their texts: --full)"
    assert counts in folded and "other     A cat. Success." in folded
    full = [line.strip() for line in render_turn(1, turn)]
    assert "forecast  2 x A cat. Success." in full and "forecast  ?" in full


def test_a_terminal_gets_colours_and_a_pipe_none(agentrl: Agentrl, run: Run):
    assert "\x1b" not in agentrl("show", "last").stdout
    master, slave = os.openpty()
    command = [sys.executable, "-m", "agentrl_cli.cli", "show", str(run.folder)]
    for extra, is_coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        done = subprocess.run(
            command, stdout=slave, stderr=subprocess.PIPE, env={**os.environ, **TERMINAL, **extra}
        )
        written = os.read(master, 100_000).decode()
        assert done.returncode == 0 and ("\x1b[1;36m" in written) is is_coloured, written
        assert "\\x1b[2J" in written and "\x1b[2J" not in written
    os.close(master)
    os.close(slave)


def test_shown_text_cannot_move_the_cursor(agentrl: Agentrl, run: Run):
    text = agentrl("show", "last").stdout
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "\\x1b[2J" in text and "\\u202e" in text


def test_show_finds_an_episode_by_the_start_of_its_id(agentrl: Agentrl, run: Run):
    shown = json.loads(agentrl("show", "mine", "--episode", "s1-t0", "--json").stdout)
    assert Episode.from_json(shown).id == "s1-t0-g0"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["show", "mien"], "run 'mien' not found in 'runs'; did you mean 'mine'?"),
        (["show", "mine", "--episode", "zz"], "run 'mine' has no episode 'zz'"),
        (["show", "mine", "--won", "--lost"], "an episode is either won or lost; give --won or"),
        (["list", "algos"], "group 'algos' not found; did you mean 'algo'?"),
        (["train", "loud"], "override 'loud' cannot be read; write it as key=value"),
        (["train", "env=twentyqq"], "env 'twentyqq' not found; did you mean 'twentyq'?"),
        (["train", "--config", "none.yaml"], "configuration 'none.yaml' cannot be read"),
        (["play", "env=twentyqq"], "env 'twentyqq' not found; did you mean 'twentyq'?"),
        (["resume", "nothing"], "run 'nothing' not found"),
    ],
)
def test_mistake_is_one_line_on_stderr_and_exit_code_two(
    agentrl: Agentrl, run: Run, arguments: list[str], line: str
):
    done = agentrl(*arguments)
    assert done.stderr.splitlines()[0].startswith(line)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (2, "", False)


def test_refused_training_leaves_no_folder(agentrl: Agentrl, tmp_path: Path):
    assert agentrl("train", "env=twentyqq", "steps=many").returncode == 2
    assert not (tmp_path / "runs").exists()


def test_unknown_verb_is_refused_with_the_nearest(agentrl: Agentrl):
    done = agentrl("trian")
    assert done.returncode == 2 and "train" in done.stderr


def test_ls_shows_status_step_and_reward(agentrl: Agentrl, run: Run):
    line = agentrl("ls").stdout.splitlines()[1]
    assert line.split() == ["mine", "started", "1", "0.750"]
    (row,) = json.loads(agentrl("ls", "--json").stdout)
    assert (row["run"], row["step"], row["reward"]) == ("mine", 1, 0.75)


def test_ls_of_nothing_says_how_to_start(agentrl: Agentrl):
    done = agentrl("ls")
    assert (done.returncode, done.stdout) == (0, "")
    assert "start one with agentrl train" in done.stderr


def test_list_shows_options_with_their_comments(agentrl: Agentrl):
    found = json.loads(agentrl("list", "model", "--json").stdout)
    assert {"tiny", "hf"} <= found.keys() and all(found.values())


def test_play_ends_cleanly_with_the_input(agentrl: Agentrl):
    done = agentrl("play", "env=twentyq", stdin="Is it alive?\n")
    assert done.returncode == 0
    assert "stopped" in done.stderr and "Traceback" not in done.stderr


def test_play_by_a_person_can_be_won(agentrl: Agentrl):
    listing = agentrl("play", "env=twentyq", "--task", "nosuchtask")
    assert listing.returncode == 2 and "task 'nosuchtask' not found" in listing.stderr
