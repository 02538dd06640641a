"""Play a split with the policy and say how well it did, with intervals clustered by task."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrl_cli.core.statistics import clustered
from agentrl_cli.core.types import Episode, Task, derive_seed, evenly_spaced
from agentrl_cli.rollout.play import EpisodeStart

if TYPE_CHECKING:
    from agentrl_cli.generators.tree_search import TreeSearch
    from agentrl_cli.runs.run import Run
    from agentrl_cli.training.assemble import Parts

ANNOTATED_EPISODES = 8  # episodes of an evaluation that the algorithm comments on


def evaluate(parts: Parts, run: Run | None, step: int) -> dict[str, float]:
    """Play every split sampled and greedy; write the episodes; return metrics `eval/SPLIT_…`.

    Seeds do not depend on the step or the weights, so every evaluation plays the same episodes.
    """
    metrics: dict[str, float] = {}
    kept: list[Episode] = []
    for split in parts.eval.splits:
        sampled = play_split(parts, split, parts.eval.episodes_per_task, parts.eval.temperature)
        measured = episode_metrics(sampled) | parts.make_env().summarise(sampled)
        metrics |= {f"eval/{split}_{k}": v for k, v in measured.items()}
        if parts.eval.greedy:
            greedy = play_split(parts, split, 1, 0.0)
            metrics[f"eval/{split}_greedy_success"] = episode_metrics(greedy)["success"]
        if split == parts.eval.splits[0]:
            kept = sampled
            metrics |= parts.algo.monitor(sampled)
    parts.algo.annotate(evenly_spaced(kept, ANNOTATED_EPISODES))
    if run is not None:
        run.write_episodes("eval", step, kept)
    return metrics


def play_split(parts: Parts, split: str, per_task: int, temperature: float) -> list[Episode]:
    """`per_task` episodes of each task of the split (of the first `eval.tasks` tasks)."""
    starts = split_starts(parts, split, per_task)
    sampling = replace(parts.collector.sampling, temperature=temperature)
    parts.generator.clear()
    by = [parts.algo.refined_generator()] if parts.eval.act == "refined" else []
    return parts.play(starts, sampling, *by)


def split_starts(parts: Parts, split: str, per_task: int) -> list[EpisodeStart]:
    """How these episodes begin."""
    tasks = parts.make_env().tasks(split)[: parts.eval.tasks]
    return [start for task in tasks for start in task_starts(parts.seed, task, per_task)]


def task_starts(seed: int, task: Task, per_task: int) -> list[EpisodeStart]:
    return [
        EpisodeStart(task, task.id, derive_seed(seed, "eval", task.id, i), f"{task.id}-e{i:02d}")
        for i in range(per_task)
    ]


def episode_metrics(episodes: list[Episode]) -> dict[str, float]:
    """Success with its interval, mean reward and turns, turns of the successes, and the share of
    turns for which the environment set a public true flag (`invalid`, `repeated`, …)."""
    by_task: dict[str, list[float]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task.id, []).append(float(episode.success))
    success = clustered(list(by_task.values()))
    turns = [turn for episode in episodes for turn in episode.turns]
    flags = sorted({k for turn in turns for k, v in turn.info.items() if isinstance(v, bool)})
    shares = {flag: _mean([float(bool(t.info.get(flag))) for t in turns]) for flag in flags}
    shares.pop("success", None)
    return {
        "success": success.mean,
        "success_low": success.low,
        "success_high": success.high,
        "reward": _mean([e.reward for e in episodes]),
        "turns": _mean([float(len(e.turns)) for e in episodes]),
        "turns_to_success": _mean([float(len(e.turns)) for e in episodes if e.success]),
        "episodes": float(len(episodes)),
        **shares,
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def compare_search(parts: Parts, tree: TreeSearch) -> dict[str, Any]:
    """The first split played by plain sampling, by the search, and by best-of-n on whole answers
    with an n that samples about as many tokens: `search/WAY_…`, tokens and judgements an episode.

    Raises UserError where the run has no critic that values partial answers.
    """
    sampling = replace(parts.collector.sampling, temperature=parts.eval.temperature)
    split, texts = parts.eval.splits[0], parts.chat.vocabulary()
    starts = split_starts(parts, split, parts.eval.episodes_per_task)

    def played(search: TreeSearch) -> dict[str, float]:
        parts.generator.clear()
        search.bind(parts.generator, parts.algo.state_values, texts)
        episodes = parts.play(starts, sampling, search)
        found = {k: v for k, v in episode_metrics(episodes).items() if k.startswith("success")}
        each = {"tokens": search.sampled, "judged": search.judged}
        return found | {name: count / len(episodes) for name, count in each.items()}

    best, plain = played(tree), played(replace(tree, expand=1, rounds=1))
    n = max(2, round(best["tokens"] / plain["tokens"]))
    ways = {"sampling": plain, "tree": best}
    ways[f"best_of_{n}"] = played(replace(tree, expand=n, rounds=1))
    for found in ways.values():
        found["extra_tokens"] = found["tokens"] - plain["tokens"]
    rows = {f"search/{way}_{k}": v for way, found in ways.items() for k, v in found.items()}
    return {"search": tree.order, "split": split, "episodes": len(starts), **rows}
