"""The command line and its refusals, for tests."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner, Result

from agentrl_cli.cli.main import app
from tests.builders.runs import folders, settings


def agentrl(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def refused(result: Result, *sentences: str) -> None:
    """Exit 2, and exactly these sentences on stderr, each by how it begins."""
    lines = result.stderr.strip().splitlines()
    assert result.exit_code == 2, result.output
    assert len(lines) == len(sentences), lines
    for line, sentence in zip(sorted(lines), sorted(sentences), strict=True):
        assert line.startswith(sentence), line
        assert re.search(r"[;:] | must be ", line), f"no remedy: {line}"
    assert "Traceback" not in result.stderr and result.stdout == ""


def train(root: Path, *overrides: str, algo: str = "grpo") -> Result:
    groups = ["--config-dir", str(folders(root))]
    return agentrl("train", *settings(root / "runs", algo, "it", *overrides), *groups)
