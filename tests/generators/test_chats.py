"""Chats for simulators: an endpoint that fails and recovers, its cache, and a local model."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.core.errors import EmptyAnswer, RunAborted, SimulatorError, UserError
from agentrl_cli.core.types import Message
from agentrl_cli.generators.endpoint import LocalChat, OpenAIChat

ASKED = [Message("system", "Be brief."), Message("user", "Hello?")]


class Endpoint:
    """A local server that answers with the given statuses, then with 200.

    With `body` it sends that; with `pause` a byte at a time.
    """

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.requests: list[Any] = []
        self.body, self.pause = "", 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                outer.requests.append(json.loads(self.rfile.read(size)))
                status = outer.statuses.pop(0) if outer.statuses else 200
                key = self.headers["Authorization"] or ""
                body = outer.body.replace("KEY", key).encode()
                body = body or completion(f'"answer {len(outer.requests)}"').encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Retry-After-Ms", "1")
                self.end_headers()
                with suppress(OSError):  # the client has left
                    for start in range(0, len(body), 1 if outer.pause else len(body)):
                        self.wfile.write(body[start : start + 1] if outer.pause else body)
                        time.sleep(outer.pause)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


def completion(content: str) -> str:
    message = f'{{"role": "assistant", "content": {content}}}'
    return f'{{"choices": [{{"index": 0, "finish_reason": "stop", "message": {message}}}]}}'


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    if find_spec("openai") is None:
        pytest.skip("needs the extra 'openai'")
    found = Endpoint()
    yield found
    found.server.shutdown()
    found.server.server_close()


def chat(**changes: Any) -> OpenAIChat:
    settings: dict[str, Any] = {
        "model": "m", "base_url": None, "key_variable": "NO_SUCH_API_KEY", "temperature": 0.5,
        "max_tokens": 8, "timeout": 20.0, "retries": 2, "cache": None,
    }  # fmt: skip
    return OpenAIChat(**{**settings, **changes})


@pytest.mark.extras
def test_endpoint_is_retried_after_a_failure(endpoint: Endpoint):
    endpoint.statuses = [500, 429]
    assert chat(base_url=endpoint.url)(ASKED, 7) == "answer 3"
    last = endpoint.requests[-1]
    assert (last["seed"], last["temperature"], last["max_tokens"]) == (7, 0.5, 8)
    assert last["messages"][1] == {"role": "user", "content": "Hello?"}


@pytest.mark.extras
@pytest.mark.parametrize(("status", "error"), [(500, "InternalServer"), (429, "RateLimit")])
def test_persistent_failure_fails_the_episode(endpoint: Endpoint, status: int, error: str):
    endpoint.statuses = [status] * 9
    with pytest.raises(SimulatorError, match=f"{error}Error"):
        chat(base_url=endpoint.url, retries=1)(ASKED, 7)
    assert len(endpoint.requests) == 2
    with pytest.raises(SimulatorError, match="APIConnectionError"):
        chat(base_url="http://127.0.0.1:9/v1", retries=0)(ASKED, 7)


@pytest.mark.extras
@pytest.mark.parametrize("body", [
    "null", "<html>Busy</html>", "{", "[]", '{"choices": []}', '{"choices": 3}', "[" * 5000,
    completion("null"), completion('" "'), completion('"\\ud800"'), completion("3"),
])  # fmt: skip
def test_invalid_answer_fails_and_is_not_cached(endpoint: Endpoint, body: str):
    endpoint.body = body
    asked = chat(base_url=endpoint.url, retries=0)
    with pytest.raises(SimulatorError):
        asked(ASKED, 7)
    endpoint.body = ""
    assert asked(ASKED, 7) == "answer 2"


@pytest.mark.extras
def test_whole_call_has_a_time_limit(endpoint: Endpoint):
    asked = chat(base_url=endpoint.url, timeout=0.3, retries=0)
    assert asked(ASKED, 6) == "answer 1"
    endpoint.pause = 0.05
    with pytest.raises(SimulatorError, match=r"0\.3 s"):
        asked(ASKED, 7)


@pytest.mark.extras
@pytest.mark.parametrize("status", [401, 403])
def test_refused_key_stops_the_run(endpoint: Endpoint, status: int):
    endpoint.statuses = [status] * 9
    with pytest.raises(RunAborted, match="NO_SUCH_API_KEY") as stopped:
        chat(base_url=endpoint.url)(ASKED, 7)
    assert len(endpoint.requests) == 1 and stopped.value.code == "key-refused"


@pytest.mark.extras
def test_model_that_is_gone_stops_the_run(endpoint: Endpoint):
    endpoint.statuses = [404, 200, 404]
    asked = chat(base_url=endpoint.url)
    with pytest.raises(UserError) as refused:
        asked(ASKED, 7)
    assert (refused.value.code, refused.value.exit_code) == ("no-model", 2)
    assert asked(ASKED, 7) == "answer 2"
    with pytest.raises(RunAborted) as stopped:  # after which training is saved
        asked(ASKED, 8)
    assert stopped.value.code == "no-model"


@pytest.mark.extras
def test_error_shows_no_key(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ECHOED_API_KEY", "my-secret")
    endpoint.statuses, endpoint.body = [400], '{"error": {"message": "bad KEY ' + "x" * 999 + '"}}'
    with pytest.raises(SimulatorError, match=r"bad Bearer \*\*\*") as raised:
        chat(base_url=endpoint.url, key_variable="ECHOED_API_KEY")(ASKED, 7)
    assert "my-secret" not in str(raised.value) and len(str(raised.value)) <= 300


@pytest.mark.extras
def test_answers_are_cached_by_messages_and_seed(endpoint: Endpoint, tmp_path: Path):
    file = str(tmp_path / "cache.jsonl")
    first = chat(base_url=endpoint.url, cache=file)
    assert [first(ASKED, 1), first(ASKED, 1), first(ASKED, 2)] == ["answer 1"] * 2 + ["answer 2"]
    Path(file).write_text(Path(file).read_text() + '{"key": "cut o')
    again = chat(base_url=endpoint.url, cache=file)
    assert [again(ASKED, 2), len(endpoint.requests)] == ["answer 2", 2]


def test_damaged_cache_lines_are_skipped(tmp_path: Path):
    file = tmp_path / "cache.jsonl"
    file.write_bytes(
        b'{"key": "0", "answer": "x"}\n{ey\x84\x91"}\n[]\n{"key": "2", "answer": "y"}\n'
    )
    assert chat(model=None, cache=str(file)).answers == {"0": "x", "2": "y"}


@pytest.mark.extras
def test_threads_send_equal_requests_once(endpoint: Endpoint, tmp_path: Path):
    endpoint.pause = 0.001
    asked = chat(base_url=endpoint.url, cache=str(tmp_path / "cache.jsonl"))
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda i: asked(ASKED, i % 3), range(12)))
    assert len(endpoint.requests) == 3 and answers == answers[:3] * 4
    assert chat(cache=asked.cache).answers == asked.answers


@pytest.mark.parametrize("name", ["HOME", "AWS_SECRET_ACCESS_KEY", "API_KEY_", "sk-x", ""])
def test_only_api_key_variables_are_read(name: str):
    with pytest.raises(UserError) as refused:
        chat(model=None, key_variable=name)
    assert refused.value.code == "invalid-key-variable"
    assert not name or name not in str(refused.value).replace("ends in API_KEY", "")
    assert chat(model=None, key_variable="API_KEY").key_variable == "API_KEY"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"base_url": "http://[::1/v1"}, "invalid-address"),
        ({"base_url": "http://me:secret/v1"}, "invalid-address"),
        ({"base_url": "http://me:secret@host/v1"}, "user-in-address"),
        ({"cache": "no/such/folder/answers.jsonl"}, "missing-folder"),
    ],
)
def test_invalid_address_or_cache_is_refused(changes: dict[str, str], code: str):
    with pytest.raises(UserError) as refused:
        chat(model=None, **changes)
    assert refused.value.code == code and "secret" not in str(refused.value)


@pytest.mark.extras
def test_blank_answer_is_valid_for_agents_only(endpoint: Endpoint):
    endpoint.body = completion('"  "')
    assert chat(base_url=endpoint.url).ask(ASKED, 7, 1.0, 8).text == "  "
    with pytest.raises(EmptyAnswer):
        chat(base_url=endpoint.url)(ASKED, 7)


@pytest.mark.extras
def test_missing_key_or_model_is_refused(endpoint: Endpoint):
    with pytest.raises(UserError, match="NO_SUCH_API_KEY"):
        chat()(ASKED, 0)
    with pytest.raises(UserError) as refused:
        chat(model=None)(ASKED, 0)
    assert refused.value.code == "no-model"


def local(path: Path | str, temperature: float = 1.0) -> LocalChat:
    return LocalChat(path=str(path), device="cpu", temperature=temperature, max_tokens=6)


def test_local_model_answers_by_seed(model_folder: Path):
    model = local(model_folder)
    answers = [model(ASKED, seed) for seed in (1, 1, 2, 3)]
    assert answers[0] == answers[1] and len(set(answers)) > 1
    greedy = local(model_folder, 0.0)
    assert greedy(ASKED, 1) == greedy(ASKED, 2)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda seed: model(ASKED, seed), (1, 1, 2, 3))) == answers
    with pytest.raises(UserError, match="no/such/model"):
        local("no/such/model")(ASKED, 0)


def test_local_model_ignores_its_folders_sampling(model_folder: Path, tmp_path: Path):
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    habits = {"do_sample": True, "top_p": 1e-6, "repetition_penalty": 1.5}
    (folder / "generation_config.json").write_text(json.dumps(habits))
    plain, other = local(model_folder), local(folder)
    assert [other(ASKED, seed) for seed in (1, 2, 3)] == [plain(ASKED, s) for s in (1, 2, 3)]
