"""Sampling from vLLM servers: prompts of ids go out, ids and log-probs come back, many requests in
flight. Weights are pulled: a model that has changed since it was last used is written as an adapter
of a new name, which every server loads in place of the old one. What the servers then answer is
held against a recomputation in this process."""

from __future__ import annotations

import math
import secrets
import shutil
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from agentrl_cli.core import files
from agentrl_cli.core.errors import (
    GeneratorError,
    StoppedRun,
    UserError,
    require_above,
    require_at_least,
)
from agentrl_cli.core.terminal import say
from agentrl_cli.core.types import derive_seed
from agentrl_cli.generators.address import address_parts
from agentrl_cli.generators.background import run_beside_loop, wait_for
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.generators.prefix_router import PrefixRouter
from agentrl_cli.generators.vllm_client import KEY_VARIABLE, Adapter, Fault, Fleet, Request, Server
from agentrl_cli.generators.vllm_server import ServedModel, ServerProcess, ServerSettings

CHECKED_COMPLETIONS = 4  # of an adapter's first call to each server, which are recomputed
CLOSE_SECONDS = 5.0
PROBE = Sampling(max_tokens=16, temperature=1.0, stop_ids=())
PROBE_TOKENS = 8


class Models(Protocol):
    """What the generator needs of a model set with LoRA."""

    @property
    def config(self) -> Any:
        """Its settings: `path`, and `lora`, None where there are no adapters."""
        ...

    @property
    def generating(self) -> list[str]:
        """The names of the models that generate."""
        ...

    def module(self, name: str) -> Any:
        """The torch module, ready to run under the weights of that name."""
        ...

    def version(self, name: str) -> int:
        """How often its weights have changed."""
        ...

    def fingerprint(self, name: str) -> str:
        """16 hex digits of its weights."""
        ...

    def save_adapter(self, name: str, folder: Path) -> None:
        """Write its adapter as peft reads one."""
        ...

    def find_base(self, folder: Path) -> str:
        """The path of the base model, which may be written to `folder` for that."""
        ...


@dataclass
class VLLMGenerator(Generator):
    """Samples from the servers at `urls`, at most `requests` requests in flight to each, or, where
    there are none, from one that it starts as `server` says. An attempt may take `timeout` seconds;
    `retries` more follow where it fails, with another server first. `adapters` is the folder where
    weights are handed over, which servers see under the same path; None: one of this machine, for
    as long as this process lives. Where log-probs are further from a recomputation than
    `max_logprob_gap` nats a token in the mean (None: no limit), the run stops."""

    gives_hidden_states = False

    models: Models
    _: KW_ONLY
    urls: list[str]
    requests: int
    timeout: float
    retries: int
    max_logprob_gap: float | None
    adapters: str | None
    server: ServerSettings
    connection: Connection | None = field(default=None, init=False, repr=False)
    loaded: dict[str, Adapter] = field(default_factory=dict, init=False, repr=False)  # by model
    unchecked: set[Adapter] = field(default_factory=set, init=False, repr=False)
    meter: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    pulling: Any = field(default_factory=Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        require_at_least(1, requests=self.requests)
        require_at_least(0, retries=self.retries)
        gap = self.max_logprob_gap
        require_above(0, timeout=self.timeout, max_logprob_gap=1 if gap is None else gap)
        self.urls = [_checked_url(url) for url in self.urls]
        if self.models.config.lora is None:
            line = "hardware=vllm carries LoRA adapters to its servers, and model.lora is null"
            remedy = "give model.lora={rank:16,alpha:32,targets:[all-linear]}, or train all weights"
            raise UserError(f"{line}; {remedy} with hardware=gpu")

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """`sampling.n` completions for each prompt, each of them a request with a seed of its own.
        GeneratorError where some got no answer, StoppedRun where a server refuses or does not hold
        these weights, ValueError for an empty prompt."""
        if not all(prompts):
            raise ValueError(f"prompt {prompts.index([])} is empty; give at least one token")
        rows = [prompt for prompt in prompts for _ in range(sampling.n)]
        streams = [derive_seed(seed, j) for seed in seeds for j in range(sampling.n)]
        homes = self._connected().router.route(rows, model)
        answers = self._sample(rows, streams, sampling, model, homes)
        found = [answers[k : k + sampling.n] for k in range(0, len(answers), sampling.n)]
        faults = [answer for answer in answers if isinstance(answer, Fault)]
        if faults:
            whole = [None if any(isinstance(c, Fault) for c in row) else row for row in found]
            raise GeneratorError(self._described(faults[0]), whole)
        return [[c for c in row if isinstance(c, Completion)] for row in found]

    def load(self, model: str, version: int, path: Path | None = None) -> None:
        """Weights are pulled when the model is used next."""

    def check_context(self, most: int, model: str = "policy") -> None:
        """Find or start the servers, and try them. UserError where one cannot be reached, serves
        another model, takes no adapters, or reads less than `most` tokens."""
        try:
            connection = self._connected()
            listed = wait_for(connection.fleet.list_models())
            for url, cards in zip(connection.urls, listed, strict=True):
                _refuse_short_context(url, cards, most)
            self._probe(model)
        except Fault as fault:
            remedy = "start a server with agentrl serve, or correct hardware.generator.urls"
            raise UserError(f"{self._described(fault)}; {remedy}") from None
        except StoppedRun as refusal:
            raise UserError(str(refusal)) from None

    def clear(self) -> None:
        """Forget which server has read what."""
        if self.connection:
            self.connection.router.clear()

    def metrics(self) -> dict[str, float]:
        """What was pulled, tried again and checked since this was asked last, and which weights
        the servers have."""
        found = {"time/weight_sync": self.meter.pop("sync_seconds", 0.0)}
        found |= {f"generator/{key}": value for key, value in self.meter.items()}
        for name, adapter in self.loaded.items():
            found[f"generator/{name}_version"] = float(adapter.version)
            found[f"generator/{name}_fingerprint"] = float(int(adapter.fingerprint[:12], 16))
        if self.connection:
            found["generator/retries"] = float(self.connection.fleet.repeated)
            self.connection.fleet.repeated = 0
        self.meter = {"loads": 0.0}
        return found

    def close(self) -> None:
        """Unload the adapters, end the server that was started here, remove what was written."""
        if self.connection:
            self.connection.close()
            self.connection, self.loaded = None, {}

    def _connected(self) -> Connection:
        if self.connection is None:
            self.connection = connect(self)
            weakref.finalize(self, self.connection.close)
        return self.connection

    def _probe(self, model: str) -> None:
        """Sample a few tokens from each server, which tries all that a step relies on. Afterwards
        nothing is loaded: a run may restore other weights before its first step."""
        words, connection = self._vocabulary(model), self._connected()
        prompt = [derive_seed("probe", i) % words for i in range(PROBE_TOKENS)]
        homes = list(range(len(connection.urls)))
        for answer in self._sample([prompt] * len(homes), homes, PROBE, model, homes):
            if isinstance(answer, Fault):
                raise answer
        wait_for(connection.fleet.unload(list(self.loaded.values())))
        self.loaded = {}

    def _sample(
        self,
        prompts: list[list[int]],
        seeds: list[int],
        sampling: Sampling,
        model: str,
        homes: list[int],
    ) -> list[Completion | Fault]:
        """One completion of each prompt, or why there is none, from the server `homes` or, where
        that one fails, another."""
        try:
            adapter = self._pull(model)
        except Fault as fault:
            return [fault] * len(prompts)
        limits = {"sampling": sampling, "vocabulary": self._vocabulary(model)}
        requests = [
            Request(adapter=adapter, prompt=prompt, seed=seed, **limits)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        answers = wait_for(self._connected().fleet.complete(requests, homes))
        if adapter in self.unchecked:
            self._check_gap(model, adapter, requests, answers, homes)
        return answers

    def _pull(self, model: str) -> Adapter:
        """The adapter with the weights of now. Fault where no server can be reached."""
        with self.pulling:
            version, old = self.models.version(model), self.loaded.get(model)
            if old is not None and old.version == version:
                return old
            began, connection = time.perf_counter(), self._connected()
            fingerprint = self.models.fingerprint(model)
            folder = connection.new_folder(f"{model}-v{version}-{fingerprint}")
            new = Adapter(name=folder.name, folder=folder, version=version, fingerprint=fingerprint)
            try:
                self.models.save_adapter(model, folder)
                wait_for(connection.fleet.exchange(new, old))
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            if old is not None:
                self.unchecked.discard(old)
                shutil.rmtree(old.folder, ignore_errors=True)
            self.loaded[model] = new
            self.unchecked.add(new)
            self._add("loads", 1.0)
            self._add("sync_seconds", time.perf_counter() - began)
            return new

    def _check_gap(
        self,
        model: str,
        adapter: Adapter,
        requests: list[Request],
        answers: list[Completion | Fault],
        homes: list[int],
    ) -> None:
        """Recompute a few of the first answers that each server gives with these weights.
        StoppedRun where the log-probs are too far off."""
        taken, gaps, module = Counter[int](), list[float](), self.models.module(model)
        for request, answer, home in zip(requests, answers, homes, strict=True):
            if isinstance(answer, Completion) and taken[home] < CHECKED_COMPLETIONS:
                taken[home] += 1
                own = recompute_logprobs(module, request.prompt, answer.ids)
                gaps += [abs(a - b) for a, b in zip(own, answer.logprobs, strict=True)]
        if not gaps:
            return
        self.unchecked.discard(adapter)
        gap, limit = sum(gaps) / len(gaps), self.max_logprob_gap
        for key, value in {"logprob_gap": gap, "logprob_gap_max": max(gaps)}.items():
            self.meter[key] = max(value, self.meter.get(key, 0.0))
        if limit is not None and not gap <= limit:
            line = f"the server's log-probs of '{model}' are {gap:.2g} nats a token from those of"
            line += f" '{self.models.config.path}' here, and at most {limit:g} may be"
            remedy = "serve that model in its dtype, or raise hardware.generator.max_logprob_gap"
            raise StoppedRun(f"{line}; {remedy}")

    def _vocabulary(self, model: str) -> int:
        return self.models.module(model).config.get_text_config().vocab_size

    def _described(self, fault: Fault) -> str:
        """Why there is no answer, and how a server ended that was started here."""
        ended = self.connection.describe_end() if self.connection else None
        return f"{fault}; {ended}" if ended else str(fault)

    def _add(self, key: str, value: float) -> None:
        self.meter[key] = self.meter.get(key, 0.0) + value


@dataclass(kw_only=True)
class Connection:
    """The servers in use, the folder in which they find adapters, and the server that was started
    for this run, if one was."""

    urls: list[str]
    fleet: Fleet
    router: PrefixRouter
    folder: Path
    process: ServerProcess | None
    folders: Iterator[int] = field(default_factory=count)
    is_closed: bool = False

    def new_folder(self, name: str) -> Path:
        """A folder for an adapter, of a name that there never was; not made yet."""
        return self.folder / f"{self.folder.name}-{next(self.folders)}-{name}"

    def describe_end(self) -> str | None:
        """How the server ended that was started here; None where it runs, or there is none."""
        end = self.process.describe_end() if self.process else None
        return f"the server that this run had started is gone: {end}" if end else None

    def close(self) -> None:
        """End the server that was started here, or leave others without what was loaded; once."""
        if self.is_closed:
            return
        self.is_closed = True
        run_beside_loop(self._end)

    def _end(self) -> None:
        if self.process:
            self.process.stop()
        with suppress(Exception):  # whatever the servers do, the run has ended
            wait_for(self.fleet.close(), CLOSE_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)


def connect(settings: VLLMGenerator) -> Connection:
    """The servers at the given addresses, or one that is started now. UserError where it does not
    start, or the folder for adapters cannot be written."""
    root = Path(tempfile.gettempdir() if settings.adapters is None else settings.adapters)
    folder = root.resolve() / f"agentrl-{secrets.token_hex(4)}"
    with files.explain_write_errors(folder, "give hardware.generator.adapters=FOLDER"):
        folder.mkdir(parents=True)
    process = None
    if not settings.urls:
        try:
            process = _start_server(settings, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    urls = [process.url] if process else settings.urls
    servers = [Server(url, requests=settings.requests, timeout=settings.timeout) for url in urls]
    fleet, router = Fleet(servers, settings.retries), PrefixRouter(len(urls))
    return Connection(urls=urls, fleet=fleet, router=router, folder=folder, process=process)


def _start_server(settings: VLLMGenerator, folder: Path) -> ServerProcess:
    models = settings.models
    dtype = str(models.module(models.generating[0]).dtype).removeprefix("torch.")
    served = ServedModel(
        path=models.find_base(folder / "base"), dtype=dtype, rank=models.config.lora.rank,
        models=len(models.generating),
    )  # fmt: skip
    process = ServerProcess(settings.server, served, folder / "server.log")
    say(f"starting a vLLM server at {process.url}", err=True)
    process.wait_until_ready()
    return process


def recompute_logprobs(module: Any, prompt: list[int], ids: list[int]) -> list[float]:
    """The log-probs of `ids` behind `prompt` at temperature 1, by this process's own model."""
    import torch

    with torch.inference_mode():
        row = torch.tensor([prompt + ids], device=module.device)
        logits = module(input_ids=row, use_cache=False, logits_to_keep=len(ids) + 1).logits
        logprobs = torch.log_softmax(logits[0, :-1].float(), -1)  # [ids, words]
        return logprobs.gather(1, row[0, -len(ids) :, None])[:, 0].tolist()


def _checked_url(url: str) -> str:
    """The address without what servers add to it. UserError where it is none."""
    parts = address_parts(url, "hardware.generator.urls", f"a key as {KEY_VARIABLE}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        line = f"hardware.generator.urls holds '{url}'"
        raise UserError(f"{line}; give addresses such as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def _refuse_short_context(url: str, cards: list[dict[str, Any]], most: int) -> None:
    lengths = [card.get("max_model_len") for card in cards]
    reads = min([n for n in lengths if isinstance(n, int)], default=math.inf)
    if most > reads:
        line = f"the server at {url} reads at most {reads} ids, and {most} are asked for"
        raise UserError(
            f"{line}; serve with a larger --max-model-len, or lower rollout.max_context"
        )
