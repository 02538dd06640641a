"""Exactness: observations, databases and rewards equal those recorded from the official code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrl_cli.envs.tau.data import SPLITS
from agentrl_cli.envs.tau.env import ground_truth, won_by_doing_nothing
from agentrl_cli.envs.tau.tools import Database
from agentrl_cli.envs.tau.users import parse_instruction
from bench.tau import OFFICIAL, golden, last_write, reward, run
from tests.builders.tau import DATA, domain, needs_data, tau_env

pytestmark = needs_data


def cases(split: str) -> list[dict[str, Any]]:
    return json.loads((DATA / "golden" / f"retail_{split}.json").read_text())


@pytest.mark.parametrize("name", OFFICIAL)
def test_loaded_databases_have_the_official_hash(name: str):
    assert Database(domain(name, DATA).tables).digest().startswith(OFFICIAL[name])


@pytest.mark.parametrize(
    "split, count", [("dev", 20), ("train", 30), pytest.param("train", 120, marks=pytest.mark.slow)]
)
def test_golden_cases_are_reproduced(split: str, count: int):
    found = list(golden(domain("retail", DATA), split, cases(split)[:count]))
    assert len(found) > count
    assert [case for case in found if not all(case.values())] == []


def test_doing_nothing_wins_exactly_the_known_tasks():
    counts = {"retail": [5, 1, 7], "airline": [0, 0, 19]}
    for name, known in counts.items():
        service = domain(name, DATA)
        idle = [[won_by_doing_nothing(service, t) for t in service.tasks[s]] for s in SPLITS]
        assert list(map(sum, idle)) == known


@pytest.mark.parametrize("name, count", [("retail", 635), ("airline", 50)])
def test_ground_truth_wins_only_with_its_last_write(name: str, count: int):
    service, writes = domain(name, DATA), 0
    tasks = [task for split in SPLITS for task in service.tasks[split]]
    assert len(tasks) == count
    for task in tasks:
        actions = [a for a in task["actions"] if a["name"] != service.terminal_tool]
        assert reward(service, task, run(service, actions)[0], task["outputs"]) == 1.0
        last = last_write(service, task)
        if last is not None:
            fewer = run(service, actions[:last] + actions[last + 1 :])[0]
            assert reward(service, task, fewer, task["outputs"]) == 0.0
            writes += 1
        assert (last is not None) == bool(ground_truth(service, task).touched())
    assert writes > count / 2


def test_every_train_instruction_parses_into_its_actions():
    for task in domain("retail", DATA).tasks["train"]:
        requests = parse_instruction(task["instruction"]).requests
        orders = [action["kwargs"]["order_id"] for action in task["actions"]]
        assert [wish.order for wish in requests] == orders


def test_expert_wins_and_user_leaks_nothing():
    env, won, confirmed = tau_env("retail", DATA), 0, 0
    tasks = env.tasks("train")[::5]
    for task in tasks:
        heard = [env.reset(task, 0)[0].content]
        steps = [env.step(action) for action in env.expert(task) or ()]
        won += steps[-1].reward == 1.0
        confirmed += not any(step.info["unconfirmed"] for step in steps)
        heard += [m.content for step in steps for m in step.messages if m.role == "user"]
        user = env.domain_data.tables["users"][task.data["user_id"]]
        secrets = {x for a in task.data["actions"] for x in a["kwargs"].get("item_ids", [])}
        secrets |= {*user["payment_methods"], *user["orders"]}
        secrets |= {user["email"], user["address"]["zip"]}
        leaked = set(" ".join(heard).replace(".", " ").split()) & secrets
        assert all(word in task.data["instruction"] for word in leaked)
    assert min(won, confirmed) >= 0.99 * len(tasks)
