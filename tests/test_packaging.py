"""The wheel alone is enough: configuration and embedded weights travel inside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from agentrl_cli.config.compose import groups, options
from tests.paths import ROOT

EMBEDDED = ("arithmetic", "tau_mini", "twentyq", "wiki")
TINY = ROOT / "agentrl_cli" / "models" / "tiny"
NEEDED = {
    "agentrl_cli/py.typed",
    "agentrl_cli/conf/config.yaml",
    *(f"agentrl_cli/envs/twentyq/{name}.txt" for name in ("objects", "attributes")),
    *(f"agentrl_cli/models/tiny/{name}.json" for name in ("config", "tokenizer")),
    "agentrl_cli/models/tiny/chat_template.jinja",
    *(f"agentrl_cli/models/tiny/{env}/model.safetensors" for env in EMBEDDED),
}
LARGEST = 8_000_000  # bytes of one embedded weight file
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
    command = ["git", "ls-files", "agentrl_cli", "conf"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = {f"agentrl_cli/{name.removeprefix('agentrl_cli/')}" for name in listed.split()}
    assert tracked | NEEDED <= inside
    roots = {name.partition("/")[0] for name in inside}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"agentrl_cli"}


def test_embedded_weights_are_small():
    sizes = {file: file.stat().st_size for file in TINY.glob("*/model.safetensors")}
    assert {file: size for file, size in sizes.items() if size > LARGEST} == {}


def test_wheel_works_away_from_the_repository(wheel: Path, tmp_path: Path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    away = tmp_path / "away"
    away.mkdir()

    def agentrl(*arguments: str) -> str:
        command = [sys.executable, "-P", "-m", "agentrl_cli.cli", *arguments]
        return subprocess.run(
            command, cwd=away, env=environment, capture_output=True, text=True, check=True
        ).stdout

    for group in groups():
        assert json.loads(agentrl("list", group, "--json")) == options(group)
    assert "one episode" in agentrl("train", "--dry", "model.weights=null")
    assert list(away.iterdir()) == []
