"""The courier: rules, variants, and the model of the environment that it states."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Task
from agentrl_cli.envs.check import check_env
from agentrl_cli.envs.courier import Courier

PLAIN = Courier(max_turns=4, loss=1.0, second_road=False, tempting=False, weather=False)
VARIANTS = [
    PLAIN,
    replace(PLAIN, loss=0.5),
    replace(PLAIN, second_road=True, max_turns=5),
    replace(PLAIN, tempting=True),
    replace(PLAIN, weather=True),
]


def delivered(env: Courier, task: Task, actions: list[str], seed: int = 0) -> bool:
    env.reset(task, seed)
    steps = [env.step(action) for action in actions]
    assert [step.done for step in steps] == [False] * (len(actions) - 1) + [True]
    assert steps[-1].reward == float(steps[-1].info["success"])
    return steps[-1].info["success"]


@pytest.mark.parametrize("env", VARIANTS)
def test_variants_fulfil_the_contract(env: Courier):
    assert list(check_env(lambda: copy.copy(env))) == []


@pytest.mark.parametrize("env", VARIANTS)
def test_expert_never_loses_the_letter(env: Courier):
    for task in env.tasks("train"):
        for seed in range(5):
            first = env.reset(task, seed)
            expert, step = env.expert(task), None
            for _ in range(env.max_turns):
                step = env.step(next(expert))
            assert step is not None and step.info["success"] and first[0].role == "user"


def test_one_closed_road_loses_the_letter_silently():
    task = PLAIN.tasks("test")[0]
    assert task.data["closed"] == "hill"
    assert delivered(PLAIN, task, ["lake.", "mill.", "lake.", "mill"])
    assert not delivered(PLAIN, task, ["lake.", "hill.", "lake.", "mill."])
    assert not delivered(PLAIN, task, ["lake.", "the moon", "lake.", "mill."])
    seen = []
    for road in ("hill.", "lake."):
        PLAIN.reset(task, 0)
        seen.append(PLAIN.step(road).messages)
    assert seen[0] == seen[1]


def test_second_road_is_closed_from_the_third_turn_on():
    env = replace(PLAIN, second_road=True)
    task = next(
        t for t in env.tasks("train") if t.data["closed"] == "hill" and t.data["then"] == "lake"
    )
    assert "Later no lake." in env.reset(task, 0)[0].content
    assert delivered(env, task, ["lake.", "lake.", "hill.", "hill."])
    assert not delivered(env, task, ["lake.", "lake.", "hill.", "lake."])


def test_loss_is_a_probability():
    env = replace(PLAIN, loss=0.5)
    task = env.tasks("train")[0]
    won = [delivered(env, task, ["hill.", "lake.", "lake.", "lake."], seed) for seed in range(400)]
    assert 0.43 < sum(won) / 400 < 0.57
    ((_, state),) = env.starts(task)
    for road in ("hill.", "hill."):
        ((_, state),) = env.transitions(state, road)
    assert state.safe == 0.25


def test_unknown_split_is_refused():
    with pytest.raises(UserError) as refused:
        PLAIN.tasks("none")
    assert refused.value.code == "unknown-split"
