"""A fake vLLM server over a real small model, with faults on request.

It implements the part of the protocol that a run needs. As a program it replaces `vllm serve`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from agentrl_cli.generators.base import Sampling
from agentrl_cli.generators.hf import HFGenerator

FOREVER = 3600.0
Spoils = Callable[[int], str | None]  # what goes wrong with completion number i


class FakeVLLM(ThreadingHTTPServer):
    """Serves the model in `folder`; `spoils(i)` names the fault of completion i.

    `asked` holds the requested completions, `history` every load and unload.
    """

    daemon_threads = True
    request_queue_size = 128  # connections that wait; of more than these some are reset

    def __init__(
        self,
        folder: Path | str,
        *,
        port: int = 0,
        spoils: Spoils = lambda i: None,
        takes_adapters: bool = True,
        max_model_len: int = 2048,
    ) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.folder, self.spoils = str(folder), spoils
        self.takes_adapters, self.max_model_len = takes_adapters, max_model_len
        self.asked: list[dict[str, Any]] = []
        self.history: list[str] = []
        self.adapters: dict[str, str] = {}
        self.base: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.adapted: PeftModel | None = None
        self.engine = HFGenerator(self, max_batch=8, cache_tokens=0)
        self.device = torch.device("cpu")
        self.at_work = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def module(self, name: str) -> Any:
        assert self.adapted is not None
        if self.adapted.active_adapter != name:
            self.adapted.set_adapter(name)
        return self.adapted

    def load(self, name: str, folder: str) -> None:
        if self.adapted is None:
            self.adapted = PeftModel.from_pretrained(self.base, folder, adapter_name=name)
        else:
            self.adapted.load_adapter(folder, adapter_name=name)
        self.adapted.eval()
        self.adapters[name] = folder
        self.history.append(f"load {name}")

    def unload(self, name: str) -> None:
        del self.adapters[name]
        self.history.append(f"unload {name}")

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        sampling = Sampling(
            max_tokens=body["max_tokens"], temperature=body["temperature"],
            stop_ids=tuple(body["stop_token_ids"]),
        )  # fmt: skip
        seeds, name = [body["seed"]], body["model"]
        with self.at_work:
            ((found,),) = self.engine.generate([body["prompt"]], seeds, sampling, name)
            self.engine.clear()
        logprobs = {"token_logprobs": found.logprobs}
        choice = {
            "token_ids": found.ids,
            "logprobs": logprobs,
            "finish_reason": found.finish_reason,
        }
        return {"choices": [choice]}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no matter."""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer goes out at once, not its head alone
    server: FakeVLLM

    def do_GET(self) -> None:
        if self.path == "/health":
            self.echo(200, {})
            return
        root = self.server.folder
        base = {"id": root, "root": root, "max_model_len": self.server.max_model_len}
        loaded = [{"id": name, "root": path} for name, path in self.server.adapters.items()]
        self.echo(200, {"object": "list", "data": [base, *loaded]})

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size))
        if self.path == "/v1/completions":
            self.complete(body)
        elif not self.server.takes_adapters:
            self.echo(404, {"detail": "Not Found"})
        elif self.path == "/v1/load_lora_adapter":
            with self.server.at_work:
                self.server.load(body["lora_name"], body["lora_path"])
            self.echo(200, "Success")
        elif self.path == "/v1/unload_lora_adapter":
            with self.server.at_work:
                self.server.unload(body["lora_name"])
            self.echo(200, "Success")

    def complete(self, body: dict[str, Any]) -> None:
        self.server.asked.append(body)
        fault = self.server.spoils(len(self.server.asked) - 1)
        refusals = {
            "is busy": (503, "come again"),
            "refuses": (400, "the prompt is too long"),
            "echoes": (400, f"what is {self.headers.get('Authorization')}?"),
            "wants a key": (401, "Unauthorized"),
        }
        if body["model"] not in self.server.adapters:
            self.refuse(404, f"The model `{body['model']}` does not exist.")
        elif fault in refusals:
            self.refuse(*refusals[fault])
        elif fault == "hangs":
            time.sleep(FOREVER)
        elif fault == "drips":
            self.drip()
        elif fault == "hangs up":
            self.close_connection = True
            self.connection.close()
        elif fault is not None:
            self.echo(200, json.loads(fault))
        else:
            self.echo(200, self.server.complete(body))

    def refuse(self, status: int, message: str) -> None:
        self.echo(status, {"error": {"message": message, "code": status}})

    def drip(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        while True:
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.05)

    def echo(self, status: int, value: Any) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def serving(folder: Path | str, **behaviour: Any) -> Iterator[FakeVLLM]:
    with FakeVLLM(folder, **behaviour) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def main(arguments: list[str]) -> None:
    assert arguments[0] == "serve"
    torch.set_num_threads(1)
    port = int(arguments[arguments.index("--port") + 1])
    with FakeVLLM(arguments[1], port=port) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
