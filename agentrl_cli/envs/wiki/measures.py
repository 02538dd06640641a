"""What an evaluation of the wiki adds: how often answers are right and proved, and of which kinds
of question."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from agentrl_cli.core.statistics import cluster_bootstrap
from agentrl_cli.core.types import Episode
from agentrl_cli.envs.base import episodes_by_task


def summarise(episodes: list[Episode]) -> dict[str, float]:
    """Metrics of played episodes; {} without any. An episode without an end counts as wrong."""
    if not episodes:
        return {}
    ends = [_end(episode) for episode in episodes]
    found = {
        "answered": sum(bool(end.get("right")) for end in ends) / len(ends),
        "proved": sum(bool(end.get("proved")) for end in ends) / len(ends),
        "evidence_f1": sum(float(end.get("f1", 0.0)) for end in ends) / len(ends),
    }
    kinds: dict[str, list[list[float]]] = defaultdict(list)
    for group in episodes_by_task(episodes):
        kinds[group[0].task.data["kind"]].append([float(episode.success) for episode in group])
    for kind in sorted(kinds):
        interval = cluster_bootstrap(kinds[kind])
        found[f"kind_{kind}"] = interval.mean
        found[f"kind_{kind}_low"], found[f"kind_{kind}_high"] = interval.low, interval.high
    return found


def _end(episode: Episode) -> dict[str, Any]:
    return episode.turns[-1].info.get("privileged", {}) if episode.turns else {}
