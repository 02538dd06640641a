"""`agentrl check` and `train --dry` with broken and sound environments of a user."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrl_cli.cli.environment import check_contract
from agentrl_cli.cli.train import start
from agentrl_cli.config.compose import build, check, compose
from tests.builders.command_line import agentrl
from tests.builders.errors import user_error
from tests.builders.runs import SMALL, Agentrl, folders, settings

SOURCE = """
from dataclasses import dataclass
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Message, Step, Task
from agentrl_cli.envs.base import Env


@dataclass(kw_only=True)
class Mine(Env):
    def system(self):
        return "Agree, please."

    def tasks(self, split):
        if split not in ("train", "test"):
            raise UserError(f"there is no split '{split}'; choose train or test")
        return [Task(f"{split}-{n}", split, {"n": f"{split}-{n}"}) for n in range(7)]

    def reset(self, task, seed):
        self.over = False
        return [Message("user", "Well?")]

    def step(self, action):
        if self.over:
            raise RuntimeError("the episode is over")
        self.over = True
        STEP

    def expert(self, task):
        yield "yes " * 40
"""
SOUND = 'return Step([], float("yes" in action), True, False, {"success": "yes" in action})'
BROKEN = [
    ("raise ValueError('boom')", "ValueError('boom') ({file}:{line})"),
    ("return [], 1.0, True, {}", "mine_{n}.Mine ({file})"),
]


def written(root: Path, step: str, name: str = "mine_0") -> Path:
    """Write an environment to `root`, and return a folder of groups with it."""
    (root / f"{name}.py").write_text(SOURCE.replace("STEP", step))
    groups = folders(root)
    (groups / "env" / "mine.yaml").write_text(f"_target_: {name}.Mine\n")
    return groups


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_broken_environment_is_located(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    step, expected = BROKEN[number]
    monkeypatch.chdir(tmp_path)
    groups = written(tmp_path, step, f"mine_{number}")
    small = [*SMALL, "env=mine", "algo=grpo"]
    line = SOURCE.partition("STEP")[0].count("\n") + 1
    expected = expected.format(file=tmp_path / f"mine_{number}.py", n=number, line=line)
    for verb in (["train", "--dry", *small], ["check", "env=mine"]):
        result = agentrl(*verb, "--config-dir", str(groups))
        assert result.exit_code == 2 and expected in result.stderr, result.output


@pytest.mark.slow
def test_sound_environment_is_checked(tmp_path: Path, agentrl: Agentrl):
    groups = written(tmp_path, SOUND)
    done = agentrl("check", "env=mine", "rollout.max_new_tokens=24", "--config-dir", str(groups))
    assert done.returncode == 0, done.stderr
    rows = dict(line.split("  ", 1) for line in done.stdout.splitlines() if line[0] != " ")
    text = {name: value.strip() for name, value in rows.items()}
    assert text["environment"] == f"mine_0.Mine ({tmp_path / 'mine_0.py'})"
    assert (text["contract"], text["tasks"]) == ("kept", "7 train, 7 test")
    assert text["expert"] == "5 of 5 episodes won, mean reward 1.00"
    assert text["random agent"].startswith("0 of 5 episodes won")
    turns, tokens = done.stdout.splitlines()[-2:]
    assert turns.split() == ["turns", "1"]
    assert "rollout.max_new_tokens 24" in tokens and "rollout.max_seq_len" in tokens


def test_environment_without_expert_is_checked(tmp_path: Path):
    result = agentrl("check", "env=coin", "env.turns=3", "--config-dir", str(folders(tmp_path)))
    assert re.search(r"^ +turns +3$", result.stdout, re.MULTILINE), result.output


def test_code_in_the_working_folder_is_found(tmp_path: Path, agentrl: Agentrl):
    groups = written(tmp_path, SOUND, "lies_here")
    (tmp_path / "json.py").write_text("raise AssertionError('taken for the library')\n")
    code = "import sys; sys.path.remove(''); from agentrl_cli.cli.main import app; app()"
    listed = ["play", "env=mine", "--task", "test-1", "--config-dir", str(groups)]
    done = agentrl(*listed, stdin="yes\n", program=["-c", code])
    assert done.returncode == 0 and "success, reward 1" in done.stdout, done.stderr


DRY = {  # settings that train refuses, too
    "name=a/b": "invalid-name", "name=there": "run-exists", "logger=mlflow": "missing-package",
    f"runs={__file__}": "not-a-folder",
}  # fmt: skip


@pytest.mark.parametrize("override", DRY)
def test_dry_refuses_as_train_does(override: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("accelerate.tracking._available_trackers", [])  # as where none is there
    (tmp_path / "there").mkdir()
    small = settings(tmp_path, "grpo", "it", override)
    for dry in (True, False) if override.startswith("logger") else (True,):
        with user_error(DRY[override]):
            start(small, config_dirs=[folders(tmp_path)], dry=dry)
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize(
    "env", ["twentyq", "tau_mini", pytest.param("wiki", marks=pytest.mark.slow)]
)
def test_dry_accepts_fewer_turns_than_the_expert_needs(env: str):
    cfg = check(compose([f"env={env}", "env.max_turns=4", "algo=grpo"]))
    assert check_contract(build(cfg.env), expert=False) == "kept"
    with user_error("contract"):
        check_contract(build(cfg.env))
