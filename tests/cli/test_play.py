"""`agentrl play` by a user, a script and a run, and `agentrl eval` of a bare model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl_cli.cli.main import app
from agentrl_cli.cli.play import find_task, read_script, replay
from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.runs.run import Run
from tests.builders.errors import user_error
from tests.builders.runs import SPEAKER, Agentrl, trained
from tests.builders.tau import DATA, needs_data, services, tau_env
from tests.builders.wiki import write_folder

__all__ = ["services"]
ENV = build(check(compose([])).env)
TASK = ENV.tasks("test")[0]
NAME = TASK.data["object"]
GUESS = ENV.world_table.guess(NAME)


def test_right_guess_wins(agentrl: Agentrl):
    done = agentrl("play", "env=twentyq", "--task", TASK.id, stdin=f"Is it alive?\n\n{GUESS}\nno\n")
    lines = done.stdout.splitlines()
    assert lines[0].split(maxsplit=1) == ["system", ENV.system()]
    assert lines[-1] == f"success, reward 1, task {TASK.id}"
    assert (done.returncode, "stopped" in done.stderr) == (0, False)


def test_last_turn_loses(agentrl: Agentrl):
    questions = "Is it alive?\n\x1b[2Jrm -rf /\n"
    done = agentrl("play", "env=twentyq", "env.max_turns=2", "--task", TASK.id, stdin=questions)
    assert f"It was {ENV.world_table.nouns[NAME]}." in done.stdout
    assert done.stdout.splitlines()[-1] == f"no success, reward 0, task {TASK.id}"
    assert done.returncode == 0 and "\x1b" not in done.stdout


def test_task_of_any_split_is_played(agentrl: Agentrl, tmp_path: Path):
    row = {"question": "How many?", "answer": "42", "evidence": [["a", 1]]}
    write_folder(tmp_path / "pages", {"a.md": "There are 42."}, [row])
    data = ["env=wiki", f"env.data={tmp_path / 'pages'}", "env.test_share=0"]
    done = agentrl("play", *data, stdin="SEARCH a\nOPEN a\nSAVE 1\nSUBMIT 42\n")
    assert done.returncode == 0 and "success, reward 1" in done.stdout


def test_end_of_input_stops_and_reveals_nothing(agentrl: Agentrl, tmp_path: Path):
    done = agentrl("play", "--task", TASK.id, stdin="Is it alive?\nIs it big?\n")
    assert NAME not in done.stdout.lower() and TASK.id not in done.stdout
    assert done.returncode == 0 and "stopped" in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


# scripts


@pytest.mark.parametrize(
    "text, actions",
    [
        ('["a", {"name": "b"}, "c\\nd"]', ["a", '{"name": "b"}', "c\nd"]),
        ('"a"\n\nplain text\n{"name": "b"}\n', ["a", "plain text", '{"name": "b"}']),
        ("", []),
    ],
)
def test_script_is_a_json_list_or_lines(tmp_path: Path, text: str, actions: list[str]):
    for mark in ("", "\ufeff"):
        (tmp_path / "script").write_text(mark + text, encoding="utf-8")
        assert read_script(tmp_path / "script") == actions


def test_replay_records_steps_and_final_state(services: Path):
    env = tau_env("retail", services)
    task = env.tasks("train")[0]
    env.reset(task, 0)
    actions, before = [], env.digest()
    for action in env.expert(task) or ():
        actions.append(action)
        env.step(action)
    record = replay(env, task, [*actions, "too late"], 0)
    assert (record["stop"], record["reward"], record["left"]) == ("done", 1.0, 1)
    assert record["digest"] == env.digest() != before
    assert [step["action"] for step in record["steps"]] == actions
    assert replay(env, task, actions[:1], 0)["stop"] == "open"
    assert json.loads(json.dumps(record))["steps"][-1]["done"] is True


@needs_data
def test_golden_mutations_replay_to_their_reward():
    env = tau_env("retail", DATA, user="silent", actions="react")
    tasks = {task.id: task for task in env.tasks("dev")}
    for case in json.loads((DATA / "golden" / "retail_dev.json").read_text()):
        for variant in case["variants"]:
            actions = [*(json.dumps(action) for action in variant["actions"]), variant["say"]]
            record = replay(env, tasks[f"retail-dev-{case['task']}"], actions, 0)
            assert (record["reward"], record["stop"]) == (variant["reward"], "done")


@pytest.mark.slow
def test_replay_prints_one_json_object(agentrl: Agentrl, tmp_path: Path):
    (tmp_path / "script.txt").write_text("What is your zip?\ncancel(1)\n")
    about = ["play", "env=tau_mini", "--task", "mini-train-0", "--script", "script.txt"]
    record = json.loads(agentrl(*about, "--json").stdout)
    assert "order 1" in record["steps"][1]["messages"][0]["content"]
    assert agentrl(*about).stdout.splitlines()[-1].startswith("open, reward 0, state ")


def test_impossible_replays_are_refused(tmp_path: Path):
    with user_error("unreadable-script", "none"):
        read_script(tmp_path / "none")
    with user_error("unknown-task", "x"):
        find_task(tau_env("mini", None), "x")


# models


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the output of a verb that is called in this process."""
    with pytest.raises(SystemExit) as ended:
        app(list(arguments))
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("runs"), "nlac", "critical", "steps=1", SPEAKER)


def test_policy_of_a_run_is_evaluated_and_plays(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    before = {file: file.stat().st_mtime for file in run.folder.rglob("*") if file.is_file()}
    record = json.loads(call(capsys, "eval", str(run.folder), "eval.tasks=1", "--json"))
    assert (record["run"], record["step"], record["eval/test_episodes"]) == ("critical", 1, 2)
    shown = call(capsys, "play", "--run", str(run.folder), "--task", "test-1")
    assert "task      test-1 (test)" in shown and "critique" in shown
    after = {file: file.stat().st_mtime for file in run.folder.rglob("*") if file.is_file()}
    (written,) = after.keys() - before.keys()
    assert {file: after[file] for file in before} == before
    assert json.loads(written.read_text()).items() >= record.items()
