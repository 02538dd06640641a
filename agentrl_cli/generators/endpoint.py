"""Chat with any OpenAI-compatible endpoint, for simulators (never for training): retries and
time-outs are the client library's, answers are cached by seed."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_cli.core.errors import UserError, require_at_least
from agentrl_cli.core.types import Message

if TYPE_CHECKING:
    from openai import OpenAI  # pyright: ignore[reportMissingImports]


@dataclass(kw_only=True)
class OpenAIChat:
    """`chat(messages, seed)` asks `model` once for each messages and seed: the answer is kept in
    memory and, where `cache` names a file, there as JSON lines."""

    model: str | None
    base_url: str | None
    key_variable: str
    temperature: float
    max_tokens: int
    timeout: float
    retries: int
    cache: str | None
    answers: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        require_at_least(0, temperature=self.temperature, retries=self.retries)
        require_at_least(1, max_tokens=self.max_tokens)
        if self.cache and Path(self.cache).is_file():
            self.answers = _read(Path(self.cache))

    def __call__(self, messages: list[Message], seed: int) -> str:
        """The model's answer. OSError where the endpoint gave none after all retries, UserError
        where no model is named or the client library is missing."""
        if self.model is None:
            raise UserError("no model is named to chat with; give env.llm.model=NAME")
        rows = [{"role": message.role, "content": message.content} for message in messages]
        request = [self.model, self.base_url, self.temperature, self.max_tokens, rows, seed]
        key = hashlib.sha256(json.dumps(request).encode()).hexdigest()
        if key not in self.answers:
            answer = self.answers[key] = self._ask(self.model, rows, seed)
            if self.cache:
                with Path(self.cache).open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, "answer": answer}) + "\n")
        return self.answers[key]

    def _ask(self, model: str, rows: list[Any], seed: int) -> str:
        client = _client(self.base_url, self.key_variable, self.timeout, self.retries)
        from openai import OpenAIError  # pyright: ignore[reportMissingImports]

        try:
            response = client.chat.completions.create(
                model=model, messages=rows, seed=seed % 2**31, temperature=self.temperature,
                max_tokens=self.max_tokens,
            )  # fmt: skip
        except OpenAIError as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        return response.choices[0].message.content or "" if response.choices else ""


@lru_cache(maxsize=4)
def _client(base_url: str | None, key_variable: str, timeout: float, retries: int) -> OpenAI:
    try:
        from openai import OpenAI  # pyright: ignore[reportMissingImports]
    except ImportError:
        remedy = "pip install 'agentrl-cli[openai]'"
        raise UserError(f"chatting with an endpoint needs the client library; {remedy}") from None
    key = os.environ.get(key_variable)
    if key is None and base_url is None:
        raise UserError(f"the endpoint needs a key; set {key_variable}, or give env.llm.base_url")
    options = {"timeout": timeout, "max_retries": retries}
    return OpenAI(base_url=base_url, api_key=key or "none", **options)


def _read(file: Path) -> dict[str, str]:
    """The cached answers of a file; a last line that was cut off is left out."""
    answers: dict[str, str] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError, KeyError, TypeError):
            row = json.loads(line)
            answers[str(row["key"])] = str(row["answer"])
    return answers
