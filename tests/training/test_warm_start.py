"""An algorithm that replays begins with an earlier run's episodes, alone or mixed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import Result

from agentrl_cli.core import files
from agentrl_cli.runs.run import Run
from tests.builders.command_line import agentrl, refused
from tests.builders.runs import folders, settings


def train(root: Path, algo: str, name: str, *overrides: str) -> Result:
    groups = ["--config-dir", str(folders(root))]
    few = ["steps=1", "eval.baseline=false", "eval.tasks=1"]
    return agentrl("train", *settings(root / "runs", algo, name, *few, *overrides), *groups)


def stored(root: Path, name: str) -> list[str]:
    return [row["id"] for row in files.read_jsonl(root / "runs" / name / "buffer.jsonl")]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which GRPO has kept its episodes as run `first`."""
    root = tmp_path_factory.mktemp("warm")
    done = train(root, "grpo", "first", "data.keep_episodes=true")
    assert done.exit_code == 0, done.output
    return root


def test_every_episode_is_kept_where_asked(played: Path):
    assert len(stored(played, "first")) == 8
    train(played, "grpo", "plain")
    assert not (played / "runs" / "plain" / "buffer.jsonl").exists()


def test_offline_an_algorithm_learns_from_the_earlier_episodes_alone(played: Path):
    buffer = f"data.buffer={played / 'runs' / 'first'}"
    done = train(played, "nlac", "offline", buffer, "data.offline=true", "algo.critic_warmup=0")
    assert done.exit_code == 0, done.output
    assert stored(played, "offline") == [f"buffer-{name}" for name in stored(played, "first")]
    rows = Run(played / "runs" / "offline").metrics()
    assert all("episodes/count" not in row for row in rows)
    assert any("policy/loss" in row or "successor/loss" in row for row in rows)


def test_mixed_it_learns_from_both(played: Path):
    buffer = f"data.buffer={played / 'runs' / 'first'}"
    done = train(played, "nlac", "mixed", buffer)
    assert done.exit_code == 0, done.output
    ids = stored(played, "mixed")
    assert len(ids) == len(set(ids)) == 16 and sum(i.startswith("buffer-") for i in ids) == 8


CHANGED = {
    "no train task of this env; set env as that run did": ('"name": "train-', '"name": "test-'),
    "another system message than this env; set env": ("Say something.", "Say nothing."),
}


@pytest.mark.parametrize("sentence", CHANGED)
def test_episodes_of_the_same_world_that_was_set_otherwise_are_refused(
    played: Path, tmp_path: Path, sentence: str
):
    shutil.copytree(played / "runs" / "first", tmp_path / "first")
    file = tmp_path / "first" / "buffer.jsonl"
    kept = file.read_text()
    file.write_text(kept.replace(*CHANGED[sentence]))
    assert file.read_text() != kept
    result = train(played, "nlac", "a", f"data.buffer={tmp_path / 'first'}")
    assert result.exit_code == 2 and sentence in result.stderr
    assert not (played / "runs" / "a").exists()


def test_what_cannot_be_learnt_from_is_refused(played: Path):
    first = f"data.buffer={played / 'runs' / 'first'}"
    plain = f"data.buffer={played / 'runs' / 'plain'}"
    refused(train(played, "grpo", "a", first), "algo 'grpo' does not replay, so data.buffer means")
    refused(train(played, "nlac", "a", plain), "run 'plain' has kept no episodes; train it with")
    refused(train(played, "nlac", "a", "data.offline=true"), "data.offline=true has nothing to")
    offline = train(played, "archer", "a", first, "data.offline=true")
    refused(offline, "data.offline=true, but algo 'archer' trains its policy on fresh play; leave")
    other = ["env=twentyq", "rollout.max_new_tokens=24"]
    refused(
        train(played, "nlac", "a", first, *other), "the episodes of run 'first' are of env=coin"
    )
    assert not (played / "runs" / "a").exists()
