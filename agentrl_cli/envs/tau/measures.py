"""What an evaluation of τ-bench adds: pass^k, whose fault a failure was, and the idle baseline."""

from __future__ import annotations

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
    calls = [sum(_is_call(turn.info) for turn in episode.turns) for episode in episodes]
    return {
        **_pass_hat_metrics(played),
        "do_nothing": idle_wins / len(tasks),
        **{f"failed_by_{who}": _share_blamed(episodes, who) for who in BLAMED},
        "tool_calls": sum(calls) / len(episodes),
    }


def blame(episode: Episode) -> str:
    """Whose fault it was that an episode failed: agent, user or environment; "" for a success."""
    if episode.success:
        return ""
    if episode.stop == "error":
        return "environment"
    return "user" if any(turn.info.get("fault") for turn in episode.turns) else "agent"


def _pass_hat_metrics(played: list[list[bool]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for k in range(1, min(LARGEST_K, *map(len, played)) + 1):
        interval = cluster_bootstrap([[pass_hat_k(successes, k)] for successes in played])
        found |= {
            f"pass_hat_{k}": interval.mean,
            f"pass_hat_{k}_low": interval.low,
            f"pass_hat_{k}_high": interval.high,
        }
    return found


def _share_blamed(episodes: list[Episode], who: str) -> float:
    return sum(blame(episode) == who for episode in episodes) / len(episodes)


def _is_call(info: dict[str, object]) -> bool:
    return info.get("tool") not in (None, "", "respond")
