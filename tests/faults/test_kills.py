"""Runs that are killed come back the same; `make kills` kills many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl_cli.core import files
from stress import kills


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_killed_runs_are_resumed_to_the_same_bytes(tmp_path: Path):
    record, kills_each = tmp_path / "record.json", 2
    options = ["--runs", f"{kills_each}", "--folder", str(tmp_path), "--record", str(record)]
    assert kills.main(options) == 0
    everything = kills_each * len(kills.ALGORITHMS)
    assert files.read_json(record) == {"kills": everything, "kills_equal": everything}
    rows = files.read_jsonl(tmp_path / "results.jsonl")
    assert {row["algo"] for row in rows if row["operation"]} == {*kills.ALGORITHMS}
    assert any(row["resumed"] for row in rows)
    assert kills.main(options) == 0  # nothing is done again
    assert files.read_jsonl(tmp_path / "results.jsonl") == rows
