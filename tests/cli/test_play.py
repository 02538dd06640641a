"""`agentrl play`, `eval` and `show` as a person meets them: a game, a bare model, a critic."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentrl_cli.cli.main import app
from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.core.types import Message, Turn
from agentrl_cli.report.episode import find_episode, render, render_turn
from agentrl_cli.runs.run import Run
from tests.builders.runs import SPEAKER, Agentrl, trained
from tests.builders.wiki import write_folder

ENV = build(check(compose([])).env)
TASK = ENV.tasks("test")[0]
NAME = TASK.data["object"]
GUESS = ENV.world_table.guess(NAME)
BARE = [
    "model.weights=null", "algo=grpo", "hardware.threads=1", "eval.tasks=2",
    "eval.episodes_per_task=1",
]  # fmt: skip


def test_a_person_wins_by_the_right_guess(agentrl: Agentrl):
    done = agentrl("play", "env=twentyq", "--task", TASK.id, stdin=f"Is it alive?\n\n{GUESS}\nno\n")
    lines = done.stdout.splitlines()
    assert lines[0].split(maxsplit=1) == ["system", ENV.system()]
    assert lines[-2].endswith("Yes. You win.")
    assert lines[-1] == f"success, reward 1, task {TASK.id}"
    assert (done.returncode, "stopped" in done.stderr) == (0, False)


def test_a_person_loses_when_the_turns_are_used_up(agentrl: Agentrl):
    questions = "Is it alive?\n\x1b[2Jrm -rf /\n"
    done = agentrl("play", "env=twentyq", "env.max_turns=2", "--task", TASK.id, stdin=questions)
    assert f"You lose. It was {ENV.world_table.nouns[NAME]}. Far." in done.stdout
    assert done.stdout.splitlines()[-1] == f"no success, reward 0, task {TASK.id}"
    assert done.returncode == 0 and "\x1b" not in done.stdout


def test_a_person_searches_and_cites_the_wiki(agentrl: Agentrl):
    task = "wiki-small-lookup-mother-of-fenick"
    typed = "SEARCH Fenick\nOPEN Fenick\nSAVE 2\nSUBMIT Dalo\n"
    done = agentrl("play", "env=wiki", "--task", task, stdin=typed)
    lines = done.stdout.splitlines()
    assert "The mother is Dalo (2)." in done.stdout and lines[-2].endswith("Right. Proved.")
    assert lines[-1] == f"success, reward 1, task {task}"


def test_a_question_of_ones_own_pages_is_played_whatever_its_split(
    agentrl: Agentrl, tmp_path: Path
):
    row = {"question": "How many?", "answer": "42", "evidence": [["a", 1]]}
    write_folder(tmp_path / "pages", {"a.md": "There are 42."}, [row])
    data = ["env=wiki", f"env.data={tmp_path / 'pages'}", "env.test_share=0"]
    done = agentrl("play", *data, stdin="SEARCH a\nOPEN a\nSAVE 1\nSUBMIT 42\n")
    assert done.returncode == 0 and "success, reward 1" in done.stdout


def test_the_object_is_named_only_after_the_end(agentrl: Agentrl):
    done = agentrl("play", "--task", TASK.id, stdin="Is it alive?\nIs it big?\n")
    assert NAME not in done.stdout.lower() and TASK.id not in done.stdout
    assert (done.returncode, done.stderr.splitlines()[-1].split()[-1]) == (0, "stopped")


def test_playing_writes_nothing(agentrl: Agentrl, tmp_path: Path):
    agentrl("play", stdin="")
    assert list(tmp_path.iterdir()) == []


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a verb prints when it is called in this process."""
    with pytest.raises(SystemExit) as ended:
        app(list(arguments))
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_a_bare_model_is_evaluated_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    record = json.loads(call(capsys, "eval", "model=tiny", "env=twentyq", *BARE, "--json"))
    assert record["model"] == "base" and record["eval/test_episodes"] == 2
    assert 0 <= record["eval/test_success_low"] <= record["eval/test_success_high"] <= 1
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("runs"), "nlac", "critical", SPEAKER)


def test_a_runs_policy_is_evaluated_and_plays(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    before = {file: file.stat().st_mtime for file in run.folder.rglob("*") if file.is_file()}
    record = json.loads(call(capsys, "eval", str(run.folder), "eval.tasks=1", "--json"))
    assert (record["run"], record["step"], record["eval/test_episodes"]) == ("critical", 4, 2)
    shown = call(capsys, "play", "--run", str(run.folder), "--task", "test-1")
    assert "task      test-1 (test)" in shown and "critique" in shown
    after = {file: file.stat().st_mtime for file in run.folder.rglob("*") if file.is_file()}
    (written,) = after.keys() - before.keys()
    assert {file: after[file] for file in before} == before
    assert json.loads(written.read_text()).items() >= record.items()


def test_what_the_critic_said_of_a_run_is_shown(run: Run):
    lines = [line.strip() for line in render(find_episode(run, None, None).episode, "here")]
    labels = [line.split()[0] for line in lines if line]
    assert labels.count("action") == labels.count("refined") == 2
    counted = {label: sum(map(copies, lines_of(lines, label))) for label in ("forecast", "other")}
    assert counted == {"forecast": 2 * CRITICS, "other": 2 * CRITICS}
    assert labels.count("critique") == labels.count("verdict") == 2 * 2
    assert {"verdict   the action stands", "verdict   a better action exists"} & set(lines)


CRITICS = compose(["algo=nlac"]).algo.num_forecasts  # forecasts that a critique reads of an action


def lines_of(lines: list[str], label: str) -> list[str]:
    return [line for line in lines if line.split()[:1] == [label]]


def copies(line: str) -> int:
    """How many equal texts a line stands for."""
    counted = re.match(r"\w+ +(\d+) x ", line)
    return int(counted[1]) if counted else 1


CRITIC = {
    "forecasts": ["No. Failure."],
    "critique": "Optimality: No. It loses.",
    "verdict": False,
    "refined": "Is it a pet?",
    "refined_critique": "Optimality: Yes. It wins.",
    "refined_verdict": True,
}
BEFORE = ["forecast  No. Failure.", "critique  Optimality: No. It loses.",
          "verdict   a better action exists"]  # fmt: skip
AFTER = ["critique  Optimality: Yes. It wins.", "verdict   the action stands"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, [*BEFORE, "refined   Is it a pet?", *AFTER]),
        ({"refined": "Is it a cat?"}, [*BEFORE, "refined   unchanged", *AFTER]),
        ({"refined_critique": "", "refined_verdict": None}, [*BEFORE, "refined   Is it a pet?"]),
        ({"forecasts": ["Yes. Success.", "No. Failure.", "No. Failure."], "others": ["Near."] * 3},
         ["forecast  2 x No. Failure.", "forecast  Yes. Success.", "other     3 x Near.",
          *BEFORE[1:], "refined   Is it a pet?", *AFTER]),
        ({"others": ["Far.", "Close."]},
         [BEFORE[0], "other     Far.", "other     Close.", *BEFORE[1:], "refined   Is it a pet?",
          *AFTER]),
        ({"refined": "Maybe a cat.\nIs it a cat?"},
         [*BEFORE, "refined   Maybe a cat.", "Is it a cat?", *AFTER]),
        ({"forecasts": [], "critique": "", "verdict": None, "refined": ""}, []),
        ({"critique": "Well.", "verdict": None, "refined": ""},
         [BEFORE[0], "critique  Well.", "verdict   unreadable"]),
    ],
)  # fmt: skip
def test_a_critics_words_are_shown_in_the_order_in_which_they_were_written(change, expected):
    turn = Turn([Message("user", "Ask.")], "Is it a cat?", [1], [2], [-0.1])
    turn.info = {"critic": CRITIC | change, "advantage": -0.5, "value": 0.25}
    head, *said = [line.strip() for line in render_turn(3, turn)]
    assert head == "turn 3  reward 0  value +0.250  advantage -0.500"
    assert said == ["user      Ask.", "action    Is it a cat?", *expected]
