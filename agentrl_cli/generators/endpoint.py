"""Chat with any OpenAI-compatible endpoint, for simulators (never for training): retries with
growing pauses are the client library's, the whole call has a limit, answers are cached by seed."""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from agentrl_cli.core import files
from agentrl_cli.core.errors import (
    EmptyAnswer,
    SimulatorError,
    StoppedRun,
    UserError,
    require_above,
    require_at_least,
)
from agentrl_cli.core.types import Message
from agentrl_cli.generators.address import address_parts
from agentrl_cli.generators.background import wait_for

if TYPE_CHECKING:
    from openai import AsyncOpenAI  # pyright: ignore[reportMissingImports]

SHOWN_CHARACTERS = 300  # of an error
ONE_AT_A_TIME = Lock()  # held to make the client and to keep an answer, never while one is awaited
KEY_VARIABLE = re.compile(r"(?:\w+_)?API_KEY", re.ASCII)  # no other variable is sent anywhere
UNSERVED = re.compile(r"pinned to|does not exist|not found|unknown model", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """A model's text, why it ended (stop or length), and the tokens that were read and written
    (0 where the server does not say, or the answer was kept)."""

    text: str
    finish: str = "stop"
    read: int = 0
    written: int = 0


@dataclass(kw_only=True)
class OpenAIChat:
    """`chat(messages, seed)` asks `model` once for each messages and seed: the answer is kept in
    memory and, where `cache` names a file, there as JSON lines. An attempt may be silent for
    `timeout` seconds, the whole call lasts at most as long as all attempts may together.
    `requests` counts the calls that were not answered from memory. Raises UserError where a model
    is named and the client library is missing."""

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
    requests: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        require_at_least(0, temperature=self.temperature, retries=self.retries)
        require_at_least(1, max_tokens=self.max_tokens)
        require_above(0, timeout=self.timeout)
        if not KEY_VARIABLE.fullmatch(self.key_variable):  # not shown: it may be the key itself
            line = "key_variable must name an environment variable that ends in API_KEY"
            raise UserError(f"{line}; set such a one, and never write the key itself")
        if self.base_url:
            address_parts(self.base_url, "base_url", "set a key_variable")
        if self.model is not None:
            _require_client()
        if self.cache and files.is_file(Path(self.cache)):
            self.answers = _read(Path(self.cache))
        elif self.cache and not files.is_folder(Path(self.cache).parent):
            raise UserError(f"the folder of cache '{self.cache}' does not exist; make it first")

    @property
    def name(self) -> str:
        """The model and where it is asked."""
        address = self.base_url or "its client library's address"
        return f"model '{self.model}' at {address}"

    def __call__(self, messages: list[Message], seed: int) -> str:
        """The model's answer. SimulatorError where the endpoint gave none after all retries,
        EmptyAnswer where it holds no text, StoppedRun where it refuses the key, UserError where no
        model is named."""
        if self.model is None:
            raise UserError("no model is named to chat with; give env.llm.model=NAME")
        rows = [{"role": message.role, "content": message.content} for message in messages]
        request = [self.model, self.base_url, self.temperature, self.max_tokens, rows, seed]
        key = hashlib.sha256(json.dumps(request).encode()).hexdigest()
        with self.locks.setdefault(key, Lock()):  # worlds in other threads may ask the same
            if key not in self.answers:
                asked = self._ask(self.model, rows, seed, self.temperature, self.max_tokens)
                self._keep(key, asked.text)
        return self.answers[key]

    def ask(self, messages: list[Message], seed: int, temperature: float, longest: int) -> Answer:
        """The model's answer of at most `longest` tokens, which may be empty; kept like others.
        Raises what calling does, and UserError where the server has no such model."""
        rows = [{"role": message.role, "content": message.content} for message in messages]
        request = ["agent", self.model, self.base_url, temperature, longest, rows, seed]
        key = hashlib.sha256(json.dumps(request).encode()).hexdigest()
        if key in self.answers:
            finish, _, text = self.answers[key].partition(" ")
            return Answer(text, finish)
        answer = self._ask(str(self.model), rows, seed, temperature, longest, may_be_empty=True)
        self._keep(key, f"{answer.finish} {answer.text}")
        return answer

    def _keep(self, key: str, answer: str) -> None:
        with ONE_AT_A_TIME:
            self.answers[key] = answer
            if self.cache:
                files.append_jsonl(Path(self.cache), [{"key": key, "answer": answer}])

    def _ask(
        self, model: str, rows: list[Any], seed: int, temperature: float, longest: int, *,
        may_be_empty: bool = False,
    ) -> Answer:  # fmt: skip
        with ONE_AT_A_TIME:
            client = _client(self.base_url, self.key_variable, self.timeout, self.retries)
            self.requests += 1
        import openai  # pyright: ignore[reportMissingImports]

        asked = client.chat.completions.create(
            model=model, messages=rows, seed=seed % 2**31, temperature=temperature,
            max_tokens=longest,
        )  # fmt: skip
        seconds = self.timeout * (self.retries + 1)
        try:
            answer = wait_for(asked, seconds)
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            line = f"the endpoint refuses the key in {self.key_variable} ({error.status_code})"
            raise StoppedRun(f"{line}; set it to a key that is valid there") from None
        except TimeoutError:
            raise SimulatorError(f"the endpoint gave no answer within {seconds:g} s") from None
        except (openai.OpenAIError, ValueError, RecursionError) as error:
            said = self._described(error)
            if isinstance(error, openai.NotFoundError) or _lacks(model, said):
                line = f"the server has no model '{model}' ({said})"
                raise UserError(f"{line}; name one that it serves") from None
            raise SimulatorError(said) from None
        try:
            choice = answer.choices[0]
            text = choice.message.content
        except (AttributeError, LookupError, TypeError):
            choice, text = None, None
        is_empty = text is None or (isinstance(text, str) and not text.strip())
        if not _is_answer(text) and not (may_be_empty and is_empty and choice):
            raise EmptyAnswer("the endpoint's answer holds no text; see what it serves")
        finish = "length" if getattr(choice, "finish_reason", None) == "length" else "stop"
        read, written = (_count(answer, part) for part in ("prompt_tokens", "completion_tokens"))
        return Answer(str(text or ""), finish, read, written)

    def _described(self, error: Exception) -> str:
        """An error in one short line without the key, which an endpoint may echo."""
        body = getattr(error, "body", None)
        detail = body.get("detail", "") if isinstance(body, dict) else ""  # which FastAPI says
        said = f"{type(error).__name__}: {error}{detail and f' - {detail}'}"
        text = " ".join(f"the endpoint gave no answer ({said})".split())
        key = os.environ.get(self.key_variable)
        return (text.replace(key, "***") if key else text)[:SHOWN_CHARACTERS]


def outside_chats(env: object) -> list[OpenAIChat]:
    """The models outside of this process that an environment holds and may ask."""
    held = vars(env).values()
    return [value for value in held if isinstance(value, OpenAIChat) and value.model is not None]


def _require_client() -> None:
    """Raise UserError where the client library is missing: it is looked for, not yet imported."""
    if find_spec("openai") is None:
        remedy = "pip install 'agentrl-cli[openai]'"
        raise UserError(f"chatting with an endpoint needs the client library; {remedy}")


@lru_cache(maxsize=4)
def _client(base_url: str | None, key_variable: str, timeout: float, retries: int) -> AsyncOpenAI:
    from openai import AsyncOpenAI  # pyright: ignore[reportMissingImports]

    key = os.environ.get(key_variable)
    if key is None and base_url is None:
        raise UserError(f"the endpoint needs a key; set {key_variable}, or give env.llm.base_url")
    options = {"timeout": timeout, "max_retries": retries}
    return AsyncOpenAI(base_url=base_url, api_key=key or "none", **options)


def _lacks(model: str, said: str) -> bool:
    """Whether a server's error says that it does not serve the model."""
    return model in said and UNSERVED.search(said) is not None


def _count(answer: Any, part: str) -> int:
    """A count of tokens that an answer tells; 0 where it tells none."""
    count = getattr(getattr(answer, "usage", None), part, None)
    return count if isinstance(count, int) else 0


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
