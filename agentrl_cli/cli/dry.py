"""`agentrl train --dry`: print what a run needs, then build it and play a few episodes.

The plan needs no model. Episodes are played only if the device of the run is available.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from agentrl_cli.algos.base import Algorithm
from agentrl_cli.cli.check import check_contract
from agentrl_cli.config.compose import build
from agentrl_cli.core.terminal import echo
from agentrl_cli.core.types import Episode
from agentrl_cli.envs.base import Env, train_tasks
from agentrl_cli.rollout.collector import Collector
from agentrl_cli.rollout.demos import EXPERT_PREFIX
from agentrl_cli.rollout.play import EpisodeStart, check_failures
from agentrl_cli.training import memory_plan
from agentrl_cli.training.build import build_parts, pick_device
from agentrl_cli.training.memory_plan import in_gib

if TYPE_CHECKING:
    from omegaconf import DictConfig

Rows = Iterator[tuple[str, object]]
EPISODES = 4  # to play, each of another task
DEMOS = 100  # of the environment's expert to try at most


def dry_run(cfg: DictConfig) -> None:
    """Print the plan and play a few episodes.

    Raises UserError if the run needs too much memory or cannot be built.
    """
    algo: Algorithm = build(cfg.algo)
    env: Env = build(cfg.env)
    tasks = train_tasks(env)[:EPISODES]
    for name, value in plan_rows(cfg, algo):
        _print_row(name, value)
    memory_plan.validate_memory(cfg, algo, memory_plan.plan_memory(cfg, algo))
    _print_row("environment contract", check_contract(env))
    if memory_plan.device_type(cfg) == "cuda" and not torch.cuda.is_available():
        _print_row("one episode", "not played: no CUDA device was found")
        return
    pick_device(cfg.hardware.device)
    parts = build_parts(_with_few_demos(cfg), None)
    starts = [EpisodeStart(task, task.id, cfg.seed, task.id) for task in tasks]
    episodes = parts.play(starts, parts.collector.sampling)
    check_failures(episodes, 0.0)
    first, turns = episodes[0], len(episodes[0].turns)
    _print_row("one episode", f"{turns} turns, {first.tokens} tokens, reward {first.reward:g}")
    _print_row("truncated", truncated(episodes, parts.collector))
    for name, text in parts.algo.check(episodes):
        _print_row(name, text)


def _print_row(name: str, value: object) -> None:
    echo(f"{name:<24} {value}")


def _with_few_demos(cfg: DictConfig) -> DictConfig:
    """Return the configuration with at most DEMOS demonstrations of the environment's expert."""
    source = str(cfg.data.demos)
    count = source.removeprefix(EXPERT_PREFIX)
    if not source.startswith(EXPERT_PREFIX) or not count.isdecimal() or int(count) <= DEMOS:
        return cfg
    _print_row("demonstrations", f"{DEMOS} of {int(count):,} are tried")
    fewer = cfg.copy()
    fewer.data.demos = f"{EXPERT_PREFIX}{DEMOS}"
    return fewer


def truncated(episodes: list[Episode], collector: Collector) -> str:
    """Return how many replies and episodes reached a token limit, and which key to raise."""
    turns = [turn for episode in episodes for turn in episode.turns]
    replies = sum(bool(turn.observation) for turn in turns)  # one may be split into several turns
    cut = sum(turn.finish_reason == "length" for turn in turns)
    ended = sum(episode.stop == "context" for episode in episodes)
    parts = [f"{cut} of {replies} replies", f"{ended} of {len(episodes)} episodes"]
    if cut:
        parts[0] += f" reach rollout.max_new_tokens {collector.max_new_tokens}: raise it"
    if ended:
        parts[1] += f" reach rollout.max_seq_len {collector.max_seq_len}: raise it"
    return "; ".join(parts)


def plan_rows(cfg: DictConfig, algo: Algorithm) -> Rows:
    """Yield what is trained, how much an update samples, and the memory of each phase."""
    plan, collector = memory_plan.plan_memory(cfg, algo), build(cfg.rollout)
    specs = algo.models()
    yield "algorithm", cfg.choices.algo
    yield "models", ", ".join(f"{name} ({spec.kind})" for name, spec in specs.items())
    trained, size = plan.adapter or plan.parameters, plan.parameters + plan.adapter
    learning = sum(spec.kind == "trained" for spec in specs.values())
    times = f", in each of {learning} models" if learning > 1 else ""
    yield "parameters", f"{size:,}, of which trained {trained:,}{times}"
    episodes = collector.count(algo.group_size) if algo.plays else 0
    turns = cfg.rollout.max_seq_len // cfg.rollout.max_new_tokens
    yield "episodes per step", episodes
    yield "episodes in total", episodes * cfg.steps
    if episodes:
        tokens = episodes * cfg.rollout.max_seq_len
        yield "  rollout", f"up to {episodes * turns:,} texts, {tokens:,} tokens per update"
    for role, texts in algo.texts(turns, cfg.rollout.max_new_tokens).items():
        tokens = texts.count * texts.longest
        yield f"  {role}", f"up to {texts.count:,} texts, {tokens:,} tokens per update"
    limit = memory_plan.available_bytes(cfg)
    of = "" if limit is None else f" of {in_gib(limit)}"
    yield "predicted peak memory", f"{in_gib(plan.peak)}{of}, in {plan.largest_phase}"
    for name, number in plan.kept.items():
        if number:
            yield f"  {name}", in_gib(number)
    for phase, parts in plan.phases.items():
        listed = ", ".join(f"{name} {in_gib(n)}" for name, n in parts.items() if n)
        yield f"  in {phase}", f"{in_gib(sum(parts.values()))}: {listed}"
    for saver in memory_plan.memory_savers(cfg, algo)[: memory_plan.NAMED]:
        if saver.saves > 0:
            yield "to save memory", f"{saver} saves {in_gib(saver.saves)}"
