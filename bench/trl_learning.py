"""Learn the same task with agentrl's GRPO and TRL's: writes docs/results/trl_learning.json.

Run as `python bench/trl_learning.py FOLDER --peers PEERS`. FOLDER gets the runs, and PEERS an
environment for TRL if it is missing. Both sides train SmolLM2 from the same SFT, on the same
problems with the same rewards, each on one thread. An update plays eight replies to each of eight
problems and takes one optimizer step. A side and a seed that are stored already are skipped.

The gap is TRL's mean reward over the last quarter of the updates minus ours, with the 95 % interval
of Welch's t-test over seeds. It goes to docs/results/parity.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from omegaconf import OmegaConf
from scipy.stats import ttest_ind

from agentrl_cli.api import load_policy
from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.envs.math.answers import boxed, is_unevaluated
from agentrl_cli.envs.math.grader import grade
from agentrl_cli.models.load import cpu_has_bfloat16
from bench.peers.environments import SIDES, environment, one_thread
from bench.results import train

ROOT = Path(__file__).parents[1]
RESULT, PARITY = (ROOT / "docs" / "results" / f"{name}.json" for name in ("trl_learning", "parity"))
DTYPE = "bfloat16" if cpu_has_bfloat16() else "float32"  # of the weights, as model.dtype=auto
UPDATES, PROBLEMS, GROUP, RATE = 24, 8, 8, 1e-4
SEEDS = (0, 1, 2)
RECIPE = ("recipe=arithmetic_smollm2", "env.turn_mode=single", "hardware.threads=1")
SFT = ("algo=sft", "seed=0")
GRPO = (
    "algo=grpo", "init=null", f"algo.group_size={GROUP}", f"algo.optimizer.lr={RATE}",
    "algo.minibatch_tokens=1000000", "algo.advantage_std=sample",
    "algo.skip_zero_advantages=false", f"rollout.episodes_per_step={PROBLEMS * GROUP}",
    f"steps={UPDATES}", "eval.baseline=false", "eval.splits=[val]", "eval.tasks=1",
)  # fmt: skip
Side = dict[str, Any]


class Work(NamedTuple):
    """A run of agentrl."""

    name: str
    options: tuple[str, ...]

    @property
    def start(self) -> None:
        """The run that it starts from; None: the initial model."""

    def settings(self) -> list[str]:
        """Return the overrides of the run."""
        return [*RECIPE, *self.options]


def initial_model(folder: Path) -> Path:
    """Return the folder of the model from which both sides start: SmolLM2 after SFT, without
    adapters."""
    model = folder / "model"
    if not model.exists():
        policy, tokenizer = load_policy(str(train(Work("start", SFT), folder)))
        policy.save_pretrained(model)
        tokenizer.save_pretrained(model)
    return model


def grpo(model: Path) -> list[str]:
    """Return the settings of our side."""
    return [*GRPO, f"model.path={model}", f"model.dtype={DTYPE}"]


def ours(folder: Path, model: Path, seed: int) -> Side:
    """Return the mean reward of each update of agentrl."""
    run = train(Work(f"grpo_s{seed}", (*grpo(model), f"seed={seed}")), folder)
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {"rewards": [round(row["reward/mean"], 4) for row in rows if "time/train" in row]}


def theirs(folder: Path, model: Path, seed: int, python: Path) -> Side:
    """Return the mean reward of each update of TRL. Raises SystemExit if our grader judges one of
    its replies otherwise."""
    config = check(compose([*RECIPE, *grpo(model)]))
    env = build(config.env)
    rows = [
        {"problem": task.data["problem"], "answer": task.data["answer"]}
        for task in env.tasks("train")
    ]
    work, answer = folder / f"trl_s{seed}.json", folder / f"trl_s{seed}_result.json"
    settings = json.dumps({
        "model": str(model), "dtype": DTYPE, "system": env.system(), "rows": rows, "seed": seed,
        "lr": RATE, "updates": UPDATES, "group": GROUP, "episodes": PROBLEMS * GROUP,
        "new_tokens": config.rollout.max_new_tokens,
        "lora": OmegaConf.to_container(config.model.lora),
        "output": str(answer),
    })  # fmt: skip
    if work.exists() and work.read_text() != settings:
        shutil.rmtree(work.with_suffix(""), ignore_errors=True)  # checkpoints of another run
    work.write_text(settings)
    command = [str(python), str(SIDES / "trl_learning_side.py"), str(work)]
    subprocess.run(command, check=True, env=one_thread())
    found = json.loads(answer.read_text())
    differing = [
        row for row in found["replies"] if row["reward"] != reward(row["text"], row["answer"])
    ]
    if differing:
        raise SystemExit(f"{len(differing)} rewards differ from ours: {differing[:3]}")
    return {
        "rewards": [round(value, 4) for value in found["rewards"]],
        "versions": found["versions"],
    }


def reward(text: str, answer: str) -> float:
    """Return the reward of a reply in our environment."""
    box = boxed(text)
    is_right = box is not None and grade(box, answer).correct and not is_unevaluated(box, answer)
    return float(is_right)


def gap(sides: dict[str, dict[str, Side]]) -> dict[str, float]:
    """Return the gap and its interval."""
    last = -(-UPDATES // 4)
    trl, own = (
        [fmean(run["rewards"][-last:]) for run in sides[name].values()]
        for name in ("trl", "agentrl")
    )
    low, high = ttest_ind(trl, own, equal_var=False).confidence_interval()
    ends = {"": fmean(trl) - fmean(own), "_low": low, "_high": high}
    return {f"grpo_learning_gap{end}": round(float(value), 4) for end, value in ends.items()}


def main() -> None:
    """Train what is not stored yet, then store the gap."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument(
        "--sides", nargs="+", choices=("agentrl", "trl"), default=("agentrl", "trl")
    )
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    model = initial_model(folder)
    for seed in SEEDS:
        for side in asked.sides:
            stored = (
                json.loads(RESULT.read_text()) if RESULT.exists() else {"agentrl": {}, "trl": {}}
            )
            if str(seed) in stored[side]:
                continue
            if side == "agentrl":
                found = ours(folder, model, seed)
            else:
                found = theirs(folder, model, seed, environment("trl", asked.peers.resolve()))
            stored = json.loads(RESULT.read_text()) if RESULT.exists() else stored
            stored[side][str(seed)] = found | {"dtype": DTYPE}
            RESULT.write_text(json.dumps(stored, indent=1) + "\n")
    stored = json.loads(RESULT.read_text())
    if min(map(len, stored.values())) > 1:
        found = gap(stored)
        print(found)
        PARITY.write_text(json.dumps(json.loads(PARITY.read_text()) | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
