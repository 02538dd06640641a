"""`agentrl play --script FILE`: a file of actions in any environment, and what came of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl_cli.cli.play import find_task, read_script, replay
from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.core.errors import UserError
from tests.builders.runs import Agentrl
from tests.builders.tau import DATA, needs_data, services, tau_env

__all__ = ["services"]


@pytest.mark.parametrize(
    "text, actions",
    [
        ('["a", {"name": "b"}, "c\\nd"]', ["a", '{"name": "b"}', "c\nd"]),
        ('"a"\n\nplain text\n{"name": "b"}\n', ["a", "plain text", '{"name": "b"}']),
        ("", []),
    ],
)
def test_a_script_is_a_json_list_or_lines(tmp_path: Path, text: str, actions: list[str]):
    (tmp_path / "script").write_text(text)
    assert read_script(tmp_path / "script") == actions
    marked = "\ufeff" + (tmp_path / "script").read_text(encoding="utf-8")
    (tmp_path / "script").write_text(marked, encoding="utf-8")
    assert read_script(tmp_path / "script") == actions


def test_a_replay_records_every_step_and_the_final_state(services: Path):
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
def test_golden_mutations_are_replayed_to_their_reward():
    env = tau_env("retail", DATA, user="silent", actions="react")
    tasks = {task.id: task for task in env.tasks("dev")}
    for case in json.loads((DATA / "golden" / "retail_dev.json").read_text()):
        for variant in case["variants"]:
            actions = [*(json.dumps(action) for action in variant["actions"]), variant["say"]]
            record = replay(env, tasks[f"retail-dev-{case['task']}"], actions, 0)
            assert (record["reward"], record["stop"]) == (variant["reward"], "done")


def test_any_environment_replays_and_may_have_no_hash():
    env = build(check(compose([])).env)
    task = env.tasks("train")[0]
    record = replay(env, find_task(env, task.id), ["Is it alive?", "xyzzy"], 0)
    assert (record["stop"], record["digest"], len(record["steps"])) == ("open", None, 2)
    assert record["steps"][1]["info"]["invalid"] is True


def test_the_command_prints_one_json_object(agentrl: Agentrl, tmp_path: Path):
    (tmp_path / "script.txt").write_text("What is your zip?\ncancel(1)\n")
    about = ["play", "env=tau_mini", "--task", "mini-train-0", "--script", "script.txt"]
    done = agentrl(*about, "--json")
    record = json.loads(done.stdout)
    assert record["steps"][1]["messages"][0]["content"] == "Error: order 1 not found"
    shown = agentrl(*about)
    assert shown.stdout.splitlines()[-1].startswith("open, reward 0, state ")


def test_impossible_replays_are_refused_in_a_sentence(agentrl: Agentrl, tmp_path: Path):
    done = agentrl("play", "env=tau_mini", "--json")
    assert (done.returncode, "--script FILE" in done.stderr) == (2, True)
    with pytest.raises(UserError, match="cannot be read"):
        read_script(tmp_path / "none")
    with pytest.raises(UserError, match="task 'x' not found"):
        find_task(tau_env("mini", None), "x")
