"""The wheel alone is enough: configuration and bundled weights travel inside it, and it runs with
every Python that pyproject.toml names."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from uv import find_uv_bin

from agentrl_cli.config.compose import groups, options
from tests.builders.page_commands import SMALL, SMALL_NLAC
from tests.paths import ROOT

TINY = ROOT / "agentrl_cli" / "models" / "tiny"
BUNDLED = ("arithmetic", "courier", "tau_mini", "twentyq", "wiki")
NEEDED = {
    "agentrl_cli/py.typed",
    "agentrl_cli/conf/config.yaml",
    *(f"agentrl_cli/envs/twentyq/{name}.txt" for name in ("objects", "attributes")),
    *(f"agentrl_cli/models/tiny/{name}.json" for name in ("config", "tokenizer")),
    "agentrl_cli/models/tiny/chat_template.jinja",
    *(f"agentrl_cli/models/tiny/{env}/model.safetensors" for env in BUNDLED),
}
LARGEST = 8_000_000  # bytes of one bundled weight file
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PYTHONS = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
FIRST_RUN = ["train", "algo=nlac", "env=twentyq", "name=first", *SMALL["train"], *SMALL_NLAC]
IMPORT = "import agentrl_cli; agentrl_cli.compose(['env=wiki']); print(agentrl_cli.__file__)"
UV = find_uv_bin()


def printed(*command: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """The output of a command that succeeds."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    printed(UV, "build", "--quiet", "--out-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_wheel_holds_every_yaml_and_every_data_file(wheel: Path):
    inside = set(zipfile.ZipFile(wheel).namelist())
    listed = printed("git", "ls-files", "agentrl_cli", "conf", cwd=ROOT)
    tracked = {f"agentrl_cli/{name.removeprefix('agentrl_cli/')}" for name in listed.split()}
    assert tracked | NEEDED <= inside
    roots = {name.partition("/")[0] for name in inside}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"agentrl_cli"}


def test_bundled_weights_are_small():
    sizes = {file: file.stat().st_size for file in TINY.glob("*/model.safetensors")}
    assert {file: size for file, size in sizes.items() if size > LARGEST} == {}


@pytest.mark.slow
def test_wheel_works_away_from_the_repository(wheel: Path, tmp_path: Path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    away = tmp_path / "away"
    away.mkdir()

    def agentrl(*arguments: str) -> str:
        command = [sys.executable, "-P", "-m", "agentrl_cli.cli", *arguments]
        return printed(*command, cwd=away, env=environment)

    for group in groups():
        assert json.loads(agentrl("list", group, "--json")) == options(group)
    assert "one episode" in agentrl("train", "--dry", "model.weights=null")
    assert list(away.iterdir()) == []


@pytest.fixture(scope="module")
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for packages that uv downloads; several GB, removed at the end."""
    folder = tmp_path_factory.mktemp("uv")
    yield folder
    shutil.rmtree(folder)


@pytest.mark.wheel
@pytest.mark.parametrize("version", PYTHONS)
def test_first_run_from_the_wheel(wheel: Path, uv_cache: Path, tmp_path: Path, version: str):
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places = [str(path) for path in pyenv.glob(f"versions/{version}.*/bin")]
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "PATH": os.pathsep.join([*places, os.environ["PATH"]]),
        "UV_CACHE_DIR": str(uv_cache), "UV_PYTHON_DOWNLOADS": "never",
        "UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", ""),
    }  # fmt: skip
    find = [UV, "python", "find", "--system", "--no-project", version]
    if subprocess.run(find, env=environment, capture_output=True, check=False).returncode:
        pytest.skip(f"Python {version} is not installed")
    python = printed(*find, env=environment).strip()

    def uvx(*command: str) -> str:
        start = [UV, "tool", "run", "--python", python, "--from", wheel]
        constraints = ["--constraints", ROOT / "constraints.txt"]
        return printed(*start, *constraints, *command, env=environment, cwd=tmp_path)

    assert printed(python, "-V").split()[1].startswith(f"{version}.")
    assert f"python{version}/" in uvx("python", "-P", "-c", IMPORT)
    assert "agentrl train" in uvx("agentrl", "--help")
    assert "runs/first" in uvx("agentrl", *FIRST_RUN)
    assert [file.name for file in tmp_path.iterdir()] == ["runs"]


@pytest.mark.wheel
def test_index_accepts_the_metadata(wheel: Path, uv_cache: Path):
    environment = os.environ | {"UV_CACHE_DIR": str(uv_cache)}
    files = [wheel, *wheel.parent.glob("*.tar.gz")]
    assert len(files) == 2
    printed(UV, "tool", "run", "twine@7.0.0", "check", "--strict", *files, env=environment)


def test_table_names_every_extra():
    page = (ROOT / "docs" / "usage.md").read_text()
    table = page.partition("| extra |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == sorted(EXTRAS)
    code = "\n".join(file.read_text() for file in (ROOT / "agentrl_cli").rglob("*.py"))
    assert set(re.findall(r"agentrl-cli\[([a-z-]+)\]", code)) <= EXTRAS.keys()
    (both,) = EXTRAS["all"]
    assert set(both[len("agentrl-cli[") : -1].split(",")) == EXTRAS.keys() - {"all", "test", "docs"}
