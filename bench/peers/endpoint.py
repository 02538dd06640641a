"""An OpenAI-compatible server that answers each chat at once with the same text. It is a separate
process, so its CPU seconds count for no side."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread
from typing import Any

from serve import serve

MESSAGE = {"role": "assistant", "content": "go " * 16}
BODY = json.dumps({
    "id": "0", "object": "chat.completion", "created": 0, "model": "stub",
    "choices": [{"index": 0, "finish_reason": "stop", "message": MESSAGE}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 16, "total_tokens": 116},
}).encode()  # fmt: skip
HEAD = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"


class Handler(BaseHTTPRequestHandler):
    """Keeps its connection open."""

    protocol_version = "HTTP/1.1"
    requests = count()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        next(self.requests)
        self.wfile.write(HEAD.encode() + BODY)


def taken() -> dict[str, Any]:
    """Return the address, and the number of requests since the last call."""
    done, Handler.requests = next(Handler.requests), count()
    return {"url": f"http://127.0.0.1:{server.server_port}/v1", "requests": done}


if __name__ == "__main__":
    ThreadingHTTPServer.request_queue_size = 128  # many clients connect at once
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    serve({"requests": taken})
