"""The HTTP protocol of vLLM servers, as far as an agent's tokens need it: complete prompts of ids,
load and unload adapters, try again. Whose weights an adapter holds, and when it is out of date, is
not known here. What a server answers is foreign text until it is read."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from agentrl_cli.core.errors import StoppedRun
from agentrl_cli.generators.base import Completion, Sampling

Answer = TypeVar("Answer")
SHOWN_CHARACTERS = 300  # of what a server says
FIRST_PAUSE = 0.5  # seconds before a server is asked again; doubles
LONGEST_PAUSE = 8.0
KEY_VARIABLE = "VLLM_API_KEY"  # which vLLM itself reads
BUSY = (408, 429)  # statuses below 500 after which the same request may be answered
PLAIN_SAMPLING = {  # whatever a server has been given as its defaults
    "n": 1, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "ignore_eos": True,
    "skip_special_tokens": False,
}  # fmt: skip
IDS_BACK = {"logprobs": 0, "return_token_ids": True, "return_tokens_as_token_ids": True}


class Fault(Exception):
    """A server gave no answer, or none that can be read; another attempt may get one."""


class Refused(Exception):
    """A server answers that it will not do this, and will not do it later."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Weights as servers know them: a name that no other weights ever have, and their folder."""

    name: str
    folder: Path
    version: int
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """One completion to sample. Ids are below `vocabulary`."""

    adapter: Adapter
    prompt: list[int]
    seed: int
    sampling: Sampling
    vocabulary: int

    def to_json(self) -> dict[str, Any]:
        """As `/v1/completions` reads it."""
        sampling = {
            "max_tokens": self.sampling.max_tokens, "temperature": self.sampling.temperature,
            "stop_token_ids": list(self.sampling.stop_ids), "seed": self.seed,
        }  # fmt: skip
        named = {"model": self.adapter.name, "prompt": self.prompt}
        return named | sampling | PLAIN_SAMPLING | IDS_BACK


def read_completion(answer: Any, request: Request) -> Completion:
    """The completion in a server's answer. Raises Fault where it is none of this request."""
    try:
        choice = answer["choices"][0]
        ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        of_one_length = len(ids) == len(logprobs) > 0
    except (LookupError, TypeError):
        raise Fault("an answer without ids and log-probs") from None
    if not of_one_length or not all(map(_is_logprob, logprobs)):
        raise Fault("an answer whose log-probs are not one number for each id")
    if not all(type(i) is int and 0 <= i < request.vocabulary for i in ids):
        raise Fault("an answer with ids that the model does not have")
    sampling = request.sampling
    ends = [i for i, token in enumerate(ids) if token in sampling.stop_ids]
    if ends != [len(ids) - 1] and (ends or len(ids) != sampling.max_tokens):
        raise Fault(f"an answer of {len(ids)} tokens that ends neither as asked nor at its limit")
    return Completion(ids, [float(n) for n in logprobs], "stop" if ends else "length")


def _is_logprob(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value < 1e-3


class Server:
    """One server at `url`, at most `requests` requests in flight; an attempt takes at most
    `timeout` seconds, however slowly bytes drip."""

    def __init__(self, url: str, *, requests: int, timeout: float) -> None:
        self.url, self.timeout = url, timeout
        self.loaded: set[str] = set()  # names of adapters
        self.loading = asyncio.Lock()
        self.slots = asyncio.Semaphore(requests)
        key = os.environ.get(KEY_VARIABLE)
        self.http = httpx.AsyncClient(
            base_url=url, timeout=None, trust_env=False,  # a proxy is not for one's own servers
            limits=httpx.Limits(max_connections=requests + 1),
            headers={"Authorization": f"Bearer {key}"} if key else None,
        )  # fmt: skip

    async def complete(self, request: Request) -> Completion:
        """One completion, its adapter loaded first where this server lacks it."""
        async with self.slots:
            await self.load(request.adapter)
            try:
                answer = await self._ask("POST", "/v1/completions", request.to_json())
            except Refused as error:
                if error.status != 404:
                    raise StoppedRun(f"{error}; mend that, then go on") from None
                self.loaded.discard(request.adapter.name)  # it was started anew
                raise Fault(str(error)) from None
        try:
            return read_completion(answer, request)
        except Fault as fault:
            raise Fault(f"the server at {self.url} gave {fault}") from None

    async def load(self, adapter: Adapter) -> None:
        """Load an adapter, unless it is loaded, and see that it is listed. StoppedRun where the
        server refuses it."""
        async with self.loading:
            if adapter.name in self.loaded:
                return
            folder = str(adapter.folder.resolve())
            named = {"lora_name": adapter.name, "lora_path": folder}
            try:
                await self._ask("POST", "/v1/load_lora_adapter", named)
            except Refused as error:
                if "already been loaded" not in str(error):
                    raise StoppedRun(_without_adapters(error)) from None
            cards = {card["id"]: card for card in await self.list_models()}
            if cards.get(adapter.name, {}).get("root") != folder:
                line = f"the server at {self.url} does not list adapter '{adapter.name}' in"
                raise StoppedRun(f"{line} {folder}; use a vLLM server that loads adapters")
            self.loaded.add(adapter.name)

    async def unload(self, name: str) -> None:
        """Unload the adapter of that name if it is loaded; a server that is gone has none."""
        if name not in self.loaded:
            return
        self.loaded.discard(name)
        try:
            await self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": name})
        except (Fault, Refused):
            pass

    async def list_models(self) -> list[dict[str, Any]]:
        """What it serves: the base and the adapters, each with `id` and `root`."""
        try:
            answer = await self._ask("GET", "/v1/models")
        except Refused as error:
            raise StoppedRun(f"{error}; give the address of a vLLM server") from None
        cards = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(cards, list) or not all(_is_card(card) for card in cards):
            line = f"the server at {self.url} does not list its models as vLLM does"
            raise StoppedRun(f"{line}; give the address of a vLLM server")
        return cards

    async def close(self) -> None:
        """Unload what was loaded and close the connections."""
        for name in list(self.loaded):
            await self.unload(name)
        await self.http.aclose()

    async def _ask(self, method: str, path: str, content: Any = None) -> Any:
        """The JSON of an answer, or None where it is another text."""
        try:
            async with asyncio.timeout(self.timeout):
                response = await self.http.request(method, path, json=content)
        except TimeoutError:
            line = f"the server at {self.url} gave no answer within {self.timeout:g} s"
            raise Fault(line) from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            what = _shown(f"{type(error).__name__} {error}")
            raise Fault(f"the server at {self.url} gave no answer ({what})") from None
        if response.is_success:
            return _json(response)
        line = f"the server at {self.url} answers {response.status_code} to {path}"
        line += f" ({_shown(_message(_json(response)) or response.text)})"
        if response.status_code in (401, 403):
            raise StoppedRun(f"{line}; set {KEY_VARIABLE} to the key that it was started with")
        if response.status_code >= 500 and path != "/v1/load_lora_adapter":
            raise Fault(line)
        raise Fault(line) if response.status_code in BUSY else Refused(response.status_code, line)


class Fleet:
    """All servers of a run, each of which can serve any prompt; `repeated` attempts were made so
    far."""

    def __init__(self, servers: list[Server], retries: int) -> None:
        self.servers, self.retries, self.repeated = servers, retries, 0

    async def complete(self, requests: list[Request], homes: list[int]) -> list[Completion | Fault]:
        """A completion of each request, or why there is none; `homes` are the servers to ask
        first. StoppedRun where a server refuses."""
        asked = [self._complete(*pair) for pair in zip(requests, homes, strict=True)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, Fault):
                raise answer
        return answers  # pyright: ignore[reportReturnType]

    async def exchange(self, new: Adapter, old: Adapter | None) -> None:
        """Load an adapter everywhere, then unload what it replaces. Fault where no server can."""
        loads = [self._repeat(lambda i, s=server: s.load(new)) for server in self.servers]
        failed = [e for e in await asyncio.gather(*loads, return_exceptions=True) if e is not None]
        for error in failed:
            if not isinstance(error, Fault) or len(failed) == len(self.servers):
                raise error
        if old is not None:
            await self.unload([old])

    async def unload(self, adapters: list[Adapter]) -> None:
        """Unload these everywhere."""
        pairs = [(server, adapter) for server in self.servers for adapter in adapters]
        await asyncio.gather(*(server.unload(adapter.name) for server, adapter in pairs))

    async def list_models(self) -> list[list[dict[str, Any]]]:
        """What each server serves. Fault where one cannot be reached."""
        asked = [self._repeat(lambda i, s=server: s.list_models()) for server in self.servers]
        return await asyncio.gather(*asked)

    async def close(self) -> None:
        """Unload what was loaded and close all connections."""
        await asyncio.gather(*(server.close() for server in self.servers))

    async def _complete(self, request: Request, home: int) -> Completion:
        count = len(self.servers)
        others = [self.servers[(home + k) % count] for k in range(count)]
        return await self._repeat(lambda i: others[i % count].complete(request), count)

    async def _repeat(
        self, attempt: Callable[[int], Awaitable[Answer]], servers: int = 1
    ) -> Answer:
        """What attempt number i gives, for the first i that is no Fault; each of `servers` is asked
        once before there is a pause."""
        for i in range(self.retries):
            try:
                return await attempt(i)
            except Fault:
                self.repeated += 1
            if i + 1 >= servers:
                await asyncio.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (i + 1 - servers)))
        return await attempt(self.retries)


def _without_adapters(error: Refused) -> str:
    """What to do where an adapter cannot be loaded."""
    if error.status == 404 or "LoRA is not enabled" in str(error):
        return f"{error}: it takes no adapters while it runs; start it with agentrl serve"
    where = "hardware.generator.adapters must be a folder that the server sees under the same path"
    return f"{error}; {where}, and agentrl serve starts one for such adapters"


def _is_card(card: Any) -> bool:
    return isinstance(card, dict) and isinstance(card.get("id"), str)


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def _message(answer: Any) -> str:
    """What vLLM's JSON of an error says, if it is one."""
    inner = answer.get("error", answer) if isinstance(answer, dict) else None
    said = inner.get("message", inner.get("detail")) if isinstance(inner, dict) else None
    return said if isinstance(said, str) else ""


def _shown(text: str) -> str:
    """A text of a server in one short line, without the key, which it may echo."""
    key = os.environ.get(KEY_VARIABLE)
    return " ".join((text.replace(key, "***") if key else text).split())[:SHOWN_CHARACTERS]
