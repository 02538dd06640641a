"""What an evaluation on MATH says beside success: levels, subjects, pass@k, majority, length, and
what the grader could not grade."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from agentrl_cli.core.statistics import cluster_bootstrap, mean, pass_at_k
from agentrl_cli.core.types import Episode
from agentrl_cli.envs.base import episodes_by_task

Tasks = list[list[Episode]]


def summarise(episodes: list[Episode]) -> dict[str, float]:
    """Metrics of a split's sampled episodes, several of each task; {} without any."""
    if not episodes:
        return {}
    tasks = episodes_by_task(episodes)
    return accuracy_by_part(tasks) | pass_and_majority(tasks) | reply_metrics(episodes)


def accuracy_by_part(tasks: Tasks) -> dict[str, float]:
    """Accuracy of each level and subject, with its 95 % interval by task."""
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
    """pass@k for every power of two up to the episodes of a task, and majority@n for all of them
    (Wang et al. 2023, arXiv 2203.11171): whether the commonest answer is right."""
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
    """Whether the commonest answer is right; of equally common ones the first; no box, no vote."""
    boxed = [e for e in group if e.turns and e.turns[-1].info.get("answer")]
    votes = [(str(e.turns[-1].info["answer"]), e) for e in boxed]
    if not votes:
        return False
    winner = Counter(answer for answer, _ in votes).most_common(1)[0][0]
    return next(episode.success for answer, episode in votes if answer == winner)


def reply_metrics(episodes: list[Episode]) -> dict[str, float]:
    """Mean length, and of all graded replies the shares without a box, that took the grader too
    long, and that broke it."""
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
