"""A vLLM server that a run starts: command, lifetime, and errors at the start."""

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
from agentrl_cli.generators.vllm import (
    ServedModel,
    choose_port,
    serve_command,
    serve_variables,
)
from agentrl_cli.models.model_set import ModelSet
from tests.builders.command_line import agentrl
from tests.builders.vllm import generator, lora_models, server_settings, write_program
from tests.paths import ROOT

SAMPLING = Sampling(max_tokens=4, temperature=0.0, stop_ids=())
SERVED = ServedModel(path="some/model", dtype="bfloat16", rank=20, models=2)
LORA = "model.lora={rank: 20, alpha: 32, targets: [all-linear]}"


@pytest.fixture(scope="module")
def models(model_folder: Path) -> ModelSet:
    return lora_models(model_folder)


def ends(pid: int) -> bool:
    """Whether the process ends within some seconds."""
    state, until = Path(f"/proc/{pid}/stat"), time.monotonic() + 20
    while time.monotonic() < until:
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_command_serves_adapters():
    settings = server_settings(arguments=["--enforce-eager"])
    command = " ".join(serve_command(settings, SERVED, 8000))
    assert command.startswith("vllm serve some/model --host 127.0.0.1 --port 8000 ")
    assert "--dtype bfloat16 --generation-config vllm --skip-tokenizer-init" in command
    assert "--enable-lora --max-lora-rank 32 --max-loras 4 --max-cpu-loras 4" in command
    assert command.endswith(" --enforce-eager")
    assert serve_variables(settings)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"


def test_gpus_are_indices_into_visible_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "CUDA_VISIBLE_DEVICES" not in serve_variables(server_settings())
    chosen = server_settings(gpus=[1, 2])
    assert serve_variables(chosen)["CUDA_VISIBLE_DEVICES"] == "1,2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    assert serve_variables(chosen)["CUDA_VISIBLE_DEVICES"] == "5,7"
    with pytest.raises(UserError, match=r"\[3\]") as refused:
        serve_variables(server_settings(gpus=[3]))
    assert refused.value.code == "missing-gpu"


def test_invalid_server_settings_are_refused(models: ModelSet, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        in_use = server_settings(port=port, program=str(write_program(tmp_path)))
        with pytest.raises(UserError, match=str(port)) as refused:
            choose_port(in_use)
        assert refused.value.code == "port-in-use"
        with pytest.raises(UserError, match=str(port)):
            generator(models, server=in_use).check_context(64)
    assert choose_port(server_settings()) > 0
    with pytest.raises(UserError, match="no-such-vllm") as refused:
        generator(models, server=server_settings(program="no-such-vllm")).check_context(64)
    assert refused.value.code == "missing-program"
    with pytest.raises(UserError, match="513"):
        served = ServedModel(path="m", dtype="float32", rank=513, models=1)
        serve_command(server_settings(), served, 8000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("echo 'ValueError: no memory' >&2; echo bye; exit 3", r"code 3 \(ValueError: no memory\)"),
        ("exec sleep 1000", "not ready after 1 s"),
    ],
)
def test_server_that_does_not_start_is_stopped(
    models: ModelSet, tmp_path: Path, text: str, shown: str
):
    program = str(write_program(tmp_path, f"echo $$ > {tmp_path}/pid; {text}"))
    settings = server_settings(program=program, start_timeout=300.0 if "exit" in text else 1.0)
    with pytest.raises(UserError, match=shown) as refused:
        generator(models, server=settings).check_context(64)
    assert refused.value.code == "server-not-started"
    assert ends(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
def test_run_starts_a_server_and_ends_it(models: ModelSet, tmp_path: Path):
    ours = generator(models, server=server_settings(program=str(write_program(tmp_path))))
    ours.check_context(64)
    assert len(ours.generate([[5, 6, 7]], [1], SAMPLING)[0][0].ids) == 4
    started, folder = ours.process, ours.folder
    assert started is not None and folder is not None and folder.is_dir()
    assert httpx.get(f"{started.url}/health").is_success
    ours.close()
    assert started.process.poll() is not None and not folder.exists()


@pytest.mark.slow
def test_killed_server_is_named_in_the_fault(models: ModelSet, tmp_path: Path):
    ours = generator(models, server=server_settings(program=str(write_program(tmp_path))))
    ours.generate([[5, 6, 7]], [1], SAMPLING)
    assert ours.process is not None
    os.killpg(ours.process.process.pid, signal.SIGKILL)
    with pytest.raises(GeneratorError, match="ended with code -9"):
        ours.generate([[5, 6, 8]], [1], SAMPLING)
    ours.close()


@pytest.mark.slow
def test_server_ends_when_its_parent_is_killed(tmp_path: Path):
    program = write_program(tmp_path, "exec sleep 1000")
    code = f"""
import time
from pathlib import Path
from agentrl_cli.generators.vllm import ServedModel, ServerProcess
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
    os.kill(pid, 0)  # it is alive
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
    ("given", "shown"),
    [
        ((), "model.lora"),
        (("hardware=cpu",), "hardware=cpu"),
        ((LORA, "--print"), "model=tiny"),
        ((LORA, "hardware.generator.server.program=no-such"), "no-such"),
        ((LORA, "hardware.generator.server.prot=1"), "hardware.generator.server.prot"),
    ],
)
def test_serve_refuses_unusable_settings(given: tuple[str, ...], shown: str):
    result = agentrl("serve", *given)
    assert result.exit_code == 2 and shown in result.stderr and result.stdout == ""


@pytest.mark.slow
def test_serve_writes_the_embedded_model(tmp_path: Path):
    program = write_program(tmp_path, f'ls "$2" > {tmp_path}/files; exit 4')
    given = [LORA, f"hardware.generator.server.program={program}", "hardware.device=cpu"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    result = agentrl("serve", *given, f"hardware.generator.server.port={port}")
    assert result.exit_code == 1 and "code 4" in result.stderr
    assert f"hardware=vllm hardware.generator.urls=[http://127.0.0.1:{port}]" in result.stderr
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(
        (tmp_path / "files").read_text().split()
    )
