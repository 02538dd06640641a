"""Whatever foreign text says, it is read or refused; `make fuzz` tries more of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_cli.core import files
from tests.paths import ROOT

CASES = 500


@pytest.mark.slow
@pytest.mark.extras
@pytest.mark.timeout(3000)
def test_foreign_text_is_read_or_refused_in_time(tmp_path: Path):
    pytest.importorskip("openai", reason="needs the extra 'openai'")
    script, record = ROOT / "stress" / "fuzz.py", tmp_path / "record.json"
    files.write_json(record, {"kills": 5})
    options = ["--cases", str(CASES), "--folder", str(tmp_path / "fuzz"), "--record", str(record)]
    done = subprocess.run([sys.executable, str(script), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = files.read_json(record)
    assert (found["fuzz_cases"], found["fuzz_unexpected"], found["kills"]) == (CASES, 0, 5)
    assert 0 < found["fuzz_slowest_seconds"] < 10
    assert list(found) == ["fuzz_cases", "fuzz_slowest_seconds", "fuzz_unexpected", "kills"]
