"""The notebooks of docs/notebooks run, and their stored outputs are clean and small."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tools.notebooks import FOLDER, executed

SIZES = {  # of the cell with the tag `parameters`
    "train": "steps, tasks, episodes_per_step = 2, 4, 16",
    "extend": "steps, warm_up_steps, episodes_per_step = 2, 1, 16",
    "critic": "critic_updates, policy_updates, every = 1, 1, 1",
}
MACHINE = re.compile(r"/(?:home|root|tmp|work|usr|opt)/|site-packages|\x1b")  # of a path, colours
MOST = 100_000  # bytes of a notebook


def code_cells(book: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def parts(output: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """The kinds of an output with their lines."""
    return list((output.get("data") or {"text/plain": output["text"]}).items())


@pytest.mark.parametrize("name", SIZES)
def test_stored_outputs_are_clean_and_small(name: str):
    file = FOLDER / f"{name}.ipynb"
    cells = code_cells(json.loads(file.read_text()))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {
        "stream", "display_data", "execute_result",
    }  # fmt: skip
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}
    assert any("image/png" in output.get("data", {}) for output in outputs)
    texts = [lines for output in outputs for kind, lines in parts(output) if kind != "image/png"]
    assert all(texts) and not MACHINE.search("".join(map("".join, texts)))
    assert file.stat().st_size < MOST


def test_every_notebook_has_sizes():
    assert {file.stem for file in FOLDER.glob("*.ipynb")} == set(SIZES)


@pytest.mark.slow
@pytest.mark.extras
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SIZES)
def test_notebook_runs(name: str, tmp_path: Path):
    pytest.importorskip("nbclient", reason="notebooks need nbclient (extra: docs)")
    book = executed(FOLDER / f"{name}.ipynb", tmp_path, SIZES[name])
    assert all(cell["execution_count"] for cell in code_cells(book))
