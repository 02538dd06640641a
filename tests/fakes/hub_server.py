"""A stand-in for the Hugging Face Hub: the requests of `HfApi.create_repo`, `model_info` and
`upload_folder` over HTTP, without Xet."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_standin"


class FakeHub(ThreadingHTTPServer):
    """Keeps the files and the visibility of each repository by name. Large files arrive by their
    SHA-256 before the commit that names them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.large: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
        yield hub
        hub.shutdown()


class Handler(BaseHTTPRequestHandler):
    server: Any  # a FakeHub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.reply(200)

    def do_GET(self) -> None:
        if self.headers["authorization"] != f"Bearer {TOKEN}":
            return self.reply(401, error="Invalid username or password.")
        repo = self.path.removeprefix("/api/models/")
        self.reply(200, id=repo, private=self.server.private[repo], siblings=[])

    def do_PUT(self) -> None:  # signed addresses need no token
        content, name = self.body(), self.path.rpartition("/")[2]
        assert hashlib.sha256(content).hexdigest() == name
        self.server.large[name] = content
        self.reply(200)

    def do_POST(self) -> None:
        hub, body, parts = self.server, self.body(), self.path.split("/")
        if self.headers["authorization"] != f"Bearer {TOKEN}":
            return self.reply(401, error="Invalid username or password.")
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            url = f"{hub.url}/{repo}"
            if repo in hub.files:
                return self.reply(409, error="You already created this model repo", url=url)
            hub.files[repo] = {}
            hub.private[repo] = asked.get("visibility") == "private"
            return self.reply(200, url=url, name=repo)
        if self.path == "/api/validate-yaml":
            return self.reply(200, errors=[], warnings=[])
        if self.path.endswith(".git/info/lfs/objects/batch"):
            found = [
                one | {"actions": {"upload": {"href": f"{hub.url}/large/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            return self.reply(200, objects=found, transfer="basic")
        if "preupload" in parts:
            files = [
                {"path": one["path"], "shouldIgnore": False, "uploadMode": mode(one["path"])}
                for one in json.loads(body)["files"]
            ]
            return self.reply(200, files=files)
        assert parts[-2:] == ["commit", "main"], self.path
        repo = f"{parts[3]}/{parts[4]}"
        for line in body.splitlines():
            key, value = (json.loads(line)[name] for name in ("key", "value"))
            if key == "file":
                hub.files[repo][value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                hub.files[repo][value["path"]] = hub.large[value["oid"]]
        self.reply(200, commitUrl=f"{hub.url}/{repo}/commit/{'0' * 40}", commitOid="0" * 40)

    def body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def reply(self, status: int, **answer: Any) -> None:
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)


def mode(path: str) -> str:
    return "lfs" if path.endswith(".safetensors") else "regular"
