"""A server that a run starts: its command, its end with the run, and why it may not start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from agentrl_cli.core.errors import GeneratorError, UserError
from agentrl_cli.generators.base import Sampling
from agentrl_cli.generators.vllm_server import (
    ServedModel,
    choose_port,
    serve_command,
    serve_variables,
)
from agentrl_cli.models.model_set import ModelSet
from tests.builders.command_line import agentrl, refused
from tests.builders.vllm import generator, lora_models, server_settings, write_program
from tests.paths import ROOT

SAMPLING = Sampling(max_tokens=4, temperature=0.0, stop_ids=())
SERVED = ServedModel(path="some/model", dtype="bfloat16", rank=20, models=2)
LORA = "model.lora={rank: 20, alpha: 32, targets: [all-linear]}"


@pytest.fixture(scope="module")
def models(model_folder: Path) -> ModelSet:
    return lora_models(model_folder)


def is_alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def ends(pid: int) -> bool:
    """Whether the process ends within some seconds."""
    until = time.monotonic() + 20
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not is_alive(pid)


def test_the_command_holds_what_adapters_need():
    settings = server_settings(arguments=["--enforce-eager"])
    command = " ".join(serve_command(settings, SERVED, 8000))
    assert command.startswith("vllm serve some/model --host 127.0.0.1 --port 8000 ")
    assert "--dtype bfloat16 --generation-config vllm --skip-tokenizer-init" in command
    assert "--enable-lora --max-lora-rank 32 --max-loras 4 --max-cpu-loras 4" in command
    assert command.endswith(" --enforce-eager")
    assert serve_variables(settings)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"


def test_a_rank_that_vllm_cannot_hold_is_refused():
    served = ServedModel(path="m", dtype="float32", rank=513, models=1)
    with pytest.raises(UserError, match=r"model.lora.rank is 513; vLLM holds at most 512"):
        serve_command(server_settings(), served, 8000)


def test_gpus_are_counted_among_those_that_are_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "CUDA_VISIBLE_DEVICES" not in serve_variables(server_settings())
    chosen = server_settings(gpus=[1, 2])
    assert serve_variables(chosen)["CUDA_VISIBLE_DEVICES"] == "1,2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    assert serve_variables(chosen)["CUDA_VISIBLE_DEVICES"] == "5,7"
    with pytest.raises(UserError, match=r"gpus is \[3\], but CUDA_VISIBLE_DEVICES shows 3; name"):
        serve_variables(server_settings(gpus=[3]))


def test_a_port_in_use_is_refused(models: ModelSet, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = server_settings(port=port, program=str(write_program(tmp_path)))
        sentence = rf"port {port} of 127.0.0.1 cannot be had .*; give another hardware.generator"
        with pytest.raises(UserError, match=sentence):
            generator(models, server=settings).check_context(64)
        with pytest.raises(UserError, match=sentence):
            choose_port(settings)
    assert choose_port(server_settings()) > 0


def test_a_port_that_is_none_is_refused():
    with pytest.raises(UserError, match=r"server.port is 70000; give one of 1 to 65535"):
        server_settings(port=70000)


def test_a_program_that_is_not_there_is_refused(models: ModelSet):
    settings = server_settings(program="no-such-vllm")
    with pytest.raises(UserError, match="no program 'no-such-vllm' to serve with; install vLLM"):
        generator(models, server=settings).check_context(64)


@pytest.mark.slow
def test_a_server_that_ends_at_once_says_what_it_said(models: ModelSet, tmp_path: Path):
    text = "echo 'ValueError: too little memory' >&2; echo bye; exit 3"
    settings = server_settings(program=str(write_program(tmp_path, text)))
    sentence = r"did not start: it ended with code 3 \(ValueError: too little memory\); run agentrl"
    with pytest.raises(UserError, match=sentence):
        generator(models, server=settings).check_context(64)


@pytest.mark.slow
def test_a_server_that_is_never_ready_is_stopped(models: ModelSet, tmp_path: Path):
    text = f"echo $$ > {tmp_path}/pid; exec sleep 1000"
    program = str(write_program(tmp_path, text))
    settings = server_settings(program=program, start_timeout=1.0)
    with pytest.raises(UserError, match=r"it is not ready after 1 s \(hardware.generator"):
        generator(models, server=settings).check_context(64)
    assert ends(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
def test_a_run_starts_a_server_and_ends_it(models: ModelSet, tmp_path: Path):
    ours = generator(models, server=server_settings(program=str(write_program(tmp_path))))
    ours.check_context(64)
    assert len(ours.generate([[5, 6, 7]], [1], SAMPLING)[0][0].ids) == 4
    assert ours.connection is not None and ours.connection.process is not None
    process, folder = ours.connection.process.process, ours.connection.folder
    assert httpx.get(f"{ours.connection.urls[0]}/health").is_success and folder.is_dir()
    ours.close()
    assert process.poll() is not None and not folder.exists()


@pytest.mark.slow
def test_a_server_that_was_killed_is_named_with_how_it_ended(models: ModelSet, tmp_path: Path):
    ours = generator(models, server=server_settings(program=str(write_program(tmp_path))))
    ours.generate([[5, 6, 7]], [1], SAMPLING)
    assert ours.connection is not None and ours.connection.process is not None
    os.killpg(ours.connection.process.process.pid, signal.SIGKILL)
    with pytest.raises(GeneratorError, match="this run had started is gone: it ended with code -9"):
        ours.generate([[5, 6, 8]], [1], SAMPLING)
    ours.close()


@pytest.mark.slow
def test_a_server_ends_with_the_process_that_started_it_even_if_that_is_killed(tmp_path: Path):
    program = write_program(tmp_path, "exec sleep 1000")
    code = f"""
import time
from pathlib import Path
from agentrl_cli.generators.vllm_server import ServedModel, ServerProcess
from tests.builders.vllm import server_settings
served = ServedModel(path="m", dtype="float32", rank=8, models=1)
settings = server_settings(program={str(program)!r})
started = ServerProcess(settings, served, Path({str(tmp_path / "log")!r}))
print(started.process.pid, flush=True)
time.sleep(1000)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    parent.wait()
    assert ends(pid)


def test_serve_prints_the_command(tmp_path: Path):
    given = ["model=hf", f"model.path={tmp_path}", "model.dtype=bfloat16", "model.lora.rank=64"]
    result = agentrl("serve", "--print", *given, "algo=nlac")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 " in line and "CUDA_VISIBLE_DEVICES=1 " in line
    assert f" serve {tmp_path} --host 127.0.0.1 --port 8000 --dtype bfloat16 " in line
    assert "--max-lora-rank 64 " in line


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((), "model.lora is null"),
        (("hardware=cpu",), "hardware=cpu has no server; give hardware=vllm"),
        ((LORA, "--print"), "model=tiny"),
        ((LORA, "hardware.generator.server.program=no-such"), "there is no program 'no-such'"),
        ((LORA, "hardware.generator.server.prot=1"), "hardware.generator.server.prot is not a key"),
    ],
)
def test_what_cannot_be_served_is_refused(given: tuple[str, ...], sentence: str):
    refused(agentrl("serve", *given), sentence)


@pytest.mark.slow
def test_serve_writes_the_embedded_model_and_ends_as_the_server_does(tmp_path: Path):
    text = f'ls "$2" > {tmp_path}/files; exit 4'
    program = write_program(tmp_path, text)
    given = [LORA, f"hardware.generator.server.program={program}", "hardware.device=cpu"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    result = agentrl("serve", *given, f"hardware.generator.server.port={port}")
    assert result.exit_code == 1
    assert "the server ended with code 4; mend what it says above" in result.stderr
    assert f"hardware=vllm hardware.generator.urls=[http://127.0.0.1:{port}]" in result.stderr
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(
        (tmp_path / "files").read_text().split()
    )
