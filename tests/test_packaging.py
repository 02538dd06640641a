"""The wheel alone is enough: configuration and embedded weights travel inside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from agentrl_cli.config import groups, options

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True, stdin=subprocess.DEVNULL)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_every_yaml_and_every_data_file(wheel: Path):
    inside = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "agentrl_cli", "conf"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    expected = {
        name if name.startswith("agentrl_cli") else f"agentrl_cli/{name}" for name in tracked
    }
    assert expected <= inside


def test_wheel_works_away_from_the_repository(wheel: Path, tmp_path: Path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    away = tmp_path / "away"
    away.mkdir()
    for group in groups():
        command = [sys.executable, "-P", "-m", "agentrl_cli.cli", "list", group, "--json"]
        done = subprocess.run(
            command, cwd=away, env=environment, capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout) == options(group)
