"""The split `val` of every environment: disjoint from the others, which do not depend on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.core.types import Task
from agentrl_cli.envs.base import Env

SIZES = {  # the key of the size of `val`, and its number of tasks
    "arithmetic": ("val_problems", 100),
    "tau_mini": (None, 30),
    "wiki": ("val_questions", 40),
}


def world(name: str, **values: Any) -> Env:
    given = [f"env.{key}={json.dumps(value)}" for key, value in values.items()]
    return build(check(compose([f"env={name}", *given])).env)


def content(tasks: list[Task]) -> set[str]:
    return {json.dumps(task.data, sort_keys=True) for task in tasks}


@pytest.mark.parametrize("name", ["twentyq", "arithmetic", "tau_mini", "wiki"])
def test_val_shares_no_task_with_train_or_test(name: str):
    env = world(name)
    train, val, test = (env.tasks(split) for split in ("train", "val", "test"))
    assert val and {task.split for task in val} == {"val"}
    assert not content(val) & (content(train) | content(test))
    assert len({task.id for task in train + val + test}) == len(train + val + test)


@pytest.mark.parametrize("name", SIZES)
def test_size_of_val_leaves_others_unchanged(name: str):
    key, count = SIZES[name]
    whole, without = world(name), world(name, **({key: 0} if key else {}))
    assert len(whole.tasks("val")) == count
    assert len(without.tasks("val")) == (0 if key else count)
    for split in ("train", "test"):
        assert whole.tasks(split) == without.tasks(split)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["twentyq", "arithmetic", "tau_mini", "wiki"])
def test_expert_wins_in_val(name: str):
    for task in world(name).tasks("val")[:10]:
        env = world(name)
        env.reset(task, 0)
        step = None
        for action in env.expert(task) or ():
            step = env.step(action)
        assert step is not None and step.done and step.info["success"], task.id


def test_val_objects_are_taken_from_train():
    whole, without = world("twentyq"), world("twentyq", val_objects=0)
    assert [len(whole.tasks(split)) for split in ("train", "val", "test")] == [44, 12, 40]
    assert whole.tasks("test") == without.tasks("test") and not without.tasks("val")
    trained = [task.data for task in without.tasks("train")]
    assert all(task.data in trained for task in whole.tasks("train") + whole.tasks("val"))


@pytest.mark.parametrize(("kept", "val"), [(40, 12), (88, 2), (92, 1), (93, 0)])
def test_val_has_at_most_a_quarter(kept: int, val: int):
    assert len(world("twentyq", test_objects=kept).tasks("val")) == val


def test_val_of_tau_mini_is_another_shop():
    env = world("tau_mini")
    shop = env.tasks("train")[0]
    env.reset(env.tasks("val")[0], 0)
    other = env.digest()
    env.reset(shop, 0)
    assert env.digest() != other


@pytest.mark.extras
@pytest.mark.parametrize("name", ["val", "validation", "dev"])
def test_val_split_of_a_data_set_is_used(tmp_path: Path, name: str):
    pytest.importorskip("datasets", reason="folders are read through datasets")
    for split, count in (("train", 8), (name, 3), ("test", 2)):
        rows = [{"problem": f"{split} {i}", "answer": str(i)} for i in range(count)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    env = world("math", data=str(tmp_path))
    assert [len(env.tasks(split)) for split in ("train", "val", "test")] == [8, 3, 2]
    other = world("math", data=str(tmp_path), test_data=str(tmp_path / "test.jsonl"))
    assert [len(other.tasks(split)) for split in ("train", "val", "test")] == [8, 3, 2]


def test_val_share_leaves_test_unchanged(tmp_path: Path):
    rows = [{"problem": f"p {i}", "answer": str(i)} for i in range(200)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    env, without = world("math", data=str(file), val_share=0.25), world("math", data=str(file))
    train, val, test = (env.tasks(split) for split in ("train", "val", "test"))
    assert test == without.tasks("test") and without.tasks("val") == []
    assert 20 < len(val) < 60 and len(train) + len(val) == len(without.tasks("train"))
    assert not content(val) & content(train)
