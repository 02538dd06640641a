"""The command line and its errors, for tests."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from agentrl_cli.cli.main import app
from tests.builders.runs import folders, settings


def agentrl(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def refused(result: Result, *expected: str) -> None:
    """Exit 2, and one line on stderr for each expectation: fragments with ` ... ` between them."""
    lines = result.stderr.strip().splitlines()
    assert result.exit_code == 2, result.output
    assert len(lines) == len(expected), lines
    for fragments in expected:
        parts = fragments.split(" ... ")
        assert any(all(part in line for part in parts) for line in lines), (fragments, lines)
    assert "Traceback" not in result.stderr and result.stdout == ""


def train(root: Path, *overrides: str, algo: str = "grpo") -> Result:
    groups = ["--config-dir", str(folders(root))]
    return agentrl("train", *settings(root / "runs", algo, "it", *overrides), *groups)
