"""A real OpenAI-compatible server on 127.0.0.1: `transformers serve` with a model on the CPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from transformers import PreTrainedTokenizerFast

from tests.builders.models import write_model

START_SECONDS = 300
PROGRAM = Path(sys.executable).parent / "transformers"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def write_talking_model(folder: Path) -> Path:
    """A random model that never ends an answer and says no special token when it is served."""
    config = write_model(folder) / "generation_config.json"
    silent = PreTrainedTokenizerFast.from_pretrained(folder).all_special_ids
    config.write_text(json.dumps({**json.loads(config.read_text()), "suppress_tokens": silent}))
    return folder


@contextmanager
def transformers_server(folder: str, port: int, cwd: Path) -> Iterator[str]:
    """The address of a server of the model in `folder`, as seen from `cwd`, which is its name
    there; the server has ended afterwards."""
    pytest.importorskip("fastapi", reason="needs the extra 'serving'")
    pytest.importorskip("uvicorn", reason="needs the extra 'serving'")
    command = [str(PROGRAM), "serve", folder, "--port", str(port), "--host", "127.0.0.1"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    log = cwd / "server.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [*command, "--device", "cpu"], cwd=cwd, env=environment, stdout=out, stderr=out,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        _wait(server, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(60)


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Return when the server answers. Raises RuntimeError with its log where it does not."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise RuntimeError(f"transformers serve did not start:\n{log.read_text()}")
