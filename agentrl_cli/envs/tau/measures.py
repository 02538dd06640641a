"""What an evaluation of τ-bench adds: pass^k, whose fault a failure was, and the idle baseline."""

from __future__ import annotations

from collections import Counter

from agentrl_cli.core.errors import SimulatorError
from agentrl_cli.core.statistics import cluster_bootstrap, pass_hat_k
from agentrl_cli.core.types import Episode
from agentrl_cli.envs.base import episodes_by_task
from agentrl_cli.envs.tau.data import Domain
from agentrl_cli.envs.tau.reward import won_by_doing_nothing

LARGEST_K = 4
BLAMED = ("agent", "user", "environment")


def summarise(domain: Domain, episodes: list[Episode]) -> dict[str, float]:
    """Metrics of played episodes; pass^k with intervals clustered by task, for every k that each
    task was played at least."""
    if not episodes:
        return {}
    tasks = episodes_by_task(episodes)
    played = [[episode.success for episode in group] for group in tasks]
    idle_wins = sum(won_by_doing_nothing(domain, group[0].task.data) for group in tasks)
    tools = [turn.info.get("tool") for episode in episodes for turn in episode.turns]
    blamed = Counter(map(blame, episodes))
    return {
        **_pass_hat_metrics(played),
        "do_nothing": idle_wins / len(tasks),
        **{f"failed_by_{who}": blamed[who] / len(episodes) for who in BLAMED},
        "tool_calls": sum(tool not in (None, "", "respond") for tool in tools) / len(episodes),
    }


def blame(episode: Episode) -> str:
    """Whose fault it was that an episode failed: agent, user or environment; "" for a success."""
    if episode.success:
        return ""
    if episode.stop == "error":
        return "user" if episode.error_kind == SimulatorError.kind else "environment"
    return "user" if any(turn.info.get("fault") for turn in episode.turns) else "agent"


def _pass_hat_metrics(played: list[list[bool]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for k in range(1, min(LARGEST_K, *map(len, played)) + 1):
        interval = cluster_bootstrap([[pass_hat_k(successes, k)] for successes in played])
        found[f"pass_hat_{k}"] = interval.mean
        found[f"pass_hat_{k}_low"], found[f"pass_hat_{k}_high"] = interval.low, interval.high
    return found
