"""Exact to τ-bench: what the official code answered, stored, wrote and rewarded comes out again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrl_cli.envs.check import check_env
from agentrl_cli.envs.tau.data import SPLITS, Domain
from agentrl_cli.envs.tau.database import Database
from agentrl_cli.envs.tau.instruction import parse_instruction
from agentrl_cli.envs.tau.reward import ground_truth, won_by_doing_nothing
from bench.tau import OFFICIAL, golden, golden_figures, last_write, reward, run
from tests.builders.tau import DATA, domain, needs_data, tau_env

pytestmark = needs_data


def cases(split: str) -> list[dict[str, Any]]:
    return json.loads((DATA / "golden" / f"retail_{split}.json").read_text())


@pytest.mark.parametrize("name", OFFICIAL)
def test_loaded_databases_have_the_official_hash(name: str):
    digest = Database(domain(name, DATA).tables).digest()
    assert digest.startswith(OFFICIAL[name])


@pytest.mark.parametrize("split, count", [("dev", 20), ("train", 30)])
def test_golden_cases_come_out_the_same(split: str, count: int):
    found = list(golden(domain("retail", DATA), split, cases(split)[:count]))
    assert len(found) > count
    assert [case for case in found if not all(case.values())] == []


def test_figures_count_hashes_for_ground_truths_alone():
    found = golden_figures(list(golden(domain("retail", DATA), "dev", cases("dev"))))
    assert found["cases"] == found["observations_recorded"] == found["observations_equal"] == 60
    assert found["database_recorded"] == found["database_equal"] == 20
    assert found["executed_recorded"] == found["verdict_equal"] == 40


@pytest.mark.slow  # hashes the whole database for each of 240 cases
def test_all_golden_cases_of_train_come_out_the_same():
    found = list(golden(domain("retail", DATA), "train", cases("train")))
    assert len(found) == 240 and all(all(case.values()) for case in found)


def test_golden_checks_notice_a_wrong_observation():
    wrong = json.loads(json.dumps(cases("dev")[:1]))
    wrong[0]["gt_obs_sha"][0] = "0" * 16
    assert next(golden(domain("retail", DATA), "dev", wrong))["observations"] is False


def tasks(service: Domain) -> list[dict[str, Any]]:
    return [task for split in SPLITS for task in service.tasks[split]]


def test_doing_nothing_wins_exactly_the_known_tasks():
    retail, airline = domain("retail", DATA), domain("airline", DATA)
    counts = [
        sum(won_by_doing_nothing(retail, task) for task in retail.tasks[split]) for split in SPLITS
    ]
    assert counts == [5, 1, 7]
    assert sum(won_by_doing_nothing(airline, task) for task in airline.tasks["test"]) == 19


@pytest.mark.parametrize("name, count", [("retail", 635), ("airline", 50)])
def test_ground_truth_wins_every_task_and_loses_it_without_its_last_write(name: str, count: int):
    service, writes = domain(name, DATA), 0
    assert len(tasks(service)) == count
    for task in tasks(service):
        actions = [a for a in task["actions"] if a["name"] != service.terminal_tool]
        assert reward(service, task, run(service, actions)[0], task["outputs"]) == 1.0
        last = last_write(service, task)
        if last is not None:
            fewer = run(service, actions[:last] + actions[last + 1 :])[0]
            assert reward(service, task, fewer, task["outputs"]) == 0.0
            writes += 1
        assert (last is not None) == bool(ground_truth(service, task).touched())
    assert writes > count / 2


def test_every_train_instruction_is_read_with_one_request_for_each_action():
    for task in domain("retail", DATA).tasks["train"]:
        asked = parse_instruction(task["instruction"])
        assert [wish.order for wish in asked.requests] == [
            action["kwargs"]["order_id"] for action in task["actions"]
        ]


def test_the_expert_wins_nearly_all_train_tasks_with_the_scripted_user():
    env, won, asked = tau_env("retail", DATA), 0, 0
    every = env.tasks("train")
    for task in every[::5]:
        env.reset(task, 0)
        steps = [env.step(action) for action in env.expert(task) or ()]
        won += steps[-1].reward == 1.0
        asked += not any(step.info["unconfirmed"] for step in steps)
    assert won >= 0.99 * len(every[::5]) and asked >= 0.99 * len(every[::5])


def test_retail_keeps_the_contract_with_its_scripted_user():
    assert check_env(lambda: tau_env("retail", DATA, holdout=100, actions="react")) == []


def test_the_scripted_user_reveals_nothing_that_its_instruction_does_not_hold():
    env = tau_env("retail", DATA)
    for task in env.tasks("train")[::25]:
        heard = [env.reset(task, 0)[0].content]
        for action in env.expert(task) or ():
            step = env.step(action)
            heard += [m.content for m in step.messages if m.role == "user"]
        told = set(" ".join(heard).replace(".", " ").split()) & secrets(env.domain_data, task.data)
        assert {word for word in told if word not in task.data["instruction"]} == set()


def secrets(service: Domain, task: dict[str, Any]) -> set[str]:
    """Ids and contact data that an instruction may or may not hold."""
    user = service.tables["users"][task["user_id"]]
    ids = {x for a in task["actions"] for x in a["kwargs"].get("item_ids", [])}
    return ids | {*user["payment_methods"], *user["orders"], user["email"], user["address"]["zip"]}
