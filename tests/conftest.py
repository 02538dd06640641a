"""One torch thread for every test: the models are tiny, and a machine's cores must not decide."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.sample_models import write_model


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of two layers as a Hugging Face folder."""
    return write_model(tmp_path_factory.mktemp("model"))
