"""Prompts with a reward function of TRL's form: tasks, scores, and mistakes of the user."""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.config.compose import build, compose_checked
from agentrl_cli.core.errors import ContractError, UserError
from agentrl_cli.core.types import Episode, Message, Turn
from agentrl_cli.envs import Env, check_env
from tests.builders.errors import user_error

CHAT = [{"role": "user", "content": "Say a word."}, {"role": "assistant", "content": "Ant."},
        {"role": "user", "content": "Another."}]  # fmt: skip


def contains(prompts: list[Any], completions: list[Any], word: list[str], **_: Any) -> list[float]:
    """As in the documentation of TRL, for text and for messages."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [float(w in text) for text, w in zip(texts, word, strict=True)]


def broken(prompts: list[Any], completions: list[Any], **_: Any) -> Any:
    return {"none": None, "two": [1.0, 0.0], "text": ["1"], "number": 1.0}[prompts[0]]


def world(folder: Path, rows: list[Any], reward: str = "contains", *more: str) -> Env:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = [f"env.data={file}", f"env.reward={__name__}:{reward}"]
    return build(compose_checked(["env=prompts", *settings, *more]).env)


def test_rows_are_tasks_and_the_function_scores(tmp_path: Path):
    env = world(tmp_path, [{"prompt": f"Say {n}.", "word": str(n)} for n in range(40)])
    assert check_env(partial(copy.copy, env)) == []
    splits = [env.tasks(split) for split in ("train", "val", "test")]
    assert sum(map(len, splits)) == 40 and all(splits)
    task = splits[0][0]
    for action, reward in ((f"It is {task.data['word']}.", 1.0), ("No.", 0.0)):
        assert env.reset(task, 0) == [Message("user", task.data["prompt"])]
        step = env.step(action)
        assert (step.reward, step.done, step.info) == (reward, True, {"success": bool(reward)})
        with pytest.raises(RuntimeError):
            env.step(action)


def short(prompts: list[Any], completions: list[str], **_: Any) -> list[float]:
    return [float(len(text) < 8) for text in completions]


def test_rewards_of_several_functions_are_added(tmp_path: Path):
    names = [f"{__name__}:contains", f"{__name__}:short"]
    more = [f"env.reward=[{','.join(names)}]", "env.reward_weights=[1,0.5]"]
    rows = [{"prompt": f"Say {n}.", "word": "ant"} for n in range(40)]
    env = world(tmp_path, rows, "x", *more)
    assert check_env(partial(copy.copy, env)) == []
    (task, *_) = [t for split in ("train", "val", "test") for t in env.tasks(split)]
    played = []
    for action, rewards in (("An ant.", [1.0, 1.0]), ("A very long ant.", [1.0, 0.0])):
        env.reset(task, 0)
        step = env.step(action)
        assert step.reward == rewards[0] + rewards[1] / 2
        assert step.info == {"success": True, "rewards": dict(zip(names, rewards, strict=True))}
        played.append(Episode("e", task, "g", 0, [Turn([], action, [], [], [], info=step.info)]))
    means = {"tests_envs_test_prompts_contains": 1.0, "tests_envs_test_prompts_short": 0.5}
    assert env.summarise(played) == {f"reward_{name}": mean for name, mean in means.items()}
    with user_error("invalid-value", "env.reward_weights"):
        world(tmp_path, [], "contains", more[1]).tasks("train")


def test_messages_are_a_prompt_too(tmp_path: Path):
    env = world(tmp_path, [{"prompt": CHAT, "word": "bee", "id": n} for n in ("a", None, None)])
    (task, *_) = [t for split in ("train", "val", "test") for t in env.tasks(split)]
    assert [m.role for m in env.reset(task, 0)] == ["user", "assistant", "user"]
    assert env.step("A bee.").reward == 1.0


@pytest.mark.parametrize("row", [
    7, {}, {"prompt": ""}, {"prompt": 3}, {"prompt": ["a"]}, {"prompt": CHAT[:2]},
    {"prompt": "Hi.", "completions": "a"}, {"prompt": [{"role": "system", "content": "x"}]},
    {"prompt": [{"role": "user"}]},
], ids=str)  # fmt: skip
def test_row_without_a_prompt_is_refused(tmp_path: Path, row: Any):
    with pytest.raises(UserError, match=r"line 2 of '.*' cannot be used \(") as error:
        world(tmp_path, [{"prompt": "Hi.", "word": "a"}, row]).tasks("train")
    assert error.value.code == "bad-row"


@pytest.mark.parametrize("kind", ["none", "two", "text", "number"])
def test_other_results_than_one_number_break_the_contract(tmp_path: Path, kind: str):
    env = world(tmp_path, [{"prompt": kind, "id": n} for n in range(2)], "broken")
    (task, *_) = [t for split in ("train", "val", "test") for t in env.tasks(split)]
    env.reset(task, 0)
    with pytest.raises(ContractError, match="return a list of one number for each"):
        env.step("x")


def test_function_and_data_must_exist(tmp_path: Path):
    with pytest.raises(UserError, match=r"'tests\.envs\.test_prompts:nothing' cannot be imported"):
        world(tmp_path, [{"prompt": "Hi."}], "nothing").tasks("train")
    with pytest.raises(UserError, match=r"'tests\.envs\.test_prompts:CHAT' is no function"):
        world(tmp_path, [{"prompt": "Hi."}], "CHAT").tasks("train")
    with pytest.raises(UserError, match=r"give env\.data=FILE"):
        build(compose_checked(["env=prompts"]).env).tasks("train")
