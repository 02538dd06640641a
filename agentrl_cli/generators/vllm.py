"""Sampling from vLLM servers with the weights of this process.

vLLM is another program in its own environment, so nothing of it is imported, and every response of
a server is validated. Weights are pulled: if a model has changed since its last use, it is written
as an adapter with a new name, which every server loads in place of the old one. The first answers
under new weights are compared with log-probs that this process computes.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Protocol, TypeVar

import httpx
from pydantic import Field

from agentrl_cli.core import files
from agentrl_cli.core.errors import GeneratorError, RunAborted, UserError
from agentrl_cli.core.event_loop import wait_for
from agentrl_cli.core.terminal import echo
from agentrl_cli.core.types import derive_seed
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.generators.endpoint import SHOWN_CHARACTERS, checked_address, redacted

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
CHECKED_COMPLETIONS = 4  # of each server's first answers with an adapter, recomputed here
FIRST_PAUSE = 0.5  # seconds before a retry; doubles
LONGEST_PAUSE = 8.0
CLOSE_SECONDS = 5.0
PROBE = Sampling(max_tokens=16, temperature=1.0, stop_ids=())
PROBE_TOKENS = 8
BLOCK = 16  # tokens that the router hashes together
Result = TypeVar("Result")


# the process


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How to start a server."""

    program: Annotated[str, Field(description="vllm, or its path in its own environment.")]
    host: Annotated[
        str, Field(description="Address to listen on. Every client there may load adapters.")
    ]
    port: Annotated[
        int | None,
        Field(ge=1, le=65535, description="Port to listen on. null: a free one (serve: 8000)."),
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

    It ignores the generation defaults of the model, serves token ids without a tokenizer, reads as
    many tokens as fit into memory, and accepts adapters at run time.
    """
    rank = next((rank for rank in RANKS if rank >= served.rank), None)
    if rank is None:
        line = f"model.lora.rank is {served.rank}; vLLM holds at most {RANKS[-1]}"
        raise UserError(line, code="rank-too-large")
    adapters = str(ADAPTERS_PER_MODEL * served.models)
    return [
        settings.program, "serve", served.path, "--host", settings.host, "--port", str(port),
        "--dtype", served.dtype, "--max-model-len", "auto", "--generation-config", "vllm",
        "--skip-tokenizer-init",
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

    def describe_end(self, wait: float = 0.0) -> str | None:
        """Return how it ended, with its last error; None if it still runs after `wait` seconds."""
        try:
            code = self.process.wait(wait)
        except subprocess.TimeoutExpired:
            return None
        lines = self.log.read_text(errors="replace").strip().splitlines() or ["no output"]
        errors = [line for line in lines if "Error" in line] or lines
        last = " ".join(errors[-1].split())[-SHOWN_CHARACTERS:]
        return f"it ended with code {code} ({last})"

    def stop(self) -> None:
        """End it and the processes that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
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
    with suppress(AttributeError, OSError):
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


@dataclass(frozen=True)
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
        self.unchecked: set[str] = set()  # of these, without a comparison of log-probs
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
            self.unchecked.add(adapter.name)

    async def unload(self, name: str) -> None:
        """Unload the adapter if it is loaded; ignore a server that is gone."""
        if name in self.loaded:
            self.loaded.discard(name)
            self.unchecked.discard(name)
            with suppress(ServerFault, Refusal):
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
        with suppress(ValueError, RecursionError):
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


# the generator


class Models(Protocol):
    """The part of a model set with LoRA that the generator uses."""

    @property
    def config(self) -> Any: ...
    @property
    def generating(self) -> list[str]: ...
    def module(self, name: str) -> Any: ...
    def version(self, name: str) -> int: ...
    def fingerprint(self, name: str) -> str: ...
    def save_adapter(self, name: str, folder: Path) -> None: ...
    def find_base(self, folder: Path) -> str: ...


@dataclass
class VLLMGenerator(Generator):
    """Samples from vLLM servers with the LoRA adapters of a model set."""

    gives_hidden_states = False

    models: Models
    _: KW_ONLY
    urls: Annotated[
        list[str],
        Field(description="Addresses of running servers, as [http://127.0.0.1:8000]. Empty: one is "
              "started and ends with the run."),
    ]  # fmt: skip
    requests: Annotated[int, Field(ge=1, description="Requests in flight to each server.")]
    timeout: Annotated[float, Field(gt=0, description="Seconds of one attempt.")]
    retries: Annotated[int, Field(ge=0, description="Further attempts, at another server first.")]
    max_logp_diff: Annotated[
        float | None,
        Field(gt=0, description="Largest mean difference between log-probs of server and trainer, "
              "in nats per token. null: no limit."),
    ]  # fmt: skip
    adapters: Annotated[
        str | None,
        Field(description="Folder that hands over weights, under the same path for the servers. "
              "null: a temporary folder of this machine."),
    ]  # fmt: skip
    server: Annotated[
        ServerSettings, Field(description="How a server is started, also by agentrl serve.")
    ]
    servers: list[Server] = field(default_factory=list, init=False, repr=False)
    process: ServerProcess | None = field(default=None, init=False, repr=False)
    folder: Path | None = field(default=None, init=False, repr=False)  # of adapters
    router: PrefixRouter = field(init=False, repr=False)
    loaded: dict[str, Adapter] = field(default_factory=dict, init=False, repr=False)  # by model
    numbers: Any = field(default_factory=count, init=False, repr=False)  # of adapters
    meter: defaultdict[str, float] = field(init=False, repr=False)
    pulling: Any = field(default_factory=Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        for url in self.urls:
            parts = checked_address(url, "hardware.generator.urls", f"a key as {API_KEY}")
            if parts.scheme not in ("http", "https") or not parts.hostname:
                line = f"hardware.generator.urls holds '{url}'"
                line += "; give addresses such as http://127.0.0.1:8000"
                raise UserError(line, code="invalid-address")
        self.meter = defaultdict(float)
        self.urls = [url.rstrip("/").removesuffix("/v1") for url in self.urls]
        if self.models.config.lora is None:
            line = "hardware=vllm sends LoRA adapters to its servers, and model.lora is null; give"
            line += " model.lora={rank:16,alpha:32,targets:[all-linear]}, or train all weights with"
            raise UserError(f"{line} hardware=gpu", code="lora-required")

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """Return `sampling.n` completions for each prompt; each is a request with its own seed.

        Raises GeneratorError if some got no answer, RunAborted if a server refuses or has other
        weights, and ValueError for an empty prompt.
        """
        if not all(prompts):
            raise ValueError(f"prompt {prompts.index([])} is empty; give at least one token")
        rows = [prompt for prompt in prompts for _ in range(sampling.n)]
        streams = [derive_seed(seed, j) for seed in seeds for j in range(sampling.n)]
        self._connect()
        homes = self.router.route(rows, model)
        answers = self._sample(rows, streams, sampling, model, homes)
        found = [answers[k : k + sampling.n] for k in range(0, len(answers), sampling.n)]
        faults = [answer for answer in answers if isinstance(answer, ServerFault)]
        if faults:
            whole = [None if any(isinstance(c, ServerFault) for c in row) else row for row in found]
            raise GeneratorError(self._describe(faults[0]), whole)
        return found  # pyright: ignore[reportReturnType]

    def check_context(self, most: int, model: str = "policy") -> None:
        """Connect to the servers or start one, and sample a few tokens from each.

        Raises UserError if a server cannot be reached, serves another model, accepts no adapters,
        or reads fewer than `most` tokens.
        """
        try:
            self._connect()
            calls = [self._retry(lambda i, s=server: s.list_models()) for server in self.servers]
            for server, cards in zip(self.servers, wait_for(_gather(calls)), strict=True):
                lengths = [card.get("max_model_len") for card in cards]
                reads = min([n for n in lengths if isinstance(n, int)], default=math.inf)
                if most > reads:
                    line = f"the server at {server.url} reads at most {reads} tokens, and {most}"
                    line += " are needed; raise its --max-model-len, or lower rollout.max_seq_len"
                    raise UserError(line, code="context-too-long")
            self._probe(model)
        except ServerFault as fault:
            remedy = "start a server with agentrl serve, or correct hardware.generator.urls"
            line = f"{self._describe(fault)}; {remedy}"
            raise UserError(line, code="server-unreachable") from None
        except RunAborted as refusal:
            raise UserError(str(refusal), code=refusal.code) from None

    def clear(self) -> None:
        if self.servers:
            self.router.clear()

    def metrics(self) -> dict[str, float]:
        """Return loads, retries and gaps since the last call, and the versions of the servers."""
        found = {"time/weight_sync": self.meter.pop("sync_seconds", 0.0)}
        found |= {f"generator/{key}": value for key, value in self.meter.items()}
        for name, adapter in self.loaded.items():
            found[f"generator/{name}_version"] = float(adapter.version)
            found[f"generator/{name}_fingerprint"] = float(int(adapter.fingerprint[:12], 16))
        self.meter = defaultdict(float, loads=0.0, retries=0.0)
        return found

    def close(self) -> None:
        """End a server that was started here, unload adapters from others, remove the folder."""
        if self.folder is None:
            return
        atexit.unregister(self.close)
        if self.process:
            self.process.stop()
        with suppress(Exception):  # the run has ended, whatever the servers do
            wait_for(_gather(server.close() for server in self.servers), CLOSE_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.servers, self.process, self.loaded, self.folder = [], None, {}, None

    def _connect(self) -> None:
        """Make the folder for adapters, and start a server if no address is given.

        All is undone by `close`, at the latest when this process exits. Raises UserError if the
        server cannot start or the folder cannot be written.
        """
        if self.servers:
            return
        root = Path(tempfile.gettempdir() if self.adapters is None else self.adapters)
        folder = root.resolve() / f"agentrl-{secrets.token_hex(4)}"
        with files.explain_write_errors(folder, "give hardware.generator.adapters=FOLDER"):
            folder.mkdir(parents=True)
        self.folder = folder
        atexit.register(self.close)
        try:
            urls = self.urls or [self._start(folder)]
        except BaseException:
            self.close()
            raise
        self.servers = [Server(url, requests=self.requests, timeout=self.timeout) for url in urls]
        self.router = PrefixRouter(len(urls))
        self.meter["retries"] += 0.0

    def _start(self, folder: Path) -> str:
        """Start a server and return its address."""
        models = self.models
        dtype = str(models.module(models.generating[0]).dtype).removeprefix("torch.")
        served = ServedModel(
            path=models.find_base(folder / "base"), dtype=dtype, rank=models.config.lora.rank,
            models=len(models.generating),
        )  # fmt: skip
        self.process = ServerProcess(self.server, served, folder / "server.log")
        echo(f"starting a vLLM server at {self.process.url}", err=True)
        self.process.wait_until_ready()
        return self.process.url

    def _probe(self, model: str) -> None:
        """Sample from each server, then unload: a run may restore other weights first."""
        words = self._vocabulary(model)
        prompt = [derive_seed("probe", i) % words for i in range(PROBE_TOKENS)]
        homes = list(range(len(self.servers)))
        for answer in self._sample([prompt] * len(homes), homes, PROBE, model, homes):
            if isinstance(answer, ServerFault):
                raise answer
        wait_for(self._unload(list(self.loaded.values())))
        self.loaded = {}

    def _sample(
        self,
        prompts: list[list[int]],
        seeds: list[int],
        sampling: Sampling,
        model: str,
        homes: list[int],
    ) -> list[Completion | ServerFault]:
        """Return a completion or a fault for each prompt; `homes` are the servers to try first."""
        try:
            adapter = self._pull(model)
        except ServerFault as fault:
            return [fault] * len(prompts)
        vocabulary = self._vocabulary(model)
        requests = [
            Request(adapter, prompt, seed, sampling, vocabulary)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        done = count(1)

        async def counted(request: Request, home: int) -> tuple[Server, Completion]:
            answer = await self._complete(request, home)
            if self.activity is not None:
                self.activity.answered = next(done) / len(requests)
            return answer

        calls = [counted(*pair) for pair in zip(requests, homes, strict=True)]
        answers = wait_for(_gather(calls, faults=True))
        self._check_gap(model, adapter, requests, answers)
        return [one if isinstance(one, ServerFault) else one[1] for one in answers]

    def _pull(self, model: str) -> Adapter:
        """Return the adapter with the current weights. Raises ServerFault if no server answers."""
        with self.pulling:
            version, old = self.models.version(model), self.loaded.get(model)
            if old is not None and old.version == version:
                return old
            began = time.perf_counter()
            fingerprint = self.models.fingerprint(model)
            assert self.folder is not None
            name = f"{self.folder.name}-{next(self.numbers)}-{model}-v{version}-{fingerprint}"
            folder = self.folder / name
            new = Adapter(name=name, folder=folder, version=version, fingerprint=fingerprint)
            try:
                self.models.save_adapter(model, folder)
                wait_for(self._exchange(new, old))
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            if old is not None:
                shutil.rmtree(old.folder, ignore_errors=True)
            self.loaded[model] = new
            self.meter["loads"] += 1.0
            self.meter["sync_seconds"] += time.perf_counter() - began
            return new

    def _check_gap(
        self,
        model: str,
        adapter: Adapter,
        requests: list[Request],
        answers: list[tuple[Server, Completion] | ServerFault],
    ) -> None:
        """Recompute a few of each server's first answers; raise RunAborted if the log-probs of a
        server differ too much."""
        taken, gaps = Counter[Server](), defaultdict[Server, list[float]](list)
        module = self.models.module(model)
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, ServerFault):
                continue
            server, found = answer
            if adapter.name in server.unchecked and taken[server] < CHECKED_COMPLETIONS:
                taken[server] += 1
                own = recompute_logprobs(module, request.prompt, found.ids)
                gaps[server] += [abs(a - b) for a, b in zip(own, found.logprobs, strict=True)]
        for server, found in gaps.items():
            server.unchecked.discard(adapter.name)
            gap, limit = sum(found) / len(found), self.max_logp_diff
            for key, value in {"logp_diff_mean": gap, "logp_diff_max": max(found)}.items():
                self.meter[key] = max(value, self.meter[key])
            if limit is not None and not gap <= limit:
                line = f"log-probs of '{model}' differ by {gap:.2g} nats a token between"
                line += f" {server.url} and '{self.models.config.path}' here (limit {limit:g});"
                line += " serve that model in its dtype, or raise"
                line += " hardware.generator.max_logp_diff"
                raise RunAborted(line, code="logprob-gap")

    def _vocabulary(self, model: str) -> int:
        return self.models.module(model).config.get_text_config().vocab_size

    def _describe(self, fault: ServerFault) -> str:
        """Return the fault, and how a server that was started here has ended."""
        # a connection breaks some moments before the process has ended
        end = self.process.describe_end(wait=1.0) if self.process else None
        return f"{fault}; the server that this run started has ended: {end}" if end else str(fault)

    async def _exchange(self, new: Adapter, old: Adapter | None) -> None:
        """Load `new` everywhere, then unload `old`. Raises ServerFault if no server loads it."""
        loads = [self._retry(lambda i, s=server: s.load(new)) for server in self.servers]
        faults = [fault for fault in await _gather(loads, faults=True) if fault is not None]
        if len(faults) == len(self.servers):
            raise faults[0]
        if old is not None:
            await self._unload([old])

    async def _unload(self, adapters: list[Adapter]) -> None:
        pairs = [(server, adapter) for server in self.servers for adapter in adapters]
        await _gather(server.unload(adapter.name) for server, adapter in pairs)

    async def _complete(self, request: Request, home: int) -> tuple[Server, Completion]:
        """Return the server that answered and its completion."""
        size = len(self.servers)

        async def attempt(i: int) -> tuple[Server, Completion]:
            server = self.servers[(home + i) % size]
            return server, await server.complete(request)

        return await self._retry(attempt, size)

    async def _retry(self, attempt: Callable[[int], Awaitable[Result]], servers: int = 1) -> Result:
        """Return the first result without a fault; pause after each of `servers` was tried."""
        for i in range(self.retries):
            try:
                return await attempt(i)
            except ServerFault:
                self.meter["retries"] += 1.0
            if i + 1 >= servers:
                await asyncio.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (i + 1 - servers)))
        return await attempt(self.retries)


async def _gather(calls: Iterable[Awaitable[Any]], *, faults: bool = False) -> list[Any]:
    """Return the results of all calls; with `faults`, a ServerFault is a result, too."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException) and not (faults and isinstance(one, ServerFault)):
            raise one
    return found


class PrefixRouter:
    """Sends each prompt to the server that has read most of it, with equal shares of a call."""

    def __init__(self, servers: int) -> None:
        self.servers = servers
        self.server_of: dict[int, int] = {}  # by the hash of a prefix

    def route(self, prompts: list[list[int]], model: str) -> list[int]:
        """Return a server for each prompt. Prompts with the longest known prefix choose first."""
        if self.servers == 1:
            return [0] * len(prompts)
        chains: list[list[int]] = []  # of each prompt, the hashes of its prefixes of whole blocks
        for prompt in prompts:
            chain, last = [], hash(model)
            for end in range(BLOCK, len(prompt) + 1, BLOCK):
                last = hash((last, *prompt[end - BLOCK : end]))
                chain.append(last)
            chains.append(chain)
        known = [sum(key in self.server_of for key in chain) for chain in chains]
        share = math.ceil(len(prompts) / self.servers)
        loads, chosen = [0] * self.servers, [0] * len(prompts)
        for i in sorted(range(len(prompts)), key=lambda i: -known[i]):
            idlest = loads.index(min(loads))
            server = self.server_of[chains[i][known[i] - 1]] if known[i] else idlest
            if loads[server] >= share:
                server = idlest
            chosen[i] = server
            loads[server] += 1
            self.server_of.update(dict.fromkeys(chains[i], server))
        return chosen

    def clear(self) -> None:
        self.server_of.clear()


def recompute_logprobs(module: Any, prompt: list[int], ids: list[int]) -> list[float]:
    """Return the log-probs of `ids` after `prompt` at temperature 1, computed by `module`."""
    import torch

    with torch.inference_mode():
        row = torch.tensor([prompt + ids], device=module.device)
        logits = module(input_ids=row, use_cache=False, logits_to_keep=len(ids) + 1).logits
        logprobs = torch.log_softmax(logits[0, :-1].float(), -1)  # [ids, words]
        return logprobs.gather(1, row[0, -len(ids) :, None])[:, 0].tolist()
