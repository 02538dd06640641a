"""Evaluation of the policy on splits of tasks, with intervals over tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrl_cli.core.statistics import Interval, interval_over_tasks, mean
from agentrl_cli.core.types import Episode, Task, derive_seed, evenly_spaced
from agentrl_cli.envs.base import episodes_by_task
from agentrl_cli.rollout.play import FAILED_LIMIT, EpisodeStart

if TYPE_CHECKING:
    from agentrl_cli.generators.tree_search import TreeSearch
    from agentrl_cli.training.build import Parts

ANNOTATED_EPISODES = 8  # episodes of an evaluation that the algorithm annotates


def evaluate(
    parts: Parts, keep: Callable[[list[Episode]], object] | None = None
) -> dict[str, float]:
    """Play every split and return metrics `eval/SPLIT_…`.

    Episodes of the first split are given to `keep`. With `eval.greedy` each task is also played
    once at temperature 0. Seeds depend on neither the step nor the weights, so every evaluation
    plays the same episodes.
    """
    metrics: dict[str, float] = {}
    first_split: list[Episode] = []
    for split in parts.eval.splits:
        sampled = play_split(parts, split, parts.eval.episodes_per_task, parts.eval.temperature)
        found = episode_metrics(sampled) | parts.make_env().summarise(sampled)
        metrics |= {f"eval/{split}_{k}": v for k, v in found.items()}
        if parts.eval.greedy:
            greedy = play_split(parts, split, 1, 0.0)
            metrics[f"eval/{split}_greedy_success"] = episode_metrics(greedy)["success"]
        if split == parts.eval.splits[0]:
            first_split = sampled
            metrics |= parts.algo.monitor(sampled)
    parts.algo.annotate(evenly_spaced(first_split, ANNOTATED_EPISODES))
    if keep is not None:
        keep(first_split)
    return metrics


def play_split(parts: Parts, split: str, per_task: int, temperature: float) -> list[Episode]:
    """Play `per_task` episodes of each task of the split, of at most `eval.tasks` tasks. Raises
    RunAborted if more than a fifth of them fail."""
    starts = split_starts(parts, split, per_task)
    sampling = replace(parts.collector.sampling, temperature=temperature)
    parts.generator.clear()
    act = parts.eval.act
    generator = parts.generator if act == "policy" else parts.algo.generator(act)
    return parts.collector.play(starts, sampling, generator, FAILED_LIMIT)


def split_starts(parts: Parts, split: str, per_task: int) -> list[EpisodeStart]:
    """Return the starts of the episodes of a split, ordered by task."""
    tasks = parts.make_env().tasks(split)[: parts.eval.tasks]
    return [start for task in tasks for start in task_starts(parts.collector.seed, task, per_task)]


def count_episodes(parts: Parts) -> int:
    """Return the number of episodes that `evaluate` plays, without those of the algorithm."""
    each = parts.eval.episodes_per_task + parts.eval.greedy
    tasks = [len(parts.make_env().tasks(split)[: parts.eval.tasks]) for split in parts.eval.splits]
    return each * sum(tasks)


def task_starts(seed: int, task: Task, per_task: int) -> list[EpisodeStart]:
    """Return the starts of `per_task` episodes of a task, as one group."""
    return [
        EpisodeStart(task, task.id, derive_seed(seed, "eval", task.id, i), f"{task.id}-e{i:02d}")
        for i in range(per_task)
    ]


def episode_metrics(episodes: list[Episode]) -> dict[str, float]:
    """Return success with its interval, means of reward and turns, the share of failed episodes
    (which count as lost), and the share of turns for each boolean in `info`, such as `invalid`."""
    by_task = episodes_by_task(episodes)
    success = interval_over_tasks([[float(e.success) for e in group] for group in by_task])
    turns = [turn for episode in episodes for turn in episode.turns]
    flags = sorted({k for turn in turns for k, v in turn.info.items() if isinstance(v, bool)})
    shares = {flag: mean([float(bool(t.info.get(flag))) for t in turns]) for flag in flags}
    counted = {
        **success.metrics("success"),
        "reward": mean([e.reward for e in episodes]),
        "turns": mean([float(len(e.turns)) for e in episodes]),
        "turns_to_success": mean([float(len(e.turns)) for e in episodes if e.success]),
        "episodes": float(len(episodes)),
        "failed": mean([float(bool(e.error)) for e in episodes]),
    }
    return counted | {flag: share for flag, share in shares.items() if flag not in counted}


def success_gain(ours: list[Episode], theirs: list[Episode]) -> Interval:
    """Return the difference in success of paired episodes, with an interval over tasks."""
    by_task: dict[str, list[float]] = {}
    for one, other in zip(ours, theirs, strict=True):
        gain = float(one.success) - float(other.success)
        by_task.setdefault(one.task.id, []).append(gain)
    return interval_over_tasks(list(by_task.values()), least=-1.0)


def compare_search(parts: Parts, tree: TreeSearch) -> dict[str, Any]:
    """Play the first split by sampling, by the search, and by best-of-n on whole answers.

    n is chosen so that best-of-n samples about as many tokens as the search. Returns
    `search/METHOD_…` with tokens and judgements per episode, and `search/gain…`, the success of the
    search minus that of best-of-n. Raises UserError if the run has no critic of partial answers.
    """
    sampling = replace(parts.collector.sampling, temperature=parts.eval.temperature)
    split, token_texts = parts.eval.splits[0], parts.chat.vocabulary()
    starts = split_starts(parts, split, parts.eval.episodes_per_task)

    def measure(search: TreeSearch) -> tuple[list[Episode], dict[str, float]]:
        parts.generator.clear()
        search.bind(parts.generator, parts.algo.state_values, token_texts)
        episodes = parts.collector.play(starts, sampling, search, FAILED_LIMIT)
        success = {k: v for k, v in episode_metrics(episodes).items() if k.startswith("success")}
        totals = {"tokens": search.sampled_tokens, "judged": search.judged_answers}
        return episodes, success | {name: total / len(episodes) for name, total in totals.items()}

    _, plain = measure(replace(tree, expand=1, rounds=1))
    by_tree, searched = measure(tree)
    n = max(2, round(searched["tokens"] / plain["tokens"]))
    by_draws, best_of_n = measure(replace(tree, expand=n, rounds=1))
    gain = success_gain(by_tree, by_draws)
    methods = {"sampling": plain, "tree": searched, f"best_of_{n}": best_of_n}
    rows: dict[str, Any] = {"search": tree.order, "split": split, "episodes": len(starts)}
    rows |= gain.metrics("search/gain")
    for name, metrics in methods.items():
        metrics["extra_tokens"] = metrics["tokens"] - plain["tokens"]
        rows |= {f"search/{name}_{key}": value for key, value in metrics.items()}
    return rows
