"""Chats with models for simulators and for evaluation, never for training.

`OpenAIChat` calls an OpenAI-compatible endpoint. The client library retries with growing pauses. A
limit on the whole call is added here, and answers are cached by messages and seed. `LocalChat` runs
a model in this process.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import SplitResult, urlsplit

from pydantic import Field

from agentrl_cli.core import files
from agentrl_cli.core.errors import (
    EmptyAnswer,
    GeneratorError,
    RefusedPrompt,
    RunAborted,
    SimulatorError,
    UserError,
)
from agentrl_cli.core.event_loop import wait_for
from agentrl_cli.core.hub import prepare_hub
from agentrl_cli.core.types import Message, derive_seed
from agentrl_cli.generators.base import Completion, Generator, Sampling

if TYPE_CHECKING:
    from openai import AsyncOpenAI  # pyright: ignore[reportMissingImports]

SHOWN_CHARACTERS = 300  # of an error
TORCH_LOCK = Lock()  # the random state of torch belongs to the process
LOCK = Lock()  # to make the client, and to store an answer
KEY_VARIABLE = re.compile(r"(?:\w+_)?API_KEY", re.ASCII)  # no other variable is ever sent
UNSERVED = re.compile(r"pinned to|does not exist|not found|unknown model", re.IGNORECASE)
REFUSED = (400, 413, 422)  # a prompt that is too long, or invalid
BYTES = 256  # smaller token ids are the bytes of a text
Rows = list[Any]  # messages as JSON


def checked_address(url: str, key: str, remedy: str) -> SplitResult:
    """Return the parts of an address in the configuration.

    Raises UserError if it is malformed or holds a user; `remedy` is the place for a key. The
    address is not shown, because an invalid port may be a password.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is not a number
    except ValueError:
        line = f"{key} holds an invalid address; give addresses such as http://127.0.0.1:8000"
        raise UserError(line, code="invalid-address") from None
    if parts.username is not None:
        line = f"{key} holds a user; give the address only, and {remedy}"
        raise UserError(line, code="user-in-address")
    return parts


def redacted(text: str, key_variable: str) -> str:
    """Return a server's text on one short line without the key, which a server may echo."""
    key = os.environ.get(key_variable)
    return " ".join((text.replace(key, "***") if key else text).split())[:SHOWN_CHARACTERS]


@dataclass(frozen=True)
class Answer:
    """A model's text, its finish reason (stop or length), and the tokens read and written.

    The counts are 0 if the server does not send them or the answer was cached.
    """

    text: str
    finish_reason: str = "stop"
    read: int = 0
    written: int = 0


@dataclass(kw_only=True)
class OpenAIChat:
    """Calls `model` once for each list of messages and seed: `chat(messages, seed)`.

    Answers are cached in memory and, if `cache` names a file, there as JSON lines. One attempt may
    be silent for `timeout` seconds, and the whole call lasts as long as all attempts may at most.
    `requests` counts the calls that the cache did not answer. Raises UserError if a model is named
    and the client library is missing.
    """

    model: Annotated[str | None, Field(description="Name of the model. null: none is called.")]
    base_url: Annotated[
        str | None, Field(description="Address of the endpoint. null: the client library's.")
    ]
    key_variable: Annotated[
        str, Field(description="Environment variable with the key; its name ends in API_KEY.")
    ]
    temperature: Annotated[float, Field(ge=0, description="Sampling temperature.")]
    max_tokens: Annotated[int, Field(ge=1, description="Tokens of an answer at most.")]
    timeout: Annotated[float, Field(gt=0, description="Seconds that an attempt may be silent.")]
    retries: Annotated[int, Field(ge=0, description="Further attempts, with growing pauses.")]
    cache: Annotated[
        str | None, Field(description="JSONL file that keeps answers. null: memory only.")
    ]
    answers: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    locks: dict[str, Lock] = field(default_factory=dict, init=False, repr=False)  # by key
    requests: int = field(default=0, init=False, repr=False)
    has_answered: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if not KEY_VARIABLE.fullmatch(self.key_variable):  # not shown: it may be the key itself
            line = "key_variable must be an environment variable with a name that ends in API_KEY"
            raise UserError(f"{line}; never write the key itself", code="invalid-key-variable")
        if self.base_url:
            checked_address(self.base_url, "base_url", "set a key_variable")
        if self.model is not None and find_spec("openai") is None:
            line = "calling an endpoint needs the client library; pip install 'agentrl-cli[openai]'"
            raise UserError(line, code="missing-extra")
        if self.cache and files.is_file(Path(self.cache)):
            for row in files.read_jsonl_leniently(Path(self.cache))[0]:
                with suppress(KeyError, TypeError):
                    if _is_text(row["answer"]):
                        self.answers[str(row["key"])] = row["answer"]
        elif self.cache and not files.is_folder(Path(self.cache).parent):
            line = f"the folder of cache '{self.cache}' does not exist; make it first"
            raise UserError(line, code="missing-folder")

    @property
    def name(self) -> str:
        """Return the model and its address."""
        address = self.base_url or "its client library's address"
        return f"model '{self.model}' at {address}"

    def __call__(self, messages: list[Message], seed: int) -> str:
        """Return the model's answer.

        Raises SimulatorError if the endpoint gives none after all retries, EmptyAnswer if the
        answer has no text, RunAborted if the key is refused or the model is gone, UserError if no
        model is named or the server has none of that name.
        """
        if self.model is None:
            raise UserError("no model is named; give env.llm.model=NAME", code="no-model")
        request = (_rows(messages), seed, self.temperature, self.max_tokens)
        key = self._key(*request)
        with self.locks.setdefault(key, Lock()):  # other threads may send the same request
            if key not in self.answers:
                self._store(key, self._request(*request).text)
        return self.answers[key]

    def ask(self, messages: list[Message], seed: int, temperature: float, longest: int) -> Answer:
        """Return an answer of at most `longest` tokens, which may be empty."""
        request = (_rows(messages), seed, temperature, longest)
        key = self._key(*request, caller=["agent"])
        if key in self.answers:
            finish, _, text = self.answers[key].partition(" ")
            return Answer(text, finish)
        answer = self._request(*request, may_be_empty=True)
        self._store(key, f"{answer.finish_reason} {answer.text}")
        return answer

    def _key(
        self, rows: Rows, seed: int, temperature: float, longest: int, caller: Sequence[str] = ()
    ) -> str:
        request = [*caller, self.model, self.base_url, temperature, longest, rows, seed]
        return hashlib.sha256(json.dumps(request).encode()).hexdigest()

    def _store(self, key: str, answer: str) -> None:
        with LOCK:
            self.answers[key] = answer
            if self.cache:
                files.append_jsonl(Path(self.cache), [{"key": key, "answer": answer}])

    def _request(
        self, rows: Rows, seed: int, temperature: float, longest: int, *,
        may_be_empty: bool = False,
    ) -> Answer:  # fmt: skip
        with LOCK:
            client = _client(self.base_url, self.key_variable, self.timeout, self.retries)
            self.requests += 1
        import openai  # pyright: ignore[reportMissingImports]
        from openai.types.chat import ChatCompletion  # pyright: ignore[reportMissingImports]

        body = {
            "model": str(self.model), "messages": rows, "seed": seed % 2**31,
            "temperature": temperature, "max_tokens": longest,
        }  # fmt: skip
        # `chat.completions.create` converts each message, which takes longer than the request
        call = client.post("/chat/completions", body=body, cast_to=ChatCompletion)
        seconds = self.timeout * (self.retries + 1)
        try:
            answer: Any = wait_for(call, seconds)
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            line = f"the endpoint refuses the key in {self.key_variable} ({error.status_code})"
            raise RunAborted(f"{line}; set it to a valid key", code="key-refused") from None
        except TimeoutError:
            raise SimulatorError(f"the endpoint gave no answer within {seconds:g} s") from None
        except (openai.OpenAIError, ValueError, RecursionError) as error:
            reply = getattr(error, "body", None)
            detail = reply.get("detail", "") if isinstance(reply, dict) else ""  # of FastAPI
            shown = f"{type(error).__name__}: {error}{detail and f' - {detail}'}"
            line = redacted(f"the endpoint gave no answer ({shown})", self.key_variable)
            lacks_model = str(self.model) in line and UNSERVED.search(line)
            if isinstance(error, openai.NotFoundError) or lacks_model:
                line = f"the server has no model '{self.model}' ({line})"
                kind = RunAborted if self.has_answered else UserError  # the model was removed
                raise kind(f"{line}; name a model that it serves", code="no-model") from None
            status = getattr(error, "status_code", 500)
            raise (RefusedPrompt if status in REFUSED else SimulatorError)(line) from None
        self.has_answered, choice, text = True, None, None
        with suppress(AttributeError, LookupError, TypeError):
            choice = answer.choices[0]
            text = choice.message.content
        is_empty = text is None or (isinstance(text, str) and not text.strip())
        if not _is_text(text) and not (may_be_empty and is_empty and choice):
            line = "the endpoint's answer has no text; check the model that it serves"
            raise (EmptyAnswer if choice else SimulatorError)(line)
        finish = "length" if getattr(choice, "finish_reason", None) == "length" else "stop"
        usage = getattr(answer, "usage", None)
        counts = (getattr(usage, f"{part}_tokens", None) for part in ("prompt", "completion"))
        read, written = (count if isinstance(count, int) else 0 for count in counts)
        return Answer(str(text or ""), finish, read, written)


def outside_chats(env: object) -> list[OpenAIChat]:
    """Return the models outside of this process that an environment may call."""
    held = vars(env).values()
    return [value for value in held if isinstance(value, OpenAIChat) and value.model is not None]


@lru_cache(maxsize=4)
def _client(base_url: str | None, key_variable: str, timeout: float, retries: int) -> AsyncOpenAI:
    from openai import AsyncOpenAI  # pyright: ignore[reportMissingImports]

    key = os.environ.get(key_variable)
    if key is None and base_url is None:
        line = f"the endpoint needs a key; set {key_variable}, or give env.llm.base_url"
        raise UserError(line, code="missing-key")
    options = {"timeout": timeout, "max_retries": retries}
    return AsyncOpenAI(base_url=base_url, api_key=key or "none", **options)


def _is_text(text: object) -> bool:
    """Return whether it is a text that is not blank and can be encoded as UTF-8."""
    if not isinstance(text, str) or not text.strip():
        return False
    return text == text.encode("utf-8", "ignore").decode()


def _rows(messages: list[Message]) -> Rows:
    return [{"role": message.role, "content": message.content} for message in messages]


@dataclass(kw_only=True)
class LocalChat:
    """Samples an answer with the model's chat template: `chat(messages, seed)`.

    The same seed gives the same answer. `path` is a Hugging Face name or folder; the model is
    loaded at the first call.
    """

    path: Annotated[str, Field(description="Hugging Face name or folder of the model.")]
    device: Annotated[str, Field(description="Device of the model, as cpu or cuda:1.")]
    temperature: Annotated[float, Field(ge=0, description="Sampling temperature.")]
    max_tokens: Annotated[int, Field(ge=1, description="Tokens of an answer at most.")]

    def __call__(self, messages: list[Message], seed: int) -> str:
        """Return the model's answer. Raises UserError if the model cannot be loaded."""
        import torch

        with TORCH_LOCK:
            model, tokenizer = _local_model(self.path, self.device)
        rows = _rows(messages)
        text = tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(str(text), return_tensors="pt", add_special_tokens=False)
        prompt = prompt.to(model.device)
        options: dict[str, Any] = {"max_new_tokens": self.max_tokens, "do_sample": False}
        if self.temperature:
            options |= {"do_sample": True, "temperature": self.temperature, "top_k": 0}
        devices = [model.device] if model.device.type == "cuda" else []
        with TORCH_LOCK, torch.random.fork_rng(devices=devices), torch.inference_mode():
            torch.manual_seed(seed)
            options["pad_token_id"] = tokenizer.pad_token_id
            ids = model.generate(**prompt, **options)
        written = ids[0, prompt["input_ids"].shape[1] :]
        return str(tokenizer.decode(written, skip_special_tokens=True))


@lru_cache(maxsize=2)
def _local_model(path: str, device: str) -> tuple[Any, Any]:
    """Return the model, without the generation settings of its folder, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    if not files.is_folder(Path(path)):
        prepare_hub()
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        model: Any = AutoModelForCausalLM.from_pretrained(
            path, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        line = f"model '{path}' cannot be loaded ({str(error).splitlines()[0]}); name another"
        raise UserError(line, code="unknown-model") from None
    ends = model.generation_config.eos_token_id if model.generation_config else None
    model.generation_config = GenerationConfig(eos_token_id=ends)
    return model.to(device).eval(), tokenizer


@dataclass(kw_only=True)
class EndpointGenerator(Generator):
    """Lets the model behind an endpoint play.

    Prompts become messages again, and answers become token ids of MessageChat. There are no weights
    and no log-probs, so nothing can be trained.

    Args:
        workers: Requests in flight at a time.
        roles: The role that a token id begins; the id `end` ends a message.
        input_price: Price of a million tokens read, `output_price` of a million written. None: not
            counted.
    """

    chat: OpenAIChat
    workers: int
    roles: dict[int, str]
    end: int
    input_price: float | None = None
    output_price: float | None = None
    tokens_read: int = field(default=0, init=False)
    tokens_written: int = field(default=0, init=False)

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """Return completions with NaN log-probs. Raises GeneratorError if some prompts are refused,
        RunAborted if the server gives no answer."""
        pairs = list(zip(prompts, seeds, strict=True))
        calls = [(ids, derive_seed(seed, j)) for ids, seed in pairs for j in range(sampling.n)]

        def answer_to(call: tuple[list[int], int]) -> Answer | SimulatorError:
            messages = messages_of(call[0], self.roles, self.end)
            try:
                return self.chat.ask(messages, call[1], sampling.temperature, sampling.max_tokens)
            except (EmptyAnswer, RefusedPrompt) as error:
                return error

        answers = list[Answer | SimulatorError]()
        with ThreadPoolExecutor(self.workers) as pool:
            try:
                for answer in pool.map(answer_to, calls):
                    answers.append(answer)
                    if self.activity is not None:
                        self.activity.answered = len(answers) / len(calls)
            except SimulatorError as error:
                pool.shutdown(cancel_futures=True)
                cache = self.chat.cache
                again = f"answers so far are in {cache}: repeat the command" if cache else (
                    "see that the server runs, and keep answers with model.request.cache=FILE"
                )  # fmt: skip
                raise RunAborted(f"{error}; {again}", code="endpoint-lost") from error
        good = [answer for answer in answers if isinstance(answer, Answer)]
        self.tokens_read += sum(answer.read for answer in good)
        self.tokens_written += sum(answer.written for answer in good)
        refused = [answer for answer in answers if isinstance(answer, SimulatorError)]
        found: list[Any] = []
        for k in range(0, len(answers), sampling.n):
            row = [answer for answer in answers[k : k + sampling.n] if isinstance(answer, Answer)]
            found.append([*map(self._completion, row)] if len(row) == sampling.n else None)
        if refused:
            raise GeneratorError(str(refused[0]), found)
        return found

    def usage(self) -> dict[str, float]:
        """Return the tokens read and written so far, and their cost."""
        found = {
            "endpoint/tokens_read": float(self.tokens_read),
            "endpoint/tokens_written": float(self.tokens_written),
        }
        if self.input_price is None and self.output_price is None:
            return found
        read, written = (price or 0.0 for price in (self.input_price, self.output_price))
        cost = (self.tokens_read * read + self.tokens_written * written) / 1e6
        return found | {"endpoint/cost": cost}

    def _completion(self, answer: Answer) -> Completion:
        ids = list(answer.text.encode("utf-8", "replace"))
        ids += [self.end] if answer.finish_reason == "stop" else []
        return Completion(ids, [float("nan")] * len(ids), answer.finish_reason)


def messages_of(ids: list[int], roles: dict[int, str], end: int) -> list[Message]:
    """Return the messages that token ids encode, without the opening of the answer to come."""
    messages: list[Message] = []
    role, text = "", bytearray()
    for i in [*ids, end]:
        if i < BYTES:
            text.append(i)
            continue
        if role and (i == end or text):
            messages.append(Message(role, text.decode("utf-8", "replace")))
        role, text = roles.get(i, ""), bytearray()
    is_open = bool(messages) and messages[-1].role == "assistant" and not messages[-1].content
    return messages[:-1] if is_open else messages
