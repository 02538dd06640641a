"""A vLLM server as a process: its command for the adapters of a run, environment, start and end.
vLLM is another program, with an environment of its own; nothing of it is imported."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from agentrl_cli.core.errors import UserError, require_above

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for
PR_SET_PDEATHSIG = 1  # prctl(2)
POLL_SECONDS = 0.2
SHOWN_CHARACTERS = 300  # of its last line
STOP_SECONDS = 20.0  # that a server may take to end by itself
LIBRARY = ctypes.CDLL(None)  # opened here: little may be done between fork and exec
ADAPTERS_OF_A_MODEL = 2  # the one in use and the one that replaces it


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How a server is started: `program` is vLLM's command, `port` null a free one, `gpus` those
    that it gets, by their place among those that this process sees (null: all), `arguments` are
    further ones of `vllm serve`. It must be ready within `start_timeout` seconds."""

    program: str
    host: str
    port: int | None
    gpus: list[int] | None
    start_timeout: float
    arguments: list[str]

    def __post_init__(self) -> None:
        require_above(0, start_timeout=self.start_timeout)
        if self.port is not None and not 0 < self.port < 2**16:
            line = f"hardware.generator.server.port is {self.port}"
            raise UserError(f"{line}; give one of 1 to 65535, or null for a free one")


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """What is served: a base at `path` in numbers of `dtype`, and on it the adapters, of rank
    `rank`, of so many `models`."""

    path: str
    dtype: str
    rank: int
    models: int


def serve_command(settings: ServerSettings, served: ServedModel, port: int) -> list[str]:
    """The command line. Every default of the model's authors is left out, ids go in and out, and
    adapters are loaded while it runs. UserError for a rank that vLLM cannot hold."""
    rank = next((rank for rank in RANKS if rank >= served.rank), None)
    if rank is None:
        raise UserError(f"model.lora.rank is {served.rank}; vLLM holds at most {RANKS[-1]}")
    adapters = str(ADAPTERS_OF_A_MODEL * served.models)
    return [
        settings.program, "serve", served.path, "--host", settings.host, "--port", str(port),
        "--dtype", served.dtype, "--generation-config", "vllm", "--skip-tokenizer-init",
        "--enable-lora", "--max-lora-rank", str(rank),
        "--max-loras", adapters, "--max-cpu-loras", adapters, *settings.arguments,
    ]  # fmt: skip


def serve_variables(settings: ServerSettings) -> dict[str, str]:
    """The environment variables that the command needs. UserError for a GPU that is not there."""
    variables = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_NO_USAGE_STATS": "1"}
    if settings.gpus is None:
        return variables
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = seen.split(",") if seen else None
    if names and max(settings.gpus, default=0) >= len(names):
        line = f"hardware.generator.server.gpus is {settings.gpus}, but CUDA_VISIBLE_DEVICES shows"
        raise UserError(f"{line} {len(names)}; name them by their place, from 0")
    chosen = [names[i] if names else str(i) for i in settings.gpus]
    return variables | {"CUDA_VISIBLE_DEVICES": ",".join(chosen)}


def choose_port(settings: ServerSettings, usual: int | None = None) -> int:
    """The port of the settings, or else the `usual` one, or else any free one. UserError where it
    is in use."""
    port = settings.port or usual or 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, port))
        except OSError as error:
            line = f"port {port} of {settings.host} cannot be had ({error.strerror})"
            remedy = "give another hardware.generator.server.port, or the address of what runs"
            raise UserError(f"{line}; {remedy} there as hardware.generator.urls") from None
        return probe.getsockname()[1]


def find_program(program: str) -> str:
    """The path of vLLM's command. UserError where there is none."""
    found = shutil.which(program)
    if found is None:
        line = f"there is no program '{program}' to serve with; install vLLM in an environment of"
        remedy = "its own and give hardware.generator.server.program=PATH/bin/vllm"
        raise UserError(f"{line} {remedy}, or hardware.generator.urls")
    return found


class ServerProcess:
    """A server that this process has started and that ends with it, even where it is killed."""

    def __init__(self, settings: ServerSettings, served: ServedModel, log: Path) -> None:
        """Starts it; what it says goes to `log`. UserError where it cannot be started."""
        self.settings, self.log = settings, log
        find_program(settings.program)
        port = choose_port(settings)
        self.url = f"http://{settings.host}:{port}"
        command = serve_command(settings, served, port)
        variables = serve_variables(settings)
        with log.open("wb") as said:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                env=os.environ | variables, start_new_session=True, preexec_fn=end_with_parent,
            )  # fmt: skip

    def wait_until_ready(self) -> None:
        """UserError where it ends, or is not ready in time; it is then stopped."""
        seconds = self.settings.start_timeout
        until = time.monotonic() + seconds
        while not _is_healthy(self.url):
            end = self.describe_end()
            if end is not None or time.monotonic() > until:
                self.stop()
                key = "hardware.generator.server.start_timeout"
                line = end or f"it is not ready after {seconds:g} s ({key})"
                remedy = "run agentrl serve with the same settings to see all that it says"
                raise UserError(f"the vLLM server did not start: {line}; {remedy}")
            time.sleep(POLL_SECONDS)

    def describe_end(self) -> str | None:
        """How it ended and the last it said; None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        lines = self.log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        errors = [line for line in lines if "Error" in line] or lines
        last = " ".join(errors[-1].split())[-SHOWN_CHARACTERS:]
        return f"it ended with code {code} ({last})"

    def stop(self) -> None:
        """End it and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def end_with_parent() -> None:
    """Let the system end this process with the one that started it; only Linux can."""
    with contextlib.suppress(AttributeError, OSError):
        LIBRARY.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _is_healthy(url: str) -> bool:
    try:
        with httpx.Client(trust_env=False, timeout=5.0) as http:
            return http.get(f"{url}/health").is_success
    except httpx.HTTPError:
        return False
