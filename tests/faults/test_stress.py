"""The scripts in stress/ at small sizes; `make kills`, `make fuzz` and `make soak` run more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_cli.core import files
from stress import kills, soak
from tests.paths import ROOT


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


@pytest.mark.slow
@pytest.mark.extras
@pytest.mark.timeout(3000)
def test_foreign_text_is_read_or_refused_in_time(tmp_path: Path):
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    script, record = ROOT / "stress" / "fuzz.py", tmp_path / "record.json"
    options = ["--cases", "500", "--folder", str(tmp_path / "fuzz"), "--record", str(record)]
    done = subprocess.run([sys.executable, str(script), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = files.read_json(record)
    assert (found["fuzz_cases"], found["fuzz_unexpected"]) == (500, 0)
    assert 0 < found["fuzz_slowest_seconds"] < 10


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_short_soak_leaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(soak, "ALGORITHMS", ("grpo", "self_ac"))
    small = ["steps=1", "eval.tasks=1", "eval.baseline=false", "rollout.episodes_per_step=4"]
    assert soak.main(["--hours", "0.005", "--result", str(tmp_path / "it.json"), *small]) == 0
    assert files.read_json(tmp_path / "it.json")["soak_growth"] < 0.2
