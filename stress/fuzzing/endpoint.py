"""Responses of an endpoint to the client of a simulated user: damaged bytes from a local socket,
wrong answers, and a damaged cache."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

from hypothesis import strategies as st

from agentrl_cli.core.types import Message
from agentrl_cli.envs.tau.users import LLMUser
from agentrl_cli.generators.endpoint import OpenAIChat
from stress.fuzzing.mutations import Draw, mutated_bytes, mutated_file, mutated_json
from stress.fuzzing.target import Target

ANSWER = {
    "id": "x", "object": "chat.completion", "created": 0, "model": "m",
    "usage": {"total_tokens": 3},
    "choices": [{"index": 0, "finish_reason": "stop",
                 "message": {"role": "assistant", "content": "My order is #W1.",
                 "tool_calls": None}}],
}  # fmt: skip
ERROR = {"error": {"message": "Bad KEY", "type": "x", "param": None, "code": "invalid"}}
HEADERS = (
    "Content-Type: application/json", "Content-Type: text/html; charset=utf-99",
    "Content-Type: application/json; x",
    "Content-Encoding: gzip", "Content-Encoding: br", "Content-Encoding: x, deflate",
    "Transfer-Encoding: chunked",
    "Content-Length: -1", "Content-Length: x", "Content-Length: 99999", "Content-Length: 1",
    "Retry-After: -1",
    "Retry-After: 1e99", "Retry-After: x", "Retry-After-Ms: nan", "x-should-retry: true",
    "Location: /v1/x",
    "Location: http://[", "Set-Cookie: a=\x00", "\x00: x", "X: " + "y" * 70_000, "no colon",
    "X-Request-Id: \u00e9",
    "Content-Type: text/event-stream",
)  # fmt: skip
STATUSES = ("200 OK",) * 8 + ("201 Created", "204 No Content", "304 Not Modified",
"307 Temporary Redirect", "400 Bad",
            "401 No", "403 No", "404 Not Found", "409 Conflict", "418 x", "429 Wait", "500 x",
            "503 x", "100 Continue",
            "101 Switching", "099 x", "1000 x", "x", "200")  # fmt: skip
TIMEOUT = 1.0  # seconds of one call
ASKED = [Message("user", "Hello?")]
Case = tuple[str, bytes, int]  # whether an answer or a cache, its bytes, and the seed


class Server:
    """A local socket that sends `answer` to every request."""

    def __init__(self) -> None:
        self.answer = b""
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/v1"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            with self.socket.accept()[0] as asked, suppress(OSError, ValueError):
                asked.settimeout(TIMEOUT)
                data = b""
                while b"\r\n\r\n" not in data:
                    data += asked.recv(1 << 16)
                head, _, body = data.partition(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length:")[2].split()[0])
                while len(body) < size:
                    body += asked.recv(1 << 16)
                asked.sendall(self.answer)


def target(home: Path) -> Target:
    """Return the target of responses to the client, and of files in place of its cache."""
    cache = b"".join(json.dumps({"key": str(n), "answer": "x"}).encode() + b"\n" for n in range(3))

    @st.composite
    def cases(draw: Draw) -> Case:
        if draw(st.integers(0, 9)) == 0:
            return "cache", draw(mutated_file(cache)), 0
        return "answer", draw(_responses()), draw(st.integers(0, 2**70))

    server: list[Server] = []  # of the process that asks, not of the one that forked it

    def run(case: Case) -> None:
        if not server:
            server.append(Server())
        kind, content, seed = case
        make = partial(
            OpenAIChat, model="m", key_variable="NO_SUCH_API_KEY", temperature=0.5, max_tokens=8
        )
        file = home / "cache.jsonl"
        file.write_bytes(content if kind == "cache" else b"")
        server[0].answer = content
        chat = make(base_url=server[0].url, timeout=TIMEOUT, retries=0, cache=str(file))
        if kind == "answer":
            user = LLMUser("Return order #W1.", chat, seed)
            user.start()
            user.reply("Which order?")

    return Target(cases(), run, lambda case: ["endpoint", "cache.jsonl", "user's model"])


@st.composite
def _responses(draw: Draw) -> bytes:
    """Return a status line, headers and a body; usually the body is damaged."""
    body = draw(mutated_json(draw(st.sampled_from((ANSWER, ANSWER, ERROR))))).encode(
        "utf-8", "surrogatepass"
    )
    if draw(st.integers(0, 3)) == 0:
        body = draw(mutated_bytes(body))
    headers = draw(st.lists(st.sampled_from(HEADERS), max_size=2))
    headers = headers or ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    head = "\r\n".join(
        [f"HTTP/1.1 {draw(st.sampled_from(STATUSES))}", "Connection: close", *headers]
    )
    whole = head.encode() + b"\r\n\r\n" + body
    return draw(mutated_bytes(whole)) if draw(st.integers(0, 7)) == 0 else whole
