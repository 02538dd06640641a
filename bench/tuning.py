"""Tunes the algorithms of a comparison with like effort: `python bench/tuning.py --env arithmetic`.

Each gets the same four trials: its preset as it is, its learning rates divided and multiplied by
three, and twice as many optimizer steps of half the size. A trial has as many updates as its
preset, for shorter ones choose rates that are too high, and a seed that no comparison uses; it is
judged by success on the split `val`. SFT's trials are judged after every third pass over the
demonstrations, of twelve, so that the number of passes is tuned, too. Who starts from an SFT starts
from its preset, so tune SFT first. Writes every evaluation into docs/results/ENV_tuning.json and
prints each trial's best; the presets are then changed by hand. Trials that are done, under
runs/tuning/ENV, are not repeated.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from omegaconf import OmegaConf

from agentrl_cli.config.compose import compose
from agentrl_cli.runs.run import Run
from bench.results import FROM_SFT, PLAYERS, ROOT, STUDENTS, TASKS, Rows, train, write

SEED = 10  # of every trial; the comparisons have 0, 1 and 2
EPISODES = 600  # of an evaluation
PASSES = 12  # of SFT, four times evaluated
UNWATCHED = ["algo.diagnostics.num_states=0"]  # what NLAC measures of its critic judges no trial
START = "start"  # SFT by its preset, which others start from
TRIALS = ("preset", "third", "thrice", "small_steps")
FACTORS = {"preset": 1.0, "third": 1 / 3, "thrice": 3.0}
BODY, HEAD = "algo.optimizer.lr", "algo.optimizer.head_lr"
RATES = {
    "ppo": (BODY, HEAD),
    "archer": (BODY, "algo.critic_optimizer.lr", "algo.critic_optimizer.head_lr"),
    "stepagent_inverse": ("algo.ppo.optimizer.lr",),
}
STEP_SIZES = {
    "nlac": "algo.advanced.minibatch_tokens",
    "stepagent_inverse": "algo.ppo.minibatch_tokens",
}


class Trial(NamedTuple):
    """One run."""

    env: str
    algo: str
    trial: str

    @property
    def name(self) -> str:
        """The run's folder: grpo-third."""
        return f"{self.algo}-{self.trial}"

    @property
    def start(self) -> Trial | None:
        """The run that it starts from; None: the base."""
        return Trial(self.env, "sft", START) if self.algo in FROM_SFT else None

    @property
    def preset(self) -> str:
        """What is tuned."""
        return f"experiment={self.env}_{self.algo}"

    @property
    def changes(self) -> dict[str, float]:
        """What it changes of its preset: keys and values."""
        config = compose([self.preset])
        if self.trial == "small_steps":
            key = STEP_SIZES.get(self.algo, "algo.minibatch_tokens")
            return {key: OmegaConf.select(config, key) // 2}
        factor, keys = FACTORS[self.trial], RATES.get(self.algo, (BODY,))
        own = {key: rate for key in keys if (rate := OmegaConf.select(config, key)) is not None}
        return {k: float(f"{rate * factor:.1e}") for k, rate in own.items()} if factor != 1 else {}

    def settings(self) -> list[str]:
        """The overrides of the run."""
        if self.trial == START:
            return [self.preset, f"seed={SEED}"]
        passes = [f"steps={PASSES}", f"eval_every={PASSES // 4}"] if self.algo == "sft" else []
        size = EPISODES // TASKS[self.env]["val"]
        judged = ["eval.splits=[val]", "eval.greedy=false", f"eval.episodes_per_task={size}"]
        judged += UNWATCHED if self.algo == "nlac" else []
        judged += ["eval.baseline=false"] if self.trial != TRIALS[0] else []  # the same start
        changes = [f"{key}={value}" for key, value in self.changes.items()]
        return [self.preset, *passes, *judged, *changes, f"seed={SEED}"]


def records(trial: Trial, run: Path) -> Rows:
    """One for each evaluation, in the first trial the start's, of step 0, among them."""
    common: dict[str, Any] = {"env": trial.env, "algo": trial.algo, "variant": trial.trial}
    common |= {"seed": SEED, "changes": trial.changes}
    common |= {"start": trial.start.name if trial.start else "base"}
    judged = [row for row in Run(run).metrics() if "eval/val_success" in row]
    return [common | {"step": row["step"], "val": row["eval/val_success"]} for row in judged]


def best(rows: Rows) -> dict[str, Any]:
    """The evaluation, of those after training, with the most successes."""
    return max((row for row in rows if row["step"]), key=lambda row: row["val"])


def tune(env: str, algo: str, folder: Path) -> None:
    """The trials of an algorithm."""
    rows = []
    for trial in (Trial(env, algo, name) for name in TRIALS):
        if trial.start:
            train(trial.start, folder)
        train(trial, folder)
        judged = records(trial, folder / trial.name)
        rows += judged
        found = best(judged)
        print(algo, trial.trial, trial.changes, found["step"], round(found["val"], 4), flush=True)
    write(f"{env}_tuning.json", rows)


def main() -> None:
    """Run what is not done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="arithmetic", choices=TASKS)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="algorithms to tune")
    asked = parser.parse_args()
    folder = (ROOT / "runs" / "tuning" / asked.env).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for algo in asked.only or (*PLAYERS, *STUDENTS):
        tune(asked.env, algo, folder)


if __name__ == "__main__":
    main()
