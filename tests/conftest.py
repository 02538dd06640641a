"""What many tests begin with, and one torch thread for every test: the models are tiny, and a
machine's cores must not decide."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from agentrl_cli.models.model_set import ModelSet
from tests.builders.models import write_model
from tests.builders.nlac import nlac, weights
from tests.builders.runs import Agentrl


def pytest_collection_finish() -> None:
    """Keep the garbage collector from visiting torch and all tests again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def models(model_folder: Path) -> ModelSet:
    return weights(nlac(), model_folder)


@pytest.fixture
def agentrl(tmp_path: Path) -> Agentrl:
    """The command line in a process of its own, in an empty folder."""

    def call(
        *arguments: str, stdin: str = "", program: Sequence[str] = ("-m", "agentrl_cli.cli")
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *program, *arguments]
        return subprocess.run(command, cwd=tmp_path, input=stdin, capture_output=True, text=True)

    return call
