"""What τ-bench's data folders may hold: a checkout or JSON, never run; what is broken is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.envs.tau.data import load_domain
from agentrl_cli.envs.tau.database import canonical_text
from tests.builders.tau import services, write_checkout, write_json

__all__ = ["services"]


def test_a_checkout_is_read_like_json_and_never_run(services: Path, tmp_path: Path):
    checkout = write_checkout(tmp_path)
    for name in ("retail", "airline"):
        one, other = load_domain(name, str(services)), load_domain(name, str(checkout))
        assert canonical_text(dict(one.tables)) == canonical_text(dict(other.tables))
        assert (one.tasks, one.policy, one.schemas) == (other.tasks, other.policy, other.schemas)


def test_missing_and_broken_data_is_one_sentence(tmp_path: Path, services: Path):
    with pytest.raises(UserError, match=r"holds no τ-bench data for retail"):
        load_domain("retail", str(tmp_path))
    (tmp_path / "retail").mkdir()
    (tmp_path / "retail" / "orders.json").write_text("{")
    with pytest.raises(UserError, match=r"orders.json' cannot be read"):
        load_domain("retail", str(tmp_path))


@pytest.mark.parametrize("text", ["[5]", '[{"user_id": 1}]', "{}5", '[{"actions": [1]}]'])
def test_broken_tasks_are_one_sentence(tmp_path: Path, text: str):
    folder = write_json(tmp_path)
    (folder / "retail" / "tasks_dev.json").write_text(text)
    with pytest.raises(UserError, match=r"tasks_dev.json' cannot be read"):
        load_domain("retail", str(folder))


NOBODY = {"user_id": "nobody", "instruction": "", "actions": [], "outputs": []}


@pytest.mark.parametrize(
    "file, value, why",
    [
        ("orders", [5], r"the table is '\[5\]' and no mapping"), ("orders", 5, "the table is '5'"),
        ("users", {"a": 5}, "record 'a' is '5' and no mapping"),
        ("products", {"a": {}}, "name of record 'a' is 'None'"),
        ("products", {"a": {"name": 5, "variants": {}}}, "name of record 'a' is '5' and no text"),
        ("tools", 5, "the file is '5' and no list"), ("tools", [5], "a schema is '5'"),
        ("tasks_train", [NOBODY], "user 'nobody' of task 0 is in no table"),
        ("tasks_train", [NOBODY | {"user_id": [5]}], "unhashable"),
        ("tasks_train", [NOBODY | {"instruction": 5}], "the instruction of task 0 is '5'"),
        ("tasks_train", [NOBODY | {"outputs": [5]}], "an output of task 0 is '5' and no text"),
        ("tasks_train", [NOBODY | {"actions": [{"name": "think", "kwargs": 5}]}], "arguments of"),
    ],
)  # fmt: skip
def test_broken_records_are_one_sentence(tmp_path: Path, file: str, value: Any, why: str):
    folder = write_json(tmp_path)
    (folder / "retail" / f"{file}.json").write_text(json.dumps(value))
    with pytest.raises(UserError, match=rf"{file}.json' cannot be read \(.*{why}"):
        load_domain("retail", str(folder))
