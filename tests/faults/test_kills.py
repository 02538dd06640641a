"""Runs that are killed come back the same; `make kills` kills many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl_cli.core import files
from tests.faults import kills


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("algo", kills.ALGORITHMS)
def test_killed_runs_are_resumed_to_the_same_bytes(tmp_path: Path, algo: str):
    record = tmp_path / "record.json"
    options = ["--runs", "5", "--algo", algo, "--folder", str(tmp_path), "--record", str(record)]
    assert kills.main(options) == 0
    assert files.read_json(record) == {"kills": 5, "kills_equal": 5}
    rows = files.read_jsonl(tmp_path / "results.jsonl")
    assert any(row["resumed"] for row in rows)
    assert kills.main(options) == 0  # nothing is done again
    assert files.read_jsonl(tmp_path / "results.jsonl") == rows
