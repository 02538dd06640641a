"""Measures learning from demonstrations on Twenty Questions: `python tests/bench/stepagent.py`.

One fixed set of expert episodes serves every algorithm and seed. Each seed first runs SFT on it;
StepAgent in both variants, DPO on trajectories, PPO and RFT start from that SFT (`init`), and so
does more of the same SFT (`longer`), which says what further passes alone are worth. SFT and
StepAgent also learn from fewer and from more episodes, the smaller sets being the beginnings of the
largest. Writes docs/results/stepagent.json; a run that is already done is not repeated.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from results import ROOT, Rows, by_split, cost, is_done, read, write

AGENTRL = [sys.executable, "-m", "agentrl_cli.cli"]
SIZES = (32, 128, 512)
MAIN = 128  # the size at which all algorithms are compared
USUAL = [
    "env=twentyq", "hardware.threads=1", "eval_every=0", "save_every=0", "eval.greedy=false",
    "eval.episodes_per_task=5", "rollout.episodes_per_step=64",
]  # fmt: skip
SETTINGS = {  # after a pilot of unequal trials, see docs/log.md
    "sft": ["steps=9", "algo.tokens_per_step=4000", "algo.optimizer.lr=3e-4"],
    "longer": ["algo=sft", "steps=6", "algo.tokens_per_step=4000", "algo.optimizer.lr=3e-4"],
    "stepagent_implicit": [
        "steps=8", "algo.tried=last_line", "algo.fragments_per_update=128",
        "algo.optimizer.lr=1e-4",
    ],
    "stepagent_inverse": [
        "steps=6", "algo.tried=last_line", "algo.fragments_per_update=32",
        "algo.discriminator_optimizer.lr=5e-4", "algo.ppo.optimizer.lr=1e-4",
    ],
    "dpo": ["steps=8", "algo.optimizer.lr=1e-4"],
    "ppo": ["steps=8", "algo.tokens_per_step=4000", "algo.optimizer.lr=1e-4"],
    "rft": ["steps=8", "algo.tokens_per_step=4000", "algo.optimizer.lr=3e-4"],
}  # fmt: skip
PLAYS = ("ppo", "rft")  # who reads no demonstrations
SIZED = ("sft", "longer", "stepagent_implicit", "stepagent_inverse")  # at every number of them


class Plan(NamedTuple):
    """One run: what of SETTINGS, its seed, and how many demonstrations it or its start has seen."""

    what: str
    seed: int
    demos: int

    @property
    def name(self) -> str:
        """The run's folder: ppo-d128-s0."""
        return f"{self.what}-d{self.demos}-s{self.seed}"

    @property
    def start(self) -> Plan:
        """The SFT that it starts from."""
        return Plan("sft", self.seed, self.demos)


def plans(seeds: list[int], sizes: list[int]) -> list[Plan]:
    """Everything that is compared, each SFT before what starts from it."""
    found = []
    for seed in seeds:
        for size in sizes:
            compared = SETTINGS if size == MAIN else SIZED
            found += [Plan(what, seed, size) for what in compared]
    return found


def demonstrate(folder: Path, sizes: list[int]) -> None:
    """One set of expert episodes, and its beginnings."""
    whole = folder / f"demos-{max(SIZES)}.jsonl"
    if not whole.exists():
        call = ["demos", "env=twentyq", "seed=0", f"n={max(SIZES)}", f"out={whole}"]
        subprocess.run([*AGENTRL, *call], check=True, cwd=ROOT)
    for size in set(sizes) - {max(SIZES)}:
        with whole.open() as lines:
            (folder / f"demos-{size}.jsonl").write_text("".join(islice(lines, size)))


def train(plan: Plan, folder: Path) -> Path:
    """Train one run unless it is done; the run's folder."""
    run = folder / plan.name
    if is_done(run):
        return run
    if run.exists():
        raise SystemExit(f"{run} is there but not done; remove it")
    chosen = [] if plan.what == "longer" else [f"algo={plan.what}"]
    own = [*chosen, f"seed={plan.seed}", f"runs={folder}", f"name={plan.name}"]
    own += [*USUAL, *SETTINGS[plan.what]]
    if plan.what not in PLAYS:
        own.append(f"data.demos={folder / f'demos-{plan.demos}.jsonl'}")
    if plan.what != "sft":  # the start's own evaluation is the baseline: the same games
        own += [f"init={folder / plan.start.name}", "eval.baseline=false"]
    with (folder / f"{plan.name}.log").open("w") as log:
        subprocess.run([*AGENTRL, "train", *own], check=True, cwd=ROOT, stdout=log, stderr=log)
    return run


def train_all(work: list[Plan], folder: Path, jobs: int) -> None:
    """All SFTs first, then what starts from them, `jobs` runs side by side."""
    for first in (True, False):
        with ThreadPoolExecutor(jobs) as pool:
            group = [plan for plan in work if (plan.what == "sft") is first]
            list(pool.map(lambda plan: train(plan, folder), group))


def records(plan: Plan, folder: Path) -> Rows:
    """One record per split, in the form of results.py."""
    meta, evaluations, updates = read(folder / plan.name)
    base = evaluations[0] if plan.what == "sft" else read(folder / plan.start.name)[1][-1]
    last = evaluations[-1]
    common = {
        "algo": "sft" if plan.what == "longer" else plan.what,
        "variant": "longer" if plan.what == "longer" else "",
        "seed": plan.seed,
        "env": "twentyq",
        "model": "tiny",
        "init": "base" if plan.what == "sft" else "sft",
        "demos": plan.demos,
    }
    return by_split(common | cost(meta, updates), base, last)


def table(rows: Rows) -> list[str]:
    """A Markdown table of the test split: the final success of every seed and its mean lead over
    the SFT that it started from."""
    lines = ["| algorithm | demonstrations | final, each seed | above its start | seconds |"]
    lines += ["|---|---|---|---|---|"]
    tests = [row for row in rows if row["split"] == "test"]
    for name, demos in dict.fromkeys((named(row), row["demos"]) for row in tests):
        mine = [row for row in tests if (named(row), row["demos"]) == (name, demos)]
        finals = " / ".join(f"{row['final']:.1%}" for row in mine)
        gain = fmean(row["final"] - row["base"] for row in mine)
        seconds = fmean(row["seconds"] for row in mine)
        lines.append(f"| {name} | {demos} | {finals} | {gain:+.1%} | {seconds:.0f} |")
    return lines


def named(row: dict[str, Any]) -> str:
    """sft, longer."""
    return ", ".join(filter(None, [row["algo"], row["variant"]]))


def main() -> None:
    """Run all plans and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--write-only", action="store_true", help="what is done; train nothing")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "stepagent")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    work = plans(options.seeds, options.sizes)
    if not options.write_only:
        demonstrate(folder, options.sizes)
        train_all(work, folder, options.jobs)
    done = [plan for plan in work if is_done(folder / plan.name)]
    rows = [row for plan in done for row in records(plan, folder)]
    write("stepagent.json", rows)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
