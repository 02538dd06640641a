"""Sampling from vLLM servers with the weights of this process.

Weights are pulled: if a model has changed since its last use, it is written as an adapter with a
new name, which every server loads in place of the old one. The first answers under new weights are
compared with log-probs that this process computes.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import secrets
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import Field

from agentrl_cli.core import files
from agentrl_cli.core.errors import GeneratorError, RunAborted, UserError
from agentrl_cli.core.terminal import echo
from agentrl_cli.core.types import derive_seed
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.generators.endpoint import checked_address, wait_for
from agentrl_cli.generators.vllm_server import (
    API_KEY,
    Adapter,
    Request,
    ServedModel,
    Server,
    ServerFault,
    ServerProcess,
    ServerSettings,
)

Result = TypeVar("Result")
CHECKED_COMPLETIONS = 4  # of each server's first answers with an adapter, recomputed here
FIRST_PAUSE = 0.5  # seconds before a retry; doubles
LONGEST_PAUSE = 8.0
CLOSE_SECONDS = 5.0
PROBE = Sampling(max_tokens=16, temperature=1.0, stop_ids=())
PROBE_TOKENS = 8
BLOCK = 16  # tokens that the router hashes together


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
    fleet: Fleet | None = field(default=None, init=False, repr=False)
    loaded: dict[str, Adapter] = field(default_factory=dict, init=False, repr=False)  # by model
    unchecked: set[Adapter] = field(default_factory=set, init=False, repr=False)
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
        homes = self._connected().router.route(rows, model)
        answers = self._sample(rows, streams, sampling, model, homes)
        found = [answers[k : k + sampling.n] for k in range(0, len(answers), sampling.n)]
        faults = [answer for answer in answers if isinstance(answer, ServerFault)]
        if faults:
            whole = [None if any(isinstance(c, ServerFault) for c in row) else row for row in found]
            raise GeneratorError(self._describe(faults[0]), whole)
        return found  # pyright: ignore[reportReturnType]

    def load(self, model: str, version: int, path: Path | None = None) -> None:
        """Do nothing: weights are pulled at the next use of the model."""

    def check_context(self, most: int, model: str = "policy") -> None:
        """Connect to the servers or start one, and sample a few tokens from each.

        Raises UserError if a server cannot be reached, serves another model, accepts no adapters,
        or reads fewer than `most` tokens.
        """
        try:
            fleet = self._connected()
            for server, cards in zip(fleet.servers, wait_for(fleet.list_models()), strict=True):
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
        if self.fleet:
            self.fleet.router.clear()

    def metrics(self) -> dict[str, float]:
        """Return loads, retries and gaps since the last call, and the versions of the servers."""
        found = {"time/weight_sync": self.meter.pop("sync_seconds", 0.0)}
        found |= {f"generator/{key}": value for key, value in self.meter.items()}
        for name, adapter in self.loaded.items():
            found[f"generator/{name}_version"] = float(adapter.version)
            found[f"generator/{name}_fingerprint"] = float(int(adapter.fingerprint[:12], 16))
        if self.fleet:
            found["generator/retries"] = float(self.fleet.retried)
            self.fleet.retried = 0
        self.meter = defaultdict(float, loads=0.0)
        return found

    def close(self) -> None:
        """Unload the adapters, end a server that was started here, and remove written files."""
        if self.fleet:
            self.fleet.close()
            self.fleet, self.loaded = None, {}

    def _connected(self) -> Fleet:
        if self.fleet is None:
            self.fleet = Fleet(self)
        return self.fleet

    def _probe(self, model: str) -> None:
        """Sample from each server, then unload: a run may restore other weights first."""
        words, fleet = self._vocabulary(model), self._connected()
        prompt = [derive_seed("probe", i) % words for i in range(PROBE_TOKENS)]
        homes = list(range(len(fleet.servers)))
        for answer in self._sample([prompt] * len(homes), homes, PROBE, model, homes):
            if isinstance(answer, ServerFault):
                raise answer
        wait_for(fleet.unload(list(self.loaded.values())))
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
            Request(
                adapter=adapter, prompt=prompt, seed=seed, sampling=sampling, vocabulary=vocabulary
            )
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        answers = wait_for(self._connected().complete(requests, homes))
        if adapter in self.unchecked:
            self._check_gap(model, adapter, requests, answers, homes)
        return answers

    def _pull(self, model: str) -> Adapter:
        """Return the adapter with the current weights. Raises ServerFault if no server answers."""
        with self.pulling:
            version, old = self.models.version(model), self.loaded.get(model)
            if old is not None and old.version == version:
                return old
            began, fleet = time.perf_counter(), self._connected()
            fingerprint = self.models.fingerprint(model)
            name = f"{fleet.folder.name}-{next(fleet.numbers)}-{model}-v{version}-{fingerprint}"
            folder = fleet.folder / name
            new = Adapter(name=name, folder=folder, version=version, fingerprint=fingerprint)
            try:
                self.models.save_adapter(model, folder)
                wait_for(fleet.exchange(new, old))
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            if old is not None:
                self.unchecked.discard(old)
                shutil.rmtree(old.folder, ignore_errors=True)
            self.loaded[model] = new
            self.unchecked.add(new)
            self.meter["loads"] += 1.0
            self.meter["sync_seconds"] += time.perf_counter() - began
            return new

    def _check_gap(
        self,
        model: str,
        adapter: Adapter,
        requests: list[Request],
        answers: list[Completion | ServerFault],
        homes: list[int],
    ) -> None:
        """Recompute a few answers of each server; raise RunAborted if log-probs differ too much."""
        taken, gaps, module = Counter[int](), list[float](), self.models.module(model)
        for request, answer, home in zip(requests, answers, homes, strict=True):
            if isinstance(answer, Completion) and taken[home] < CHECKED_COMPLETIONS:
                taken[home] += 1
                own = recompute_logprobs(module, request.prompt, answer.ids)
                gaps += [abs(a - b) for a, b in zip(own, answer.logprobs, strict=True)]
        if not gaps:
            return
        self.unchecked.discard(adapter)
        gap, limit = sum(gaps) / len(gaps), self.max_logp_diff
        for key, value in {"logp_diff_mean": gap, "logp_diff_max": max(gaps)}.items():
            self.meter[key] = max(value, self.meter[key])
        if limit is not None and not gap <= limit:
            line = f"log-probs of '{model}' differ by {gap:.2g} nats a token between the server"
            line += f" and '{self.models.config.path}' here (limit {limit:g}); serve that model"
            line += " in its dtype, or raise hardware.generator.max_logp_diff"
            raise RunAborted(line, code="logprob-gap")

    def _vocabulary(self, model: str) -> int:
        return self.models.module(model).config.get_text_config().vocab_size

    def _describe(self, fault: ServerFault) -> str:
        """Return the fault, and how a server that was started here has ended."""
        process = self.fleet.process if self.fleet else None
        end = process.describe_end() if process else None
        return f"{fault}; the server that this run started has ended: {end}" if end else str(fault)


class Fleet:
    """The servers of a run, each of which can answer any prompt, and the folder for adapters.

    `retried` counts attempts after faults. Everything is undone by `close`, at the latest when this
    process exits.
    """

    def __init__(self, settings: VLLMGenerator) -> None:
        """Raises UserError if a server cannot start or the folder cannot be written."""
        root = Path(tempfile.gettempdir() if settings.adapters is None else settings.adapters)
        self.folder = root.resolve() / f"agentrl-{secrets.token_hex(4)}"
        self.numbers, self.retries, self.retried = count(), settings.retries, 0
        self.servers: list[Server] = []
        self.process: ServerProcess | None = None
        with files.explain_write_errors(self.folder, "give hardware.generator.adapters=FOLDER"):
            self.folder.mkdir(parents=True)
        atexit.register(self.close)
        urls = settings.urls
        try:
            if not urls:
                self.process = self._start(settings)
                urls = [self.process.url]
        except BaseException:
            self.close()
            raise
        self.servers = [
            Server(url, requests=settings.requests, timeout=settings.timeout) for url in urls
        ]
        self.router = PrefixRouter(len(urls))

    def _start(self, settings: VLLMGenerator) -> ServerProcess:
        models = settings.models
        dtype = str(models.module(models.generating[0]).dtype).removeprefix("torch.")
        served = ServedModel(
            path=models.find_base(self.folder / "base"), dtype=dtype, rank=models.config.lora.rank,
            models=len(models.generating),
        )  # fmt: skip
        process = ServerProcess(settings.server, served, self.folder / "server.log")
        echo(f"starting a vLLM server at {process.url}", err=True)
        process.wait_until_ready()
        return process

    def close(self) -> None:
        """End a server that was started here, unload adapters from others, remove the folder."""
        atexit.unregister(self.close)
        if self.process:
            self.process.stop()
        with suppress(Exception):  # the run has ended, whatever the servers do
            wait_for(self._close_servers(), CLOSE_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    async def complete(
        self, requests: list[Request], homes: list[int]
    ) -> list[Completion | ServerFault]:
        """Return a completion or a fault for each request. RunAborted if a server refuses."""
        calls = [self._complete(*pair) for pair in zip(requests, homes, strict=True)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, ServerFault):
                raise answer
        return answers  # pyright: ignore[reportReturnType]

    async def exchange(self, new: Adapter, old: Adapter | None) -> None:
        """Load `new` everywhere, then unload `old`. Raises ServerFault if no server loads it."""
        loads = [self._retry(lambda i, s=server: s.load(new)) for server in self.servers]
        failed = [e for e in await asyncio.gather(*loads, return_exceptions=True) if e is not None]
        for error in failed:
            if not isinstance(error, ServerFault) or len(failed) == len(self.servers):
                raise error
        if old is not None:
            await self.unload([old])

    async def unload(self, adapters: list[Adapter]) -> None:
        """Unload these adapters everywhere."""
        pairs = [(server, adapter) for server in self.servers for adapter in adapters]
        await asyncio.gather(*(server.unload(adapter.name) for server, adapter in pairs))

    async def list_models(self) -> list[list[dict[str, Any]]]:
        """Return the models of each server. Raises ServerFault if one cannot be reached."""
        calls = [self._retry(lambda i, s=server: s.list_models()) for server in self.servers]
        return await asyncio.gather(*calls)

    async def _close_servers(self) -> None:
        await asyncio.gather(*(server.close() for server in self.servers))

    async def _complete(self, request: Request, home: int) -> Completion:
        size = len(self.servers)
        order = [self.servers[(home + k) % size] for k in range(size)]
        return await self._retry(lambda i: order[i % size].complete(request), size)

    async def _retry(self, attempt: Callable[[int], Awaitable[Result]], servers: int = 1) -> Result:
        """Return the first result without a fault; pause after each of `servers` was tried."""
        for i in range(self.retries):
            try:
                return await attempt(i)
            except ServerFault:
                self.retried += 1
            if i + 1 >= servers:
                await asyncio.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (i + 1 - servers)))
        return await attempt(self.retries)


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
