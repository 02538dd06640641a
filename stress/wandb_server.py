"""A server with the part of W&B's protocol that a run needs, which can be made to fail."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROJECT = {"id": "p", "name": "agentrl", "entity": {"id": "e", "name": "me"}}
BUCKET = {"id": "b", "displayName": "it", "config": "{}", "historyLineCount": 0, "project": PROJECT}
VIEWER = {"id": "v", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
FOREVER = 3600.0


class Server(ThreadingHTTPServer):
    """A W&B server. `hangs` and `refuses` are times of failure: at once, or when a run has
    begun. `seen` holds the requests, and an answer takes `delay` seconds."""

    daemon_threads = True

    def __init__(self, *, fails: str, delay: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.fails, self.delay = fails, delay
        self.has_begun = False
        self.seen: list[str] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnected."""


class Handler(BaseHTTPRequestHandler):
    """A request."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size).decode(errors="replace")
        if self.server.fails == "hangs" or (self.server.fails == "hangs later" and self.has_begun):
            time.sleep(FOREVER)
        if self.server.fails == "is lost" and self.has_begun:
            self.connection.close()
            return
        time.sleep(self.server.delay)
        self.server.seen.append(f"{self.path} {body}")
        self.answer(self.data(json.loads(body)) if self.path == "/graphql" else {})

    do_GET = do_PUT = do_POST

    @property
    def has_begun(self) -> bool:
        return self.server.has_begun

    def data(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the data that a GraphQL query asks for, if it is known here."""
        query, found = request.get("query", ""), {}
        if "viewer" in query:
            found["viewer"] = VIEWER
        if "upsertBucket" in query:
            self.server.has_begun = True
            name = (request.get("variables") or {}).get("name") or "it"
            found["upsertBucket"] = {"inserted": True, "bucket": {**BUCKET, "name": name}}
        return {"data": found} if found else {"errors": [{"message": "not known here"}]}

    def answer(self, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def served(*, fails: str = "", delay: float = 0.0) -> Iterator[Server]:
    """Run a server at `server_port` of this machine."""
    server = Server(fails=fails, delay=delay)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
