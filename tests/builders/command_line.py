"""The command line and its errors, for tests."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner, Result

from agentrl_cli.cli.main import app
from tests.builders.runs import folders, settings


def agentrl(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def refused(result: Result, *values: str) -> None:
    """Exit 2 with one sentence for each of these values, which it names, and a remedy."""
    lines = result.stderr.strip().splitlines()
    assert result.exit_code == 2 and result.stdout == "", result.output
    assert len(lines) == len(values), lines
    for value in values:
        assert any(value in line for line in lines), (value, lines)
    assert all(re.search(r"[;:] | must be |\?", line) for line in lines), lines
    assert "Traceback" not in result.stderr


def train(root: Path, *overrides: str, algo: str = "grpo") -> Result:
    groups = ["--config-dir", str(folders(root))]
    return agentrl("train", *settings(root / "runs", algo, "it", *overrides), *groups)
