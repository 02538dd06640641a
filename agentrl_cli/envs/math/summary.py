"""What an evaluation on MATH says beside success: levels, subjects, pass@k, majority, length, and
what the grader could not grade."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from agentrl_cli.core.statistics import clustered, pass_at_k
from agentrl_cli.core.types import Episode

Tasks = list[list[Episode]]


def summarise(episodes: list[Episode]) -> dict[str, float]:
    """Metrics of a split's sampled episodes, several of each task; {} without any."""
    tasks = grouped(episodes)
    return parted(tasks) | repeated(tasks) | replies(episodes) if tasks else {}


def grouped(episodes: list[Episode]) -> Tasks:
    """The episodes of each task."""
    by_task: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_task[episode.task.id].append(episode)
    return list(by_task.values())


def parted(tasks: Tasks) -> dict[str, float]:
    """Accuracy of each level and subject, with its 95 % interval by task."""
    parts: dict[str, list[list[float]]] = defaultdict(list)
    for row in tasks:
        data, right = row[0].task.data, [float(episode.success) for episode in row]
        parts[f"level_{data['level']}"].append(right)
        parts[f"subject_{_word(str(data['subject']))}"].append(right)
    found: dict[str, float] = {}
    for name in sorted(parts):
        interval = clustered(parts[name])
        bounds = {f"{name}_low": interval.low, f"{name}_high": interval.high}
        found |= {name: interval.mean} | bounds
    return found


def repeated(tasks: Tasks) -> dict[str, float]:
    """pass@k for every power of two up to the episodes of a task, and majority@n for all of them
    (Wang et al. 2023, arXiv 2203.11171): whether the commonest answer is right."""
    n = min(map(len, tasks))
    found: dict[str, float] = {}
    k = 2
    while k <= n:
        found[f"pass_at_{k}"] = _mean(
            pass_at_k(sum(episode.success for episode in row), len(row), k) for row in tasks
        )
        k *= 2
    if n > 1:
        found[f"majority_at_{n}"] = _mean(float(majority(row[:n])) for row in tasks)
    return found


def majority(row: list[Episode]) -> bool:
    """Whether the commonest answer is right; of equally common ones the first; no box, no vote."""
    votes = [(str(e.turns[-1].info["answer"]), e) for e in row if _answered(e)]
    if not votes:
        return False
    winner = Counter(answer for answer, _ in votes).most_common(1)[0][0]
    return next(episode.success for answer, episode in votes if answer == winner)


def replies(episodes: list[Episode]) -> dict[str, float]:
    """Mean length, and of all graded replies the shares without a box, that took the grader too
    long, and that broke it."""
    reasons = [str(t.info["grade"]) for e in episodes for t in e.turns if "grade" in t.info]
    tokens = [float(sum(len(turn.action_ids) for turn in e.turns)) for e in episodes]
    return {
        "response_tokens": _mean(tokens),
        "replies_unboxed": _mean(float(reason == "unboxed") for reason in reasons),
        "replies_timed_out": _mean(float(reason == "timeout") for reason in reasons),
        "replies_crashed": _mean(float(reason == "crash") for reason in reasons),
    }


def _answered(episode: Episode) -> bool:
    return bool(episode.turns) and bool(episode.turns[-1].info.get("answer"))


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "none"


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0
