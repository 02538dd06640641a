"""Rows of MATH from files, folders and data sets: forms, splits, and what cannot be read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from agentrl_cli.config.compose import build, check, compose, load
from agentrl_cli.core.errors import UserError
from agentrl_cli.envs.math import rows
from agentrl_cli.envs.math.env import MathEnv


def row(i: int, **more: Any) -> dict[str, Any]:
    """A row of our own in MATH's form."""
    solution = f"We add.\n\nThe sum is $\\boxed{{{i + 1}}}$."
    return {"problem": f"What is {i}+1?", "level": f"Level {i % 5 + 1}", "type": "Algebra",
            "solution": solution} | more  # fmt: skip


def written(file: Path, lines: list[Any]) -> str:
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("\n".join(text) + "\n")
    return str(file)


def read(data: str, test_data: str | None = None, share: float = 0.2) -> dict[str, Any]:
    rows.read_splits.cache_clear()
    return rows.read_splits(data, test_data, share, 0)


def compose_env(*overrides: str) -> MathEnv:
    return build(check(compose([*overrides])).env)


def env(data: str, *overrides: str) -> MathEnv:
    return compose_env("env=math", f"env.data={data}", *(f"env.{one}" for one in overrides))


def test_a_row_is_read_in_either_form(tmp_path: Path):
    other = {"problem": "p", "level": 3, "subject": "Geometry", "answer": 7, "unique_id": "test/1"}
    file = written(tmp_path / "rows.jsonl", [row(0), "", other])
    found = read(file, share=1.0)["test"]
    assert [one["id"] for one in found] == ["1", "test/1"]
    assert [one["answer"] for one in found] == ["1", "7"]
    assert [one["level"] for one in found] == [1, 3]
    assert [one["subject"] for one in found] == ["Algebra", "Geometry"]


@pytest.mark.parametrize(
    "line",
    [
        "{", "[" * 100_000, "7", {"answer": "7"}, {"problem": " ", "answer": "7"}, {"problem": "p"},
        {"problem": "p", "answer": " "}, {"problem": "p", "solution": "no box"},
        {"problem": "p", "solution": ["x"], "answer": "7"}, row(0, unique_id="1"),
        {"problem": "p", "answer": "7" * 2001},
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_bad_line_is_reported_with_number(tmp_path: Path, line: Any):
    file = written(tmp_path / "rows.jsonl", [row(0, unique_id="1"), "", line, row(2)])
    with pytest.raises(UserError) as error:
        read(file)
    assert error.value.code == "bad-row" and f"line 3 of '{file}'" in str(error.value)


def test_all_bad_lines_are_reported_together(tmp_path: Path):
    file = written(tmp_path / "rows.jsonl", [row(0), "{", *[{"problem": "p"}] * 11])
    with pytest.raises(UserError) as error:
        read(file)
    lines = str(error.value).splitlines()
    assert len(lines) == 11 and "line 2 of" in lines[0] and "(not JSON); fix" in lines[0]
    assert lines[-1] == "and 2 more"


def test_test_share_ignores_the_order(tmp_path: Path):
    lines = [row(i, unique_id=str(i)) for i in range(200)]
    one = read(written(tmp_path / "a.jsonl", lines))
    two = read(written(tmp_path / "b.jsonl", lines[::-1]))
    ids = [{r["id"] for r in found["test"]} for found in (one, two)]
    assert ids[0] == ids[1] and 20 < len(ids[0]) < 60
    assert len(one["train"]) + len(one["test"]) == 200


def test_equal_problems_share_a_split(tmp_path: Path):
    found = read(written(tmp_path / "a.jsonl", [row(i // 2) for i in range(100)]), share=0.5)
    problems = [{r["problem"] for r in found[split]} for split in ("train", "test")]
    assert not problems[0] & problems[1] and all(problems)


def test_filters_and_the_expert_work_on_rows(tmp_path: Path):
    file = written(tmp_path / "rows.jsonl", [row(i) for i in range(20)])
    world = env(file, "levels=[5]", "test_share=1.0", "turn_mode=thoughts")
    tasks = world.tasks("test")
    assert [task.data["level"] for task in tasks] == [5] * 4
    world.reset(tasks[0], 0)
    steps = [world.step(action) for action in world.expert(tasks[0])]
    assert len(steps) == 2 and steps[-1].info["success"]
    assert env(file, "subjects=[Algebra]", "test_share=0.5").tasks("train")


def test_solution_without_box_ends_with_answer():
    found = rows.solution_steps({"solution": "One.\nTwo.", "answer": "7"})
    assert found == ["One.", "Two.", r"\boxed{7}"]
    assert rows.solution_steps({"solution": "", "answer": "7"}) == [r"\boxed{7}"]


def test_missing_extra_offers_arithmetic(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for data in ("owner/name", "rows.parquet"):
        with pytest.raises(UserError) as error:
            read(data)
        assert error.value.code == "missing-extra" and "agentrl-cli[math]" in str(error.value)
    with pytest.raises(UserError) as error:
        compose_env("env=math").tasks("test")
    assert "env=arithmetic" in str(error.value) and "env.data=" in str(error.value)


def test_stored_run_of_old_name_loads(tmp_path: Path):
    """Until 0.2 the built-in problems were env=math, and so were rows from a file."""
    new = compose(["env=arithmetic", "model=tiny", "algo=sft"])
    for data, name in ((None, "arithmetic"), ("rows.jsonl", "math")):
        old = new.copy()
        old.choices.env, old.model.weights, old.env.data = "math", "math", data
        OmegaConf.save(old, tmp_path / "config.yaml", resolve=True)
        cfg = check(load(tmp_path / "config.yaml", []))
        assert cfg.choices.env == name and cfg.model.weights == "math"
        assert isinstance(build(cfg.env), MathEnv)


# with datasets


@pytest.mark.extras
def test_parquet_files_and_folders_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("datasets", reason="Parquet and folders are read through datasets")
    from pyarrow import Table, parquet  # pyright: ignore[reportMissingImports]

    lines = [row(i) for i in range(10)]
    parquet.write_table(Table.from_pylist(lines), tmp_path / "rows.parquet")
    whole = read(str(tmp_path / "rows.parquet"))
    assert whole == read(written(tmp_path / "rows.jsonl", lines))
    folder = tmp_path / "folder"
    folder.mkdir()
    written(folder / "train.jsonl", lines[:7])
    written(folder / "test.jsonl", lines[7:])
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    found = read(str(folder))
    assert {split: len(found[split]) for split in found} == {"train": 7, "val": 0, "test": 3}


@pytest.mark.extras
def test_unreadable_data_is_refused(tmp_path: Path):
    pytest.importorskip("datasets", reason="Parquet and folders are read through datasets")
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 and nothing else")
    (tmp_path / "empty").mkdir()
    for data in (tmp_path / "rows.parquet", tmp_path / "empty", tmp_path / "none.jsonl"):
        with pytest.raises(UserError) as error:
            read(str(data))
        assert error.value.code == "unreadable-data"


def test_train_rows_leave_out_the_test_problems(monkeypatch: pytest.MonkeyPatch):
    lines = list(enumerate((row(i) for i in range(8)), start=1))
    parts = {"train": lines, "test": lines[6:]}
    monkeypatch.setattr(rows, "_numbered_rows", lambda data: parts)
    found = read("owner/name")
    assert [len(found[split]) for split in ("train", "test")] == [6, 2]


def test_rows_of_several_splits_have_different_ids(monkeypatch: pytest.MonkeyPatch):
    lines = list(enumerate((row(i) for i in range(8)), start=1))
    parts = {"algebra": lines[:4], "geometry": [(n - 4, one) for n, one in lines[4:]]}
    monkeypatch.setattr(rows, "_numbered_rows", lambda data: parts)
    found = read("owner/name", share=0.5)
    ids = [one["id"] for one in [*found["train"], *found["test"]]]
    assert len(set(ids)) == 8 and {"algebra-1", "geometry-1"} <= set(ids)
