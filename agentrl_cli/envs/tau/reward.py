"""τ-bench's reward: the database as the ground-truth actions leave it, and all outputs said."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from agentrl_cli.envs.tau.calls import call_tool
from agentrl_cli.envs.tau.data import Domain
from agentrl_cli.envs.tau.database import Database


def reward_checks(
    domain: Domain, task: dict[str, Any], database: Database, agent_messages: list[str]
) -> dict[str, bool]:
    """Whether the `database` is right, and whether the `agent_messages` hold every output; the
    reward is 1 where both hold, else 0."""
    return {
        "database": database.touched() == ground_truth(domain, task).touched(),
        "outputs": all(mentioned(output, agent_messages) for output in task["outputs"]),
    }


def mentioned(output: str, agent_messages: list[str]) -> bool:
    """Whether a message contains the output, letter case aside and without the reply's commas."""
    return any(output.lower() in text.lower().replace(",", "") for text in agent_messages)


def ground_truth(domain: Domain, task: dict[str, Any]) -> Database:
    """The database after the ground-truth actions; the same object for the same actions."""
    return _replayed(domain, json.dumps(task["actions"]))


def won_by_doing_nothing(domain: Domain, task: dict[str, Any]) -> bool:
    """Whether the task is won by doing nothing."""
    return not task["outputs"] and not ground_truth(domain, task).touched()


@lru_cache(maxsize=4096)
def _replayed(domain: Domain, actions: str) -> Database:
    database = Database(domain.tables)
    for action in json.loads(actions):
        if action["name"] != domain.terminal_tool:
            call_tool(domain.tools, domain.name, database, action["name"], action["kwargs"])
    return database
