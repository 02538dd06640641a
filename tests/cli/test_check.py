"""`agentrl check`, and what `--dry` says of a world of one's own that breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.command_line import agentrl
from tests.builders.runs import SMALL, Agentrl, folders


def test_a_users_mistake_is_not_called_a_fault_of_the_world():
    result = agentrl("check", "env=wiki", "env.data=nosuchfolder")
    assert result.exit_code == 2
    assert "env.data 'nosuchfolder' is neither" in result.stderr and "raised" not in result.output


WORLD = """
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
BROKEN = {
    "raise ValueError('boom')": "raised ValueError('boom') ({file}:{line}) in the check of",
    "return [], 1.0, True, {}": "mine_{n}.Mine ({file}): step returns tuple: return a Step",
}


def written(root: Path, step: str, name: str = "mine_0") -> Path:
    """A world of one's own in `root`, and the folder of groups that names it."""
    (root / f"{name}.py").write_text(WORLD.replace("STEP", step))
    groups = folders(root)
    (groups / "env" / "mine.yaml").write_text(f"_target_: {name}.Mine\n")
    return groups


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_dry_run_tells_what_is_wrong_with_ones_own_world_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    step, sentence = list(BROKEN.items())[number]
    monkeypatch.chdir(tmp_path)
    groups = written(tmp_path, step, f"mine_{number}")
    small = [*SMALL, "env=mine", "algo=grpo"]
    line = WORLD.partition("STEP")[0].count("\n") + 1
    expected = sentence.format(file=tmp_path / f"mine_{number}.py", n=number, line=line)
    for verb in (["train", "--dry", *small], ["check", "env=mine"]):
        result = agentrl(*verb, "--config-dir", str(groups))
        assert result.exit_code == 2 and expected in result.stderr, result.output


@pytest.mark.slow
def test_a_sound_world_is_checked_in_one_table(tmp_path: Path, agentrl: Agentrl):
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
    assert "of rollout.max_new_tokens 24: raise it to" in tokens and "longest episode" in tokens


def test_a_world_without_an_expert_is_checked_too(tmp_path: Path):
    result = agentrl("check", "env=coin", "env.max_turns=3", "--config-dir", str(folders(tmp_path)))
    assert "the environment has none" in result.stdout and "turns        3" in result.stdout


def test_the_working_folder_is_where_ones_own_code_may_lie(tmp_path: Path, agentrl: Agentrl):
    groups = written(tmp_path, SOUND, "lies_here")
    (tmp_path / "json.py").write_text("raise AssertionError('taken for the library')\n")
    code = "import sys; sys.path.remove(''); from agentrl_cli.cli.main import app; app()"
    listed = ["play", "env=mine", "--task", "test-1", "--config-dir", str(groups)]
    done = agentrl(*listed, stdin="yes\n", program=["-c", code])
    assert done.returncode == 0 and "success, reward 1" in done.stdout, done.stderr
