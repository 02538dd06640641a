"""Measure what methods gain from the episodes of another method: `python bench/warm_start.py`.

On Twenty Questions, NLAC plays nothing and learns from all episodes of a GRPO run, and RFT learns
from the successes among them. Both start from the initial model, with three seeds. Each is
evaluated six times on `val`, and the best checkpoint counts (`save_best=true`). The mean gains in
test success go to docs/results/real_models.json as `warm_start_nlac` and `warm_start_rft`. A run
that is done is not repeated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.core import files
from agentrl_cli.report.records import read_record
from agentrl_cli.runs.run import Run
from bench.results import AGENTRL, is_done

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs" / "results" / "real_models.json"
SEEDS = (0, 1, 2)
EVALUATED = ["save_best=true", "eval.splits=[test]", "eval.greedy=false", "hardware.threads=1"]
PASSES = 6  # of RFT over the successes


def train(folder: Path, name: str, seed: int, *overrides: str) -> Run:
    """Return a run of Twenty Questions, which is trained unless it is done."""
    run = folder / f"{name}-s{seed}"
    if not is_done(run):
        own = [f"runs={folder}", f"name={run.name}", f"seed={seed}"]
        subprocess.run([*AGENTRL, "train", *overrides, *own], check=True, cwd=ROOT)
    return Run(run)


def write_successes(source: Run, file: Path) -> None:
    """Write the successful episodes of a run's buffer as demonstrations."""
    rows = files.read_jsonl(source.folder / "buffer.jsonl")
    won = [row for row in rows if row["turns"][-1]["info"].get("success")]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in won))


def gain(run: Run) -> float:
    """Return the test success of the checkpoint that is kept minus that of the initial model."""
    record = read_record(run)
    before, after = (record.score(step, "test") for step in (0, record.final_step or 0))
    assert before is not None and after is not None
    return after - before


def measure(folder: Path, seed: int) -> dict[str, float]:
    """Return the gains of a seed."""
    source = train(folder, "grpo", seed, "recipe=twentyq", "algo=grpo", "data.keep_episodes=true")
    won = folder / f"won-s{seed}.jsonl"
    write_successes(source, won)
    offline = [f"data.buffer={source.folder}", "data.offline=true", "eval_every=2"]
    offline += ["algo.advanced.buffer_size=4096"]
    imitated = ["algo=sft", "env=twentyq", f"data.demos={won}", f"steps={PASSES}", "eval_every=1"]
    imitated += ["algo.minibatch_tokens=800"]  # as RFT's steps
    nlac = train(folder, "nlac", seed, "recipe=twentyq", "algo=nlac", *EVALUATED, *offline)
    rft = train(folder, "rft", seed, *EVALUATED, *imitated)
    return {"nlac": gain(nlac), "rft": gain(rft), "grpo": gain(source)}


def main() -> None:
    """Measure, print the gains of each seed, and write the means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "warm_start")
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows = {seed: measure(folder, seed) for seed in SEEDS}
    for seed, row in rows.items():
        print(seed, {name: round(value, 3) for name, value in row.items()})
    found = {
        f"warm_start_{name}": round(fmean(row[name] for row in rows.values()), 4)
        for name in ("nlac", "rft")
    }
    kept = json.loads(RESULT.read_text())
    RESULT.write_text(json.dumps(kept | found, indent=1) + "\n")
    print(found)


if __name__ == "__main__":
    main()
