"""An algorithm that replays begins with an earlier run's episodes, alone or mixed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import Result

from agentrl_cli.config.compose import compose_checked
from agentrl_cli.core import files
from agentrl_cli.runs.run import Run
from agentrl_cli.training.build import build_parts
from agentrl_cli.training.loop import update
from tests.builders.command_line import agentrl
from tests.builders.errors import user_error
from tests.builders.runs import folders, settings, trained


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


def test_offline_uses_only_earlier_episodes(played: Path):
    buffer = f"data.buffer={played / 'runs' / 'first'}"
    done = train(played, "nlac", "offline", buffer, "data.offline=true", "algo.critic_warmup=0")
    assert done.exit_code == 0, done.output
    assert stored(played, "offline") == [f"buffer-{name}" for name in stored(played, "first")]
    rows = Run(played / "runs" / "offline").metrics()
    assert all("episodes/count" not in row for row in rows)
    assert any("policy/loss" in row or "successor/loss" in row for row in rows)


def test_offline_update_begins_without_caches(played: Path, monkeypatch: pytest.MonkeyPatch):
    buffer = f"data.buffer={played / 'runs' / 'first'}"
    more = settings(played, "nlac", "offline-parts", buffer, "data.offline=true")
    parts = build_parts(compose_checked(more, [folders(played)]), None)
    cleared: list[int] = []
    monkeypatch.setattr(parts.generator, "clear", lambda: cleared.append(parts.step))
    assert not parts.plays
    for _ in range(2):
        update(parts)
    assert cleared == [0, 1]  # as in a run that is resumed in between


def test_mixed_it_learns_from_both(played: Path):
    buffer = f"data.buffer={played / 'runs' / 'first'}"
    done = train(played, "nlac", "mixed", buffer)
    assert done.exit_code == 0, done.output
    ids = stored(played, "mixed")
    assert len(ids) == len(set(ids)) == 16 and sum(i.startswith("buffer-") for i in ids) == 8


TWENTYQ = ["env=twentyq", "rollout.max_new_tokens=24"]
CHANGED = {
    "train-": ('"name": "train-', '"name": "test-'),
    "other instructions": ("Say something.", "Say nothing."),
}


@pytest.mark.parametrize("value", CHANGED)
def test_episodes_of_other_tasks_are_refused(played: Path, tmp_path: Path, value: str):
    shutil.copytree(played / "runs" / "first", tmp_path / "first")
    file = tmp_path / "first" / "buffer.jsonl"
    kept = file.read_text()
    file.write_text(kept.replace(*CHANGED[value]))
    assert file.read_text() != kept
    result = train(played, "nlac", "a", f"data.buffer={tmp_path / 'first'}")
    assert result.exit_code == 2 and value in result.stderr
    assert not (played / "runs" / "a").exists()


@pytest.mark.parametrize(
    ("algo", "more", "code"),
    [
        ("grpo", ["data.buffer=first"], "no-replay"),
        ("nlac", ["data.buffer=plain"], "no-episodes"),
        ("nlac", ["data.offline=true"], "offline-without-buffer"),
        ("archer", ["data.buffer=first", "data.offline=true"], "not-offline"),
        ("nlac", ["data.buffer=first", *TWENTYQ], "other-tasks"),
    ],
)
def test_unusable_buffer_is_refused(played: Path, algo: str, more: list[str], code: str):
    with user_error(code):
        trained(played / "runs", algo, "a", "steps=1", "eval.baseline=false", *more)
    assert not (played / "runs" / "a").exists()
