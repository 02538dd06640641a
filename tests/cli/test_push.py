"""`agentrl export RUN DIR --push OWNER/NAME`, with the real client against a stand-in hub."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from agentrl_cli.cli.export import push
from agentrl_cli.runs.run import Run
from tests.builders.command_line import agentrl, refused
from tests.builders.errors import user_error
from tests.builders.runs import trained
from tests.fakes.hub_server import TOKEN, FakeHub, serving
from tests.paths import ROOT

ONE = ["steps=1", "save_every=0", "eval_every=0", "eval.baseline=false", "eval.greedy=false"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of one step."""
    return trained(tmp_path_factory.mktemp("runs"), "grpo", "it", *ONE)


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """The hub of this process, with a valid token."""
    with serving() as hub:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield hub


def model(folder: Path) -> Path:
    """A folder with a large and a small file."""
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 100)
    (folder / "README.md").write_text("---\ntags: [agentrl]\n---\n# it\n")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.slow
def test_every_file_reaches_the_repository(run: Run, tmp_path: Path, hub: FakeHub):
    command = [sys.executable, "-m", "agentrl_cli.cli", "export", str(run.folder)]
    environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [*command, str(tmp_path / "plain"), "--push", "me/it"],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [str(tmp_path / "plain"), f"{hub.url}/me/it"]
    assert hub.files == {"me/it": contents(tmp_path / "plain")} and hub.private == {"me/it": False}
    assert {"model.safetensors", "tokenizer.json", "README.md"} <= hub.files["me/it"].keys()


def test_second_upload_replaces_the_files(tmp_path: Path, hub: FakeHub):
    folder = model(tmp_path / "plain")
    push(folder, "me/it")
    (folder / "model.safetensors").write_bytes(b"new")
    push(folder, "me/it")
    assert hub.files == {"me/it": contents(folder)}


def test_private_never_uploads_to_a_public_repository(tmp_path: Path, hub: FakeHub):
    folder = model(tmp_path / "plain")
    push(folder, "me/hidden", private=True)
    assert hub.private == {"me/hidden": True} and hub.files["me/hidden"] == contents(folder)
    hub.files["me/open"], hub.private["me/open"] = {}, False
    with user_error("public-repository", "'me/open'"):
        push(folder, "me/open", private=True)
    assert hub.files["me/open"] == {}


@pytest.mark.parametrize("name", ["it", "me/it/now", "me/", "/it", "me/it.git", "hf://me/it", ""])
def test_name_without_owner_is_refused(tmp_path: Path, hub: FakeHub, name: str):
    with user_error("bad-repository", f"'{name}'"):
        push(model(tmp_path / "plain"), name)
    assert hub.files == {}


def test_wrong_token_is_refused(tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with user_error("not-uploaded", "'me/it'", "Invalid username") as caught:
        push(model(tmp_path / "plain"), "me/it")
    assert hub.files == {} and "hf_wrong" not in str(caught.value)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.parametrize("name", ["it", "me/it"])
def test_refused_upload_keeps_the_export(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    if "/" in name:
        monkeypatch.delenv("HF_TOKEN")
    done = agentrl("export", str(run.folder), str(tmp_path / "plain"), "--push", name)
    refused(done, f"'{tmp_path / 'plain'}'")
    assert {"model.safetensors", "README.md"} <= contents(tmp_path / "plain").keys()


@pytest.mark.parametrize("offline", [False, True])
def test_silent_hub_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: bool):
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    with user_error("no-hub", "HF_HUB_OFFLINE" if offline else constants.ENDPOINT):
        push(model(tmp_path / "plain"), "me/it")


def test_options_that_upload_nothing_are_refused(tmp_path: Path):
    refused(agentrl("export", "a", "out", "--private"), "--push")
    refused(agentrl("export", "a", "--inspect", "logs", "--push", "me/it"), "--inspect")
