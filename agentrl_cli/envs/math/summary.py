"""Metrics of an evaluation besides success: by level and subject, pass@k, majority, length, and the
replies that could not be graded."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from agentrl_cli.core.statistics import cluster_bootstrap, mean, pass_at_k
from agentrl_cli.core.types import Episode
from agentrl_cli.envs.base import episodes_by_task

Tasks = list[list[Episode]]


def summarise(episodes: list[Episode]) -> dict[str, float]:
    """Return the metrics of a split's sampled episodes, several per task; {} if there are none."""
    if not episodes:
        return {}
    tasks = episodes_by_task(episodes)
    return accuracy_by_part(tasks) | pass_and_majority(tasks) | reply_metrics(episodes)


def accuracy_by_part(tasks: Tasks) -> dict[str, float]:
    """Return the accuracy of each level and subject, with its 95 % interval over tasks."""
    parts: dict[str, list[list[float]]] = defaultdict(list)
    for group in tasks:
        data, right = group[0].task.data, [float(episode.success) for episode in group]
        parts[f"level_{data['level']}"].append(right)
        parts[f"subject_{_metric_word(str(data['subject']))}"].append(right)
    metrics: dict[str, float] = {}
    for name in sorted(parts):
        interval = cluster_bootstrap(parts[name])
        metrics[name] = interval.mean
        metrics[f"{name}_low"], metrics[f"{name}_high"] = interval.low, interval.high
    return metrics


def pass_and_majority(tasks: Tasks) -> dict[str, float]:
    """Return pass@k for powers of two up to the episodes per task, and majority@n: whether the most
    frequent answer is correct (Wang et al. 2023, arXiv 2203.11171)."""
    n = min(map(len, tasks))
    metrics: dict[str, float] = {}
    k = 2
    while k <= n:
        metrics[f"pass_at_{k}"] = mean(
            pass_at_k(sum(episode.success for episode in group), len(group), k) for group in tasks
        )
        k *= 2
    if n > 1:
        metrics[f"majority_at_{n}"] = mean(majority_is_correct(group[:n]) for group in tasks)
    return metrics


def majority_is_correct(group: list[Episode]) -> bool:
    """Return whether the most frequent answer is correct; the first one decides a tie."""
    boxed = [e for e in group if e.turns and e.turns[-1].info.get("answer")]
    votes = [(str(e.turns[-1].info["answer"]), e) for e in boxed]
    if not votes:
        return False
    winner = Counter(answer for answer, _ in votes).most_common(1)[0][0]
    return next(episode.success for answer, episode in votes if answer == winner)


def reply_metrics(episodes: list[Episode]) -> dict[str, float]:
    """Return the mean length, and the shares of replies without a box, timed out and crashed in the
    grader."""
    reasons = [str(t.info["grade"]) for e in episodes for t in e.turns if "grade" in t.info]
    tokens = [float(sum(len(turn.action_ids) for turn in e.turns)) for e in episodes]
    return {
        "response_tokens": mean(tokens),
        "replies_unboxed": mean(float(reason == "unboxed") for reason in reasons),
        "replies_timed_out": mean(float(reason == "timeout") for reason in reasons),
        "replies_crashed": mean(float(reason == "crash") for reason in reasons),
    }


def _metric_word(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "none"
