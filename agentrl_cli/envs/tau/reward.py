"""τ-bench's reward, and the metrics that an evaluation adds: pass^k, blame, the idle baseline."""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache
from typing import Any

from agentrl_cli.core.errors import SimulatorError
from agentrl_cli.core.statistics import cluster_bootstrap, pass_hat_k
from agentrl_cli.core.types import Episode
from agentrl_cli.envs.base import episodes_by_task
from agentrl_cli.envs.tau.data import Domain
from agentrl_cli.envs.tau.database import Database
from agentrl_cli.envs.tau.tools import call_tool

MAX_K = 4  # of pass^k


def reward_checks(
    domain: Domain, task: dict[str, Any], database: Database, agent_messages: list[str]
) -> dict[str, bool]:
    """Return whether the `database` is as the ground-truth actions leave it, and whether the
    `agent_messages` contain every required output. The reward is 1 if both hold, else 0."""
    said = [text.lower().replace(",", "") for text in agent_messages]
    return {
        "database": database.touched() == ground_truth(domain, task).touched(),
        "outputs": all(any(out.lower() in text for text in said) for out in task["outputs"]),
    }


def ground_truth(domain: Domain, task: dict[str, Any]) -> Database:
    """Return the database after the ground-truth actions; cached by the actions."""
    return _replay(domain, json.dumps(task["actions"]))


@lru_cache(maxsize=4096)
def _replay(domain: Domain, actions: str) -> Database:
    database = Database(domain.tables)
    for action in json.loads(actions):
        if action["name"] != domain.terminal_tool:
            call_tool(domain, database, action["name"], action["kwargs"])
    return database


def won_by_doing_nothing(domain: Domain, task: dict[str, Any]) -> bool:
    """Return whether the task is won without any action."""
    return not task["outputs"] and not ground_truth(domain, task).touched()


def summarise(domain: Domain, episodes: list[Episode]) -> dict[str, float]:
    """Return metrics of played episodes: pass^k with an interval clustered by task for every k up
    to the fewest episodes of a task, the do-nothing baseline, blame, and the number of calls."""
    if not episodes:
        return {}
    tasks = episodes_by_task(episodes)
    found: dict[str, float] = {}
    for k in range(1, min(MAX_K, *map(len, tasks)) + 1):
        scores = [[pass_hat_k([episode.success for episode in group], k)] for group in tasks]
        interval = cluster_bootstrap(scores)
        found[f"pass_hat_{k}"] = interval.mean
        found[f"pass_hat_{k}_low"], found[f"pass_hat_{k}_high"] = interval.low, interval.high
    idle_wins = sum(won_by_doing_nothing(domain, group[0].task.data) for group in tasks)
    found["do_nothing"] = idle_wins / len(tasks)
    blamed = Counter(map(_blame, episodes))
    for who in ("agent", "user", "environment"):
        found[f"failed_by_{who}"] = blamed[who] / len(episodes)
    tools = [turn.info.get("tool") for episode in episodes for turn in episode.turns]
    calls = sum(tool not in (None, "", "respond") for tool in tools)
    return found | {"tool_calls": calls / len(episodes)}


def _blame(episode: Episode) -> str:
    """Return the cause of a failure: agent, user or environment; "" for a success."""
    if episode.success:
        return ""
    if episode.stop == "error":
        return "user" if episode.error_kind == SimulatorError.kind else "environment"
    return "user" if any(turn.info.get("fault") for turn in episode.turns) else "agent"
