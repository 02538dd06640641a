"""Chats for simulators: an endpoint that fails and recovers, its cache, a model in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Message
from agentrl_cli.generators.endpoint import OpenAIChat
from agentrl_cli.generators.local import LocalChat

ASKED = [Message("system", "Be brief."), Message("user", "Hello?")]


class Endpoint:
    """A local server that answers with the statuses it is given, then with 200."""

    def __init__(self, *statuses: int) -> None:
        self.statuses, self.requests = list(statuses), []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                outer.requests.append(json.loads(self.rfile.read(size)))
                status = outer.statuses.pop(0) if outer.statuses else 200
                text = f"answer {len(outer.requests)}"
                choice = {"index": 0, "finish_reason": "stop",
                          "message": {"role": "assistant", "content": text}}  # fmt: skip
                body = json.dumps({"id": "x", "object": "chat.completion", "created": 0,
                                   "model": "m", "choices": [choice]}).encode()  # fmt: skip
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Retry-After", "0")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    found = Endpoint()
    yield found
    found.server.shutdown()
    found.server.server_close()


def chat(**changes: Any) -> OpenAIChat:
    settings: dict[str, Any] = {
        "model": "m", "base_url": None, "key_variable": "NO_SUCH_KEY", "temperature": 0.5,
        "max_tokens": 8, "timeout": 20.0, "retries": 2, "cache": None,
    }  # fmt: skip
    return OpenAIChat(**{**settings, **changes})


@pytest.mark.extras
def test_an_endpoint_is_asked_again_after_it_failed(endpoint: Endpoint):
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    endpoint.statuses = [500, 429]
    assert chat(base_url=endpoint.url)(ASKED, 7) == "answer 3"
    last = endpoint.requests[-1]
    assert (last["seed"], last["temperature"], last["max_tokens"]) == (7, 0.5, 8)
    assert last["messages"][1] == {"role": "user", "content": "Hello?"}


@pytest.mark.extras
def test_an_endpoint_that_stays_broken_is_an_oserror(endpoint: Endpoint):
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    endpoint.statuses = [500] * 9
    with pytest.raises(OSError, match="InternalServerError"):
        chat(base_url=endpoint.url, retries=1)(ASKED, 7)
    assert len(endpoint.requests) == 2


@pytest.mark.extras
def test_answers_are_kept_by_messages_and_seed_also_in_a_file(endpoint: Endpoint, tmp_path: Path):
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    file = str(tmp_path / "cache.jsonl")
    first = chat(base_url=endpoint.url, cache=file)
    assert [first(ASKED, 1), first(ASKED, 1), first(ASKED, 2)] == ["answer 1"] * 2 + ["answer 2"]
    Path(file).write_text(Path(file).read_text() + '{"key": "cut o')
    again = chat(base_url=endpoint.url, cache=file)
    assert [again(ASKED, 2), len(endpoint.requests)] == ["answer 2", 2]


@pytest.mark.extras
def test_a_missing_key_or_model_is_one_sentence():
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    with pytest.raises(UserError, match="set NO_SUCH_KEY"):
        chat()(ASKED, 0)
    with pytest.raises(UserError, match=r"env\.llm\.model=NAME"):
        chat(model=None)(ASKED, 0)


def test_a_local_model_answers_the_same_to_the_same_seed(model_folder: Path):
    model = LocalChat(path=str(model_folder), device="cpu", temperature=1.0, max_tokens=6)
    said = [model(ASKED, seed) for seed in (1, 1, 2, 3)]
    assert said[0] == said[1] and len(set(said)) > 1
    greedy = LocalChat(path=str(model_folder), device="cpu", temperature=0.0, max_tokens=6)
    assert greedy(ASKED, 1) == greedy(ASKED, 2)
    with pytest.raises(UserError, match="cannot be loaded"):
        LocalChat(path="no/such/model", device="cpu", temperature=1.0, max_tokens=6)(ASKED, 0)
