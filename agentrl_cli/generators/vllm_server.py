"""A vLLM server: the process, and the HTTP protocol as far as completions of token ids need it.

vLLM is another program in an environment of its own, so nothing of it is imported. Every response
of a server is validated before it is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
from pydantic import Field

from agentrl_cli.core.errors import RunAborted, UserError
from agentrl_cli.generators.base import Completion, Sampling
from agentrl_cli.generators.endpoint import SHOWN_CHARACTERS, redacted

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # LoRA ranks that vLLM allocates
ADAPTERS_PER_MODEL = 2  # the current one and its replacement
PR_SET_PDEATHSIG = 1  # prctl(2)
LIBRARY = ctypes.CDLL(None)  # opened here because little may run between fork and exec
POLL_SECONDS = 0.2
STOP_SECONDS = 20.0  # before a server is killed
API_KEY = "VLLM_API_KEY"  # the variable that vLLM itself reads
BUSY = (408, 429)  # statuses below 500 after which a retry may succeed
PLAIN_SAMPLING = {  # overrides the defaults of the server
    "n": 1, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "ignore_eos": True,
    "skip_special_tokens": False,
}  # fmt: skip
RETURN_IDS = {"logprobs": 0, "return_token_ids": True, "return_tokens_as_token_ids": True}


# the process


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How to start a server."""

    program: Annotated[str, Field(description="vllm, or its path in its own environment.")]
    host: Annotated[
        str, Field(description="Address to listen on. Every client there may load adapters.")
    ]
    port: Annotated[
        int | None, Field(ge=1, le=65535, description="Port to listen on. null: a free one.")
    ]
    gpus: Annotated[
        list[int] | None,
        Field(description="Indices into the GPUs that this program sees. null: all."),
    ]
    start_timeout: Annotated[float, Field(gt=0, description="Seconds until it must be ready.")]
    arguments: Annotated[
        list[str],
        Field(description='More arguments of vllm serve, as [--gpu-memory-utilization, "0.8"].'),
    ]


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """The base model at `path` in `dtype`, with adapters of `rank` for a number of `models`."""

    path: str
    dtype: str
    rank: int
    models: int


def serve_command(settings: ServerSettings, served: ServedModel, port: int) -> list[str]:
    """Return the command line. Raises UserError for a rank that vLLM cannot hold.

    It ignores the generation defaults of the model, serves token ids without a tokenizer, and
    accepts adapters at run time.
    """
    rank = next((rank for rank in RANKS if rank >= served.rank), None)
    if rank is None:
        line = f"model.lora.rank is {served.rank}; vLLM holds at most {RANKS[-1]}"
        raise UserError(line, code="rank-too-large")
    adapters = str(ADAPTERS_PER_MODEL * served.models)
    return [
        settings.program, "serve", served.path, "--host", settings.host, "--port", str(port),
        "--dtype", served.dtype, "--generation-config", "vllm", "--skip-tokenizer-init",
        "--enable-lora", "--max-lora-rank", str(rank),
        "--max-loras", adapters, "--max-cpu-loras", adapters, *settings.arguments,
    ]  # fmt: skip


def serve_variables(settings: ServerSettings) -> dict[str, str]:
    """Return the environment variables of the command. Raises UserError for a missing GPU."""
    variables = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_NO_USAGE_STATS": "1"}
    if settings.gpus is None:
        return variables
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else None
    if names and max(settings.gpus, default=0) >= len(names):
        line = f"hardware.generator.server.gpus is {settings.gpus}, but CUDA_VISIBLE_DEVICES shows"
        raise UserError(f"{line} {len(names)}; give indices from 0", code="missing-gpu")
    chosen = [names[i] if names else str(i) for i in settings.gpus]
    return variables | {"CUDA_VISIBLE_DEVICES": ",".join(chosen)}


def choose_port(settings: ServerSettings, usual: int | None = None) -> int:
    """Return the configured port, else the `usual` one, else a free one. UserError if in use."""
    port = settings.port or usual or 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, port))
        except OSError as error:
            line = f"port {port} of {settings.host} cannot be used ({error.strerror})"
            remedy = "give another hardware.generator.server.port, or the address of the program"
            remedy += " that uses it as hardware.generator.urls"
            raise UserError(f"{line}; {remedy}", code="port-in-use") from None
        return probe.getsockname()[1]


def find_program(program: str) -> str:
    """Return the path of vLLM's command. Raises UserError if there is none."""
    found = shutil.which(program)
    if found is None:
        line = f"program '{program}' was not found; install vLLM in its own environment and give"
        remedy = "hardware.generator.server.program=PATH/bin/vllm, or hardware.generator.urls"
        raise UserError(f"{line} {remedy}", code="missing-program")
    return found


class ServerProcess:
    """A server that ends with this process, even if this process is killed."""

    def __init__(self, settings: ServerSettings, served: ServedModel, log: Path) -> None:
        """Start it with its output in `log`. Raises UserError if it cannot be started."""
        self.settings, self.log = settings, log
        find_program(settings.program)
        port = choose_port(settings)
        self.url = f"http://{settings.host}:{port}"
        command = serve_command(settings, served, port)
        variables = serve_variables(settings)
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=os.environ | variables, start_new_session=True, preexec_fn=end_with_parent,
            )  # fmt: skip

    def wait_until_ready(self) -> None:
        """Wait until it answers. If it ends or is not ready in time, stop it; raise UserError."""
        seconds = self.settings.start_timeout
        until = time.monotonic() + seconds
        while not self._is_healthy():
            end = self.describe_end()
            if end is not None or time.monotonic() > until:
                self.stop()
                key = "hardware.generator.server.start_timeout"
                line = end or f"it is not ready after {seconds:g} s ({key})"
                remedy = "run agentrl serve with the same settings to see its output"
                line = f"the vLLM server did not start: {line}; {remedy}"
                raise UserError(line, code="server-not-started")
            time.sleep(POLL_SECONDS)

    def describe_end(self) -> str | None:
        """Return how it ended, with its last error; None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        lines = self.log.read_text(errors="replace").strip().splitlines() or ["no output"]
        errors = [line for line in lines if "Error" in line] or lines
        last = " ".join(errors[-1].split())[-SHOWN_CHARACTERS:]
        return f"it ended with code {code} ({last})"

    def stop(self) -> None:
        """End it and the processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _is_healthy(self) -> bool:
        try:
            with httpx.Client(trust_env=False, timeout=5.0) as http:
                return http.get(f"{self.url}/health").is_success
        except httpx.HTTPError:
            return False


def end_with_parent() -> None:
    """Let the system end this process with its parent; only Linux can."""
    with contextlib.suppress(AttributeError, OSError):
        LIBRARY.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


# the protocol


class ServerFault(Exception):
    """A server gave no answer, or an invalid one; another attempt may succeed."""


class Refusal(Exception):
    """A server refuses a request, and would refuse it again."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Weights as servers address them: a name that is never used again, and their folder."""

    name: str
    folder: Path
    version: int
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """One completion to sample. Token ids are below `vocabulary`."""

    adapter: Adapter
    prompt: list[int]
    seed: int
    sampling: Sampling
    vocabulary: int

    def to_json(self) -> dict[str, Any]:
        """Return the body of a request to `/v1/completions`."""
        sampling = {
            "max_tokens": self.sampling.max_tokens, "temperature": self.sampling.temperature,
            "stop_token_ids": list(self.sampling.stop_ids), "seed": self.seed,
        }  # fmt: skip
        named = {"model": self.adapter.name, "prompt": self.prompt}
        return named | sampling | PLAIN_SAMPLING | RETURN_IDS

    def completion(self, answer: Any) -> Completion:
        """Return the completion in a server's answer. Raises ServerFault if it is invalid."""
        try:
            choice = answer["choices"][0]
            ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            same_length = len(ids) == len(logprobs) > 0
        except (LookupError, TypeError):
            raise ServerFault("an answer without token ids and log-probs") from None
        numbers = all(type(p) in (int, float) and math.isfinite(p) and p < 1e-3 for p in logprobs)
        if not same_length or not numbers:
            raise ServerFault("an answer without one log-prob for each token")
        if not all(type(i) is int and 0 <= i < self.vocabulary for i in ids):
            raise ServerFault("an answer with token ids outside the vocabulary")
        ends = [i for i, token in enumerate(ids) if token in self.sampling.stop_ids]
        if ends != [len(ids) - 1] and (ends or len(ids) != self.sampling.max_tokens):
            raise ServerFault(f"an answer of {len(ids)} tokens that ends at neither stop nor limit")
        return Completion(ids, [float(p) for p in logprobs], "stop" if ends else "length")


class Server:
    """A client of the server at `url`, with at most `requests` requests in flight.

    An attempt takes at most `timeout` seconds, even if bytes keep arriving.
    """

    def __init__(self, url: str, *, requests: int, timeout: float) -> None:
        self.url, self.timeout = url, timeout
        self.loaded: set[str] = set()  # names of adapters
        self.loading = asyncio.Lock()
        self.slots = asyncio.Semaphore(requests)
        key = os.environ.get(API_KEY)
        self.http = httpx.AsyncClient(
            base_url=url, timeout=None, trust_env=False,  # local servers need no proxy
            limits=httpx.Limits(max_connections=requests + 1),
            headers={"Authorization": f"Bearer {key}"} if key else None,
        )  # fmt: skip

    async def complete(self, request: Request) -> Completion:
        """Return one completion; load its adapter first if this server lacks it."""
        async with self.slots:
            await self.load(request.adapter)
            try:
                answer = await self._request("POST", "/v1/completions", request.to_json())
            except Refusal as error:
                if error.status != 404:
                    line = f"{error}; fix that, then resume"
                    raise RunAborted(line, code="server-refused") from None
                self.loaded.discard(request.adapter.name)  # the server was restarted
                raise ServerFault(str(error)) from None
        try:
            return request.completion(answer)
        except ServerFault as fault:
            raise ServerFault(f"the server at {self.url} gave {fault}") from None

    async def load(self, adapter: Adapter) -> None:
        """Load an adapter unless it is loaded, and check the listing. RunAborted if refused."""
        async with self.loading:
            if adapter.name in self.loaded:
                return
            folder = str(adapter.folder.resolve())
            body = {"lora_name": adapter.name, "lora_path": folder}
            try:
                await self._request("POST", "/v1/load_lora_adapter", body)
            except Refusal as error:
                if "already been loaded" not in str(error):
                    raise RunAborted(_adapter_remedy(error), code="adapter-refused") from None
            cards = {card["id"]: card for card in await self.list_models()}
            if cards.get(adapter.name, {}).get("root") != folder:
                line = f"the server at {self.url} does not list adapter '{adapter.name}' in"
                line += f" {folder}; use a vLLM server that loads adapters"
                raise RunAborted(line, code="adapter-refused")
            self.loaded.add(adapter.name)

    async def unload(self, name: str) -> None:
        """Unload the adapter if it is loaded; ignore a server that is gone."""
        if name in self.loaded:
            self.loaded.discard(name)
            with contextlib.suppress(ServerFault, Refusal):
                await self._request("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    async def list_models(self) -> list[dict[str, Any]]:
        """Return the served models, base and adapters, each with `id` and `root`."""
        try:
            answer = await self._request("GET", "/v1/models")
        except Refusal as error:
            line = f"{error}; give the address of a vLLM server"
            raise RunAborted(line, code="not-vllm") from None
        cards = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(cards, list) or not all(
            isinstance(card, dict) and isinstance(card.get("id"), str) for card in cards
        ):
            line = f"the server at {self.url} does not list its models as vLLM does"
            raise RunAborted(f"{line}; give the address of a vLLM server", code="not-vllm")
        return cards

    async def close(self) -> None:
        """Unload all adapters and close the connections."""
        for name in list(self.loaded):
            await self.unload(name)
        await self.http.aclose()

    async def _request(self, method: str, path: str, content: Any = None) -> Any:
        """Return the JSON of an answer, or None if it is not JSON."""
        try:
            async with asyncio.timeout(self.timeout):
                response = await self.http.request(method, path, json=content)
        except TimeoutError:
            line = f"the server at {self.url} gave no answer within {self.timeout:g} s"
            raise ServerFault(line) from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            reason = redacted(f"{type(error).__name__} {error}", API_KEY)
            raise ServerFault(f"the server at {self.url} gave no answer ({reason})") from None
        answer = None
        with contextlib.suppress(ValueError, RecursionError):
            answer = response.json()
        if response.is_success:
            return answer
        inner = answer.get("error", answer) if isinstance(answer, dict) else None
        message = inner.get("message", inner.get("detail")) if isinstance(inner, dict) else None
        reason = message if isinstance(message, str) and message else response.text
        status = response.status_code
        line = f"the server at {self.url} answers {status} to {path} ({redacted(reason, API_KEY)})"
        if status in (401, 403):
            line += f"; set {API_KEY} to the key that it was started with"
            raise RunAborted(line, code="key-refused")
        if status in BUSY or (status >= 500 and path != "/v1/load_lora_adapter"):
            raise ServerFault(line)
        raise Refusal(status, line)


def _adapter_remedy(error: Refusal) -> str:
    if error.status == 404 or "LoRA is not enabled" in str(error):
        return f"{error}: it accepts no adapters while it runs; start it with agentrl serve"
    line = "hardware.generator.adapters must be a folder that the server sees under the same path"
    return f"{error}; {line}, and agentrl serve starts such a server"
