"""The same GRPO run with TRL and with agentrl, on problems of one turn with SmolLM2.

Run as `python bench/trl_learning.py MODEL --peers FOLDER`, where MODEL is a folder that `agentrl
export` wrote from a run of `recipe=arithmetic_smollm2 algo=sft`, and FOLDER holds TRL's
environment. Both sides train new adapters with the same tasks, prompts, grader, sampling and
hyperparameters, one optimizer step per update. Writes the mean reward of each update to
docs/results/trl_learning.json; a run that is stored is not repeated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from omegaconf import DictConfig

from agentrl_cli.config.compose import build, compose_checked
from agentrl_cli.core.types import Message
from bench.peers.environments import SIDES, PeerError, environment, one_thread

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs" / "results" / "trl_learning.json"
SEEDS, UPDATES, LAST = (0, 1, 2), 24, 6
FIXED = (
    "recipe=arithmetic_smollm2", "algo=grpo", "init=null", "env.turn_mode=single",
    "algo.group_size=8", "algo.advantage_std=sample", "algo.skip_zero_advantages=false",
    "algo.minibatch_tokens=0", "eval.baseline=false", "eval.splits=[val]", "eval.tasks=1",
    "hardware.threads=1", f"steps={UPDATES}",
)  # fmt: skip


def ours(model: str, lr: float, seed: int) -> list[float]:
    """Return the mean reward of each update of agentrl."""
    with tempfile.TemporaryDirectory() as folder:
        own = [f"model.path={model}", f"algo.optimizer.lr={lr}", f"seed={seed}"]
        command = [*FIXED, *own, f"runs={folder}", "name=run"]
        subprocess.run(
            [sys.executable, "-m", "agentrl_cli.cli", "train", *command],
            cwd=ROOT, env=one_thread(), check=True, capture_output=True,
        )  # fmt: skip
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    return [row["reward/mean"] for row in map(json.loads, lines) if "reward/mean" in row]


def theirs(model: str, lr: float, seed: int, peers: Path) -> list[float]:
    """Return the mean reward of each update of TRL."""
    cfg = compose_checked([*FIXED, f"model.path={model}"])
    env = build(cfg.env)
    tasks = env.tasks("train")
    system = Message("system", env.system())
    prompts = [[system, *env.reset(task, 0)] for task in tasks]
    given = settings(cfg, model, lr, seed) | {
        "prompts": [[{"role": m.role, "content": m.content} for m in row] for row in prompts]
    }
    rewards: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "given.json"
        file.write_text(json.dumps(given))
        log, pipe = (peers / "trl_learning.log").open("w"), subprocess.PIPE
        process = subprocess.Popen(
            [str(environment("trl", peers)), str(SIDES / "trl_learning_side.py"), str(file)],
            stdin=pipe, stdout=pipe, stderr=log, text=True, env=one_thread(),
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        for row in map(json.loads, process.stdout):
            found = []
            for number, reply in zip(row["tasks"], row["replies"], strict=True):
                env.reset(tasks[number], 0)
                found.append(env.step(reply).reward)
            rewards.append(fmean(found))
            print(json.dumps(found), file=process.stdin, flush=True)
        if process.wait():
            raise PeerError(f"TRL ended with an error; see {log.name}")
    return rewards


def settings(cfg: DictConfig, model: str, lr: float, seed: int) -> dict[str, Any]:
    """Return the hyperparameters of agentrl's run for TRL."""
    return {
        "model": model, "dtype": "bfloat16", "seed": seed, "lr": lr, "updates": cfg.steps,
        "episodes": cfg.rollout.episodes_per_step, "group": cfg.algo.group_size,
        "new_tokens": cfg.rollout.max_new_tokens,
        "lora": {"rank": cfg.model.lora.rank, "alpha": cfg.model.lora.alpha},
    }  # fmt: skip


def main() -> None:
    """Train what is not stored, store it, and print the mean of the last updates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--peers", type=Path, default=ROOT / "runs" / "peers")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    asked = parser.parse_args()
    model = str(Path(asked.model).resolve())
    sides = {
        "agentrl": lambda seed: ours(model, asked.lr, seed),
        "trl": lambda seed: theirs(model, asked.lr, seed, asked.peers.resolve()),
    }
    for seed in asked.seeds:
        for side, train in sides.items():
            rows = json.loads(RESULT.read_text()) if RESULT.exists() else []
            if not any((row["side"], row["seed"]) == (side, seed) for row in rows):
                rewards = [round(reward, 4) for reward in train(seed)]
                rows.append({"side": side, "seed": seed, "lr": asked.lr, "reward": rewards})
                RESULT.write_text(json.dumps(rows, indent=1) + "\n")
                print(side, seed, rewards, flush=True)
    rows = json.loads(RESULT.read_text())
    for side in sides:
        ends = [fmean(row["reward"][-LAST:]) for row in rows if row["side"] == side]
        spread = f", deviation of seeds {stdev(ends):.3f}" if len(ends) > 1 else ""
        print(f"{side}: mean reward of the last {LAST} updates {fmean(ends):.3f}{spread}")


if __name__ == "__main__":
    main()
