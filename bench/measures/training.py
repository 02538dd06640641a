"""The cost of training: NLAC's default run against GRPO's, and many turns against few."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agentrl_cli.config.compose import check, compose
from agentrl_cli.training.build import build_parts
from agentrl_cli.training.loop import update
from bench.measures.workload import Ours, Sizes, Updates, write_model

SMALL = ["rollout.episodes_per_step=8", "model.weights=null"]


def default_updates(algo: str, *, small: bool = False) -> Callable[[], float]:
    """Return a function that runs the next update of a default run of Twenty Questions and
    returns its CPU seconds per episode, including play."""
    settings = [f"algo={algo}", "env=twentyq", "hardware.threads=1"]
    few_turns = ["algo.turns_per_update=8"] if small and algo == "nlac" else []
    parts = build_parts(check(compose([*settings, *(SMALL if small else []), *few_turns])), None)

    def seconds() -> float:
        began = time.process_time()
        metrics, _ = update(parts)
        return (time.process_time() - began) / metrics["episodes/count"]

    return seconds


def cut_into_turns(folder: Path, turns: int, tokens: int, base: Sizes) -> Callable[[], float]:
    """Return a function that plays and trains a group of episodes and returns the CPU seconds.
    Each episode has `tokens` tokens in `turns` turns, half of them sampled. The model is that
    of `base`."""
    each = tokens // turns // 2
    sizes = replace(base, episodes=base.group, prompt=each, seen=each, new=each)
    write_model(folder, sizes)
    ours = Ours(folder, sizes)
    updates = Updates(folder, ours.play(turns), 1)

    def seconds() -> float:
        began = time.process_time()
        played = ours.play(turns)
        rollout = time.process_time() - began
        made = sum(episode.tokens for episode in played) / len(played)
        assert 0 <= tokens - made < 0.01 * tokens, made  # a sampled closing token is not read again
        return rollout + updates.update()["seconds"]

    return seconds
