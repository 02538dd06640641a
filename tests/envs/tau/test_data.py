"""Loading τ-bench's data: a checkout equals JSON, and invalid files raise a UserError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.envs.tau.data import load_domain
from agentrl_cli.envs.tau.tools import canonical_text
from tests.builders.tau import services, write_checkout, write_json

__all__ = ["services"]
NOBODY = {"user_id": "nobody", "instruction": "", "actions": [], "outputs": []}


def test_checkout_equals_json_and_never_runs(services: Path, tmp_path: Path):
    checkout = write_checkout(tmp_path)
    for name in ("retail", "airline"):
        one, other = load_domain(name, str(services)), load_domain(name, str(checkout))
        assert canonical_text(dict(one.tables)) == canonical_text(dict(other.tables))
        assert (one.tasks, one.policy, one.schemas) == (other.tasks, other.policy, other.schemas)


def test_missing_folder_is_refused(tmp_path: Path):
    with pytest.raises(UserError) as error:
        load_domain("retail", str(tmp_path))
    assert error.value.code == "missing-data" and str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    "file, value, offender",
    [
        ("orders", "{", ""), ("orders", [5], ""), ("users", {"a": 5}, "(a:"),
        ("products", {"a": {}}, "a.name"), ("products", {"a": {"name": 5}}, "a.name"),
        ("tools", 5, ""), ("tools", [5], "0"), ("tasks_dev", [5], "0"), ("tasks_dev", "{}5", ""),
        ("tasks_dev", [{"user_id": 1}], "user_id"),
        ("tasks_train", [NOBODY], "nobody"),
        ("tasks_train", [NOBODY | {"outputs": [5]}], "outputs.0"),
        ("tasks_train", [NOBODY | {"actions": [{"name": "think", "kwargs": 5}]}], "kwargs"),
    ],
)  # fmt: skip
def test_invalid_files_are_refused(tmp_path: Path, file: str, value: Any, offender: str):
    broken = write_json(tmp_path) / "retail" / f"{file}.json"
    broken.write_text(value if isinstance(value, str) else json.dumps(value))
    with pytest.raises(UserError) as error:
        load_domain("retail", str(tmp_path))
    assert error.value.code == "invalid-data"
    assert broken.name in str(error.value) and offender in str(error.value)
