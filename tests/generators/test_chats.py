"""Chats for simulators: an endpoint that fails and recovers, its cache, a model in this process."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.core.errors import SimulatorError, StoppedRun, UserError
from agentrl_cli.core.types import Message
from agentrl_cli.generators.endpoint import OpenAIChat
from agentrl_cli.generators.local import LocalChat

ASKED = [Message("system", "Be brief."), Message("user", "Hello?")]


class Endpoint:
    """A local server that answers with the statuses it is given, then with 200; with `body` where
    there is one, a byte every `pause` seconds."""

    def __init__(self, *statuses: int) -> None:
        self.statuses, self.requests = list(statuses), []
        self.body, self.pause = "", 0.0
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
                key = self.headers["Authorization"] or ""
                body = outer.body.replace("KEY", key).encode() or body
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Retry-After-Ms", "1")
                self.end_headers()
                with suppress(OSError):  # nobody reads any more
                    for start in range(0, len(body), 1 if outer.pause else len(body)):
                        self.wfile.write(body[start : start + 1] if outer.pause else body)
                        time.sleep(outer.pause)

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
        "model": "m", "base_url": None, "key_variable": "NO_SUCH_API_KEY", "temperature": 0.5,
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
@pytest.mark.parametrize(("status", "error"), [(500, "InternalServer"), (429, "RateLimit")])
def test_an_endpoint_that_stays_broken_breaks_the_episode(
    endpoint: Endpoint, status: int, error: str
):
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    endpoint.statuses = [status] * 9
    with pytest.raises(SimulatorError, match=f"the endpoint gave no answer \\({error}Error"):
        chat(base_url=endpoint.url, retries=1)(ASKED, 7)
    assert len(endpoint.requests) == 2


@pytest.mark.extras
def test_an_endpoint_that_is_not_there_breaks_the_episode():
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    with pytest.raises(SimulatorError, match="APIConnectionError"):
        chat(base_url="http://127.0.0.1:9/v1", retries=0)(ASKED, 7)


def completion(content: str) -> str:
    return f'{{"choices": [{{"message": {{"role": "assistant", "content": {content}}}}}]}}'


@pytest.mark.extras
@pytest.mark.parametrize("body", [
    "null", "<html>Busy</html>", "{", "[]", '{"choices": []}', '{"choices": 3}', "[" * 5000,
    completion("null"), completion('" "'), completion('"\\ud800"'), completion("3"),
])  # fmt: skip
def test_what_is_no_answer_breaks_the_episode_and_is_not_kept(endpoint: Endpoint, body: str):
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    endpoint.body = body
    asked = chat(base_url=endpoint.url, retries=0)
    with pytest.raises(SimulatorError, match=r"the endpoint('s answer holds no text| gave no)"):
        asked(ASKED, 7)
    endpoint.body = ""
    assert asked(ASKED, 7) == "answer 2"


@pytest.mark.extras
def test_a_call_has_a_limit_also_where_bytes_drip(endpoint: Endpoint):
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    asked = chat(base_url=endpoint.url, timeout=0.3, retries=0)
    assert asked(ASKED, 6) == "answer 1"
    endpoint.pause = 0.05
    with pytest.raises(SimulatorError, match=r"no answer within 0\.3 s"):
        asked(ASKED, 7)


@pytest.mark.extras
@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_refused_stops_the_run_at_once(endpoint: Endpoint, status: int):
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    endpoint.statuses = [status] * 9
    with pytest.raises(StoppedRun, match=rf"refuses the key in NO_SUCH_API_KEY \({status}\); set"):
        chat(base_url=endpoint.url)(ASKED, 7)
    assert len(endpoint.requests) == 1


@pytest.mark.extras
def test_an_error_holds_no_key(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    monkeypatch.setenv("ECHOED_API_KEY", "my-secret")
    endpoint.statuses, endpoint.body = [400], '{"error": {"message": "bad KEY ' + "x" * 999 + '"}}'
    with pytest.raises(SimulatorError, match=r"bad Bearer \*\*\*") as raised:
        chat(base_url=endpoint.url, key_variable="ECHOED_API_KEY")(ASKED, 7)
    assert "my-secret" not in str(raised.value) and len(str(raised.value)) <= 300


@pytest.mark.extras
def test_answers_are_kept_by_messages_and_seed_also_in_a_file(endpoint: Endpoint, tmp_path: Path):
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    file = str(tmp_path / "cache.jsonl")
    first = chat(base_url=endpoint.url, cache=file)
    assert [first(ASKED, 1), first(ASKED, 1), first(ASKED, 2)] == ["answer 1"] * 2 + ["answer 2"]
    Path(file).write_text(Path(file).read_text() + '{"key": "cut o')
    again = chat(base_url=endpoint.url, cache=file)
    assert [again(ASKED, 2), len(endpoint.requests)] == ["answer 2", 2]


def test_what_is_damaged_in_a_file_of_answers_is_left_out(tmp_path: Path):
    file = tmp_path / "cache.jsonl"
    file.write_bytes(
        b'{"key": "0", "answer": "x"}\n{ey\x84\x91"}\n[]\n{"key": "2", "answer": "y"}\n'
    )
    assert chat(model=None, cache=str(file)).answers == {"0": "x", "2": "y"}


@pytest.mark.extras
def test_what_several_threads_ask_alike_is_asked_once(endpoint: Endpoint, tmp_path: Path):
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    endpoint.pause = 0.001
    asked = chat(base_url=endpoint.url, cache=str(tmp_path / "cache.jsonl"))
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda i: asked(ASKED, i % 3), range(12)))
    assert len(endpoint.requests) == 3 and answers == answers[:3] * 4
    assert chat(cache=asked.cache).answers == asked.answers


@pytest.mark.parametrize("name", ["HOME", "AWS_SECRET_ACCESS_KEY", "API_KEY_", "sk-x", ""])
def test_no_variable_but_an_api_key_is_sent_and_its_name_not_shown(name: str):
    with pytest.raises(UserError, match="that ends in API_KEY") as refused:
        chat(model=None, key_variable=name)
    assert not name or name not in str(refused.value).replace("ends in API_KEY", "")
    assert chat(model=None, key_variable="API_KEY").key_variable == "API_KEY"


def test_what_is_no_address_or_no_place_for_a_file_is_refused_at_the_start(tmp_path: Path):
    for address in ("http://[::1/v1", "http://127.0.0.1:80x/v1", "http://me:secret/v1"):
        with pytest.raises(UserError, match="base_url holds what is no address; give") as refused:
            chat(model=None, base_url=address)
        assert "secret" not in str(refused.value)
    with pytest.raises(UserError, match=r"the folder of cache '.*' does not exist; make it first"):
        chat(model=None, cache=str(tmp_path / "none" / "answers.jsonl"))


@pytest.mark.extras
def test_an_agents_answer_of_white_space_is_an_answer_and_a_users_is_none(endpoint: Endpoint):
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    endpoint.body = completion('"  "')
    assert chat(base_url=endpoint.url).ask(ASKED, 7, 1.0, 8).text == "  "
    with pytest.raises(SimulatorError, match="holds no text"):
        chat(base_url=endpoint.url)(ASKED, 7)


def test_an_address_with_a_user_is_refused_unshown():
    with pytest.raises(UserError, match="base_url holds a user") as refused:
        chat(model=None, base_url="http://me:word@host/v1")
    assert "word" not in str(refused.value)


@pytest.mark.extras
def test_a_missing_key_or_model_is_one_sentence():
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    with pytest.raises(UserError, match="set NO_SUCH_API_KEY"):
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


def test_a_local_model_samples_as_asked_and_not_by_its_folders_habits(
    model_folder: Path, tmp_path: Path
):
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    habits = {"do_sample": True, "top_p": 1e-6, "repetition_penalty": 1.5}
    (folder / "generation_config.json").write_text(json.dumps(habits))
    plain, other = (
        LocalChat(path=str(path), device="cpu", temperature=1.0, max_tokens=6)
        for path in (model_folder, folder)
    )
    assert [other(ASKED, seed) for seed in (1, 2, 3)] == [plain(ASKED, s) for s in (1, 2, 3)]


def test_a_local_model_answers_threads_as_it_answers_one(model_folder: Path):
    model = LocalChat(path=str(model_folder), device="cpu", temperature=1.0, max_tokens=6)
    alone = [model(ASKED, seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda seed: model(ASKED, seed), range(8))) == alone
