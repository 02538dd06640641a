"""Count the episodes that GRPO and Self-AC need if an early turn decides and later turns distract:
writes docs/results/delayed_credit.json.

Run as `python bench/delayed_credit.py`. Both train the same random model of two layers in the walk
of tests/fork.py, with `EPISODES` per update and one token per action, until the mean success of two
updates reaches `THRESHOLD`. Each algorithm has the same number of `TRIALS`, on a separate seed. The
trial that needs the fewest episodes is repeated on `SEEDS`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.algos.base import Algorithm
from agentrl_cli.algos.grpo import GRPO
from agentrl_cli.algos.self_ac import SelfAC
from agentrl_cli.algos.settings import SelfACAdvanced
from agentrl_cli.core.types import Episode, derive_seed
from agentrl_cli.generators.hf import HFGenerator
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.play import EpisodeStart, play
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from tests.builders.critics import Weights, bound, learner
from tests.builders.models import write_model
from tests.builders.nlac import CHAT, SAMPLING
from tests.builders.self_ac import settings
from tests.fakes.fork import ForkEnv

RESULT = Path(__file__).parents[1] / "docs" / "results" / "delayed_credit.json"
EPISODES, UPDATES, THRESHOLD = 32, 40, 0.9
MOST = EPISODES * UPDATES
WORLD = ForkEnv(turns=8, coin=2.0)
TUNED_ON, SEEDS = 100, (0, 1, 2)
TRIALS: dict[str, list[dict[str, Any]]] = {
    "grpo": [
        {"lr": 1e-2, "group_size": 32, "epochs": 1},
        {"lr": 2e-2, "group_size": 32, "epochs": 1},
        {"lr": 5e-3, "group_size": 32, "epochs": 1},
        {"lr": 1e-2, "group_size": 32, "epochs": 2},
    ],
    "self_ac": [
        {"lr": 1e-2, "gae_lambda": 0.5, "td_steps": 8, "epochs": 1, "alpha": 0.5},
        {"lr": 1e-2, "gae_lambda": 0.9, "td_steps": 8, "epochs": 1, "alpha": 0.5},
        {"lr": 1e-2, "gae_lambda": 0.5, "td_steps": 8, "epochs": 1, "alpha": 0.03},
        {"lr": 1e-2, "gae_lambda": 0.9, "td_steps": 8, "epochs": 1, "alpha": 0.03},
    ],
}


def built(name: str, lr: float, **numbers: Any) -> Algorithm:
    """Return the algorithm with these settings."""
    optimizer = OptimizerSpec(lr=lr)
    if name == "self_ac":
        advanced = SelfACAdvanced(
            normalise_advantages=True, values="recomputed", critic_grad="full"
        )
        return SelfAC(**settings(optimizer=optimizer, advanced=advanced, **numbers))
    usual = {"normalise_advantages": True, "clip_eps": 0.2, "kl_coef": 0.0, "minibatch_tokens": 0}
    return GRPO(optimizer=optimizer, **usual, **numbers)


def learning(algo: Algorithm, folder: Path, seed: int) -> Iterator[float]:
    """Yield the success of the episodes of each update."""
    models = bound(algo, folder)
    generator = HFGenerator(Weights(models), max_batch=EPISODES, cache_tokens=20_000)
    sampling = replace(SAMPLING, max_tokens=1)
    trainer, buffer = learner(algo, models, generator), ReplayBuffer(None, 1)
    for step in range(UPDATES):
        algo.context.step = step
        starts = [start(seed, step, i, algo.group_size) for i in range(EPISODES)]
        played: list[Episode] = play(
            starts, lambda: replace(WORLD), CHAT, generator, sampling, max_seq_len=400
        )
        trainer.run(algo.update(played, buffer), step)
        yield sum(episode.success for episode in played) / EPISODES


def start(seed: int, step: int, i: int, group_size: int) -> EpisodeStart:
    """Return episode i of an update. All have the same task, and neighbours form groups."""
    task = WORLD.tasks("train")[0]
    return EpisodeStart(task, f"{i // group_size}", derive_seed(seed, step, i), f"{step}-{i}")


def measured(name: str, numbers: dict[str, Any], folder: Path, seed: int) -> dict[str, Any]:
    """Train until the threshold; `episodes` is null if it was not reached."""
    began, shares = time.process_time(), []
    for share in learning(built(name, **numbers), folder, seed):
        shares.append(share)
        if len(shares) > 1 and sum(shares[-2:]) / 2 >= THRESHOLD:
            break
    reached = sum(shares[-2:]) / 2 >= THRESHOLD
    row: dict[str, Any] = {"algo": name, "seed": seed, "numbers": numbers}
    row["episodes"] = EPISODES * len(shares) if reached else None
    row["cpu_seconds"] = round(time.process_time() - began, 1)
    print(json.dumps(row), flush=True)
    return row | {"success": shares}


def best(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the settings of the trial with the fewest episodes, or with the most successes if
    none reached the threshold."""
    found = min(trials, key=lambda row: (row["episodes"] or math.inf, -sum(row["success"])))
    return found["numbers"]


def main() -> None:
    """Tune, measure with each seed, and write the records."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, Any]]] = {"trials": [], "runs": []}
    with tempfile.TemporaryDirectory() as place:
        folder = write_model(Path(place))
        for name, trials in TRIALS.items():
            tried = [measured(name, numbers, folder, TUNED_ON) for numbers in trials]
            found["trials"] += tried
            found["runs"] += [measured(name, best(tried), folder, seed) for seed in SEEDS]
    world = {"turns": WORLD.turns, "coin": WORLD.coin, "threshold": THRESHOLD, "most": MOST}
    RESULT.write_text(json.dumps(world | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
