"""Chat with any OpenAI-compatible endpoint, for simulators (never for training): retries with
growing pauses are the client library's, the whole call has a limit, answers are cached by seed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentrl_cli.core import files
from agentrl_cli.core.errors import (
    SimulatorError,
    StoppedRun,
    UserError,
    require_above,
    require_at_least,
)
from agentrl_cli.core.types import Message

if TYPE_CHECKING:
    from openai import AsyncOpenAI  # pyright: ignore[reportMissingImports]

SHOWN_CHARACTERS = 300  # of an error
ONE_AT_A_TIME = Lock()  # held to make the client and to keep an answer, never while one is awaited
KEY_VARIABLE = re.compile(r"(?:\w+_)?API_KEY", re.ASCII)  # no other variable is sent anywhere


@dataclass(kw_only=True)
class OpenAIChat:
    """`chat(messages, seed)` asks `model` once for each messages and seed: the answer is kept in
    memory and, where `cache` names a file, there as JSON lines. An attempt may be silent for
    `timeout` seconds, the whole call lasts at most as long as all attempts may together."""

    model: str | None
    base_url: str | None
    key_variable: str
    temperature: float
    max_tokens: int
    timeout: float
    retries: int
    cache: str | None
    answers: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    locks: dict[str, Lock] = field(default_factory=dict, init=False, repr=False)  # by key

    def __post_init__(self) -> None:
        require_at_least(0, temperature=self.temperature, retries=self.retries)
        require_at_least(1, max_tokens=self.max_tokens)
        require_above(0, timeout=self.timeout)
        if not KEY_VARIABLE.fullmatch(self.key_variable):  # not shown: it may be the key itself
            line = "key_variable must name an environment variable that ends in API_KEY"
            raise UserError(f"{line}; set such a one, and never write the key itself")
        if self.base_url and urlsplit(self.base_url).username is not None:
            raise UserError("base_url holds a user; give the address alone, and set a key_variable")
        if self.cache and files.is_file(Path(self.cache)):
            self.answers = _read(Path(self.cache))

    def __call__(self, messages: list[Message], seed: int) -> str:
        """The model's answer. SimulatorError where the endpoint gave none after all retries,
        StoppedRun where it refuses the key, UserError where no model is named or the client library
        is missing."""
        if self.model is None:
            raise UserError("no model is named to chat with; give env.llm.model=NAME")
        rows = [{"role": message.role, "content": message.content} for message in messages]
        request = [self.model, self.base_url, self.temperature, self.max_tokens, rows, seed]
        key = hashlib.sha256(json.dumps(request).encode()).hexdigest()
        with self.locks.setdefault(key, Lock()):  # worlds in other threads may ask the same
            if key not in self.answers:
                self._keep(key, self._ask(self.model, rows, seed))
        return self.answers[key]

    def _keep(self, key: str, answer: str) -> None:
        with ONE_AT_A_TIME:
            self.answers[key] = answer
            if self.cache:
                files.append_jsonl(Path(self.cache), [{"key": key, "answer": answer}])

    def _ask(self, model: str, rows: list[Any], seed: int) -> str:
        with ONE_AT_A_TIME:
            client = _client(self.base_url, self.key_variable, self.timeout, self.retries)
            loop = _loop()
        import openai  # pyright: ignore[reportMissingImports]

        asked = client.chat.completions.create(
            model=model, messages=rows, seed=seed % 2**31, temperature=self.temperature,
            max_tokens=self.max_tokens,
        )  # fmt: skip
        seconds = self.timeout * (self.retries + 1)
        try:
            answer = _wait_for(asked, seconds, loop)
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            line = f"the endpoint refuses the key in {self.key_variable} ({error.status_code})"
            raise StoppedRun(f"{line}; set it to a key that is valid there") from None
        except TimeoutError:
            raise SimulatorError(f"the endpoint gave no answer within {seconds:g} s") from None
        except (openai.OpenAIError, ValueError, RecursionError) as error:
            raise SimulatorError(self._described(error)) from None
        try:
            text = answer.choices[0].message.content
        except (AttributeError, LookupError, TypeError):
            text = None
        if not _is_answer(text):
            raise SimulatorError("the endpoint's answer holds no text; see what it serves")
        return str(text)

    def _described(self, error: Exception) -> str:
        """An error in one short line without the key, which an endpoint may echo."""
        text = " ".join(f"the endpoint gave no answer ({type(error).__name__}: {error})".split())
        key = os.environ.get(self.key_variable)
        return (text.replace(key, "***") if key else text)[:SHOWN_CHARACTERS]


@lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    """An event loop in a thread of its own: only there can a call be stopped whatever the endpoint
    does, as where it sends a byte now and then."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, daemon=True).start()
    return loop


def _wait_for(
    asked: Coroutine[Any, Any, Any], seconds: float, loop: asyncio.AbstractEventLoop
) -> Any:
    """The result of a call; TimeoutError where it takes longer."""

    async def limited() -> Any:
        return await asyncio.wait_for(asked, seconds)

    return asyncio.run_coroutine_threadsafe(limited(), loop).result()


@lru_cache(maxsize=4)
def _client(base_url: str | None, key_variable: str, timeout: float, retries: int) -> AsyncOpenAI:
    try:
        from openai import AsyncOpenAI  # pyright: ignore[reportMissingImports]
    except ImportError:
        remedy = "pip install 'agentrl-cli[openai]'"
        raise UserError(f"chatting with an endpoint needs the client library; {remedy}") from None
    key = os.environ.get(key_variable)
    if key is None and base_url is None:
        raise UserError(f"the endpoint needs a key; set {key_variable}, or give env.llm.base_url")
    options = {"timeout": timeout, "max_retries": retries}
    return AsyncOpenAI(base_url=base_url, api_key=key or "none", **options)


def _is_answer(text: object) -> bool:
    """Whether it is a text with something in it that can be written as UTF-8."""
    if not isinstance(text, str) or not text.strip():
        return False
    return text == text.encode("utf-8", "ignore").decode()


def _read(file: Path) -> dict[str, str]:
    """The cached answers of a file; what is none, as a last line that was cut off, is left out."""
    answers: dict[str, str] = {}
    for row in files.read_jsonl_leniently(file)[0]:
        with suppress(KeyError, TypeError):
            if _is_answer(row["answer"]):
                answers[str(row["key"])] = row["answer"]
    return answers
