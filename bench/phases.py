"""Where an update of each method spends its time: writes docs/results/phases.json.

Run as `python bench/phases.py twentyq`, and as `python bench/phases.py arithmetic_smollm2 --init
RUN`, where RUN has learned the roles of NLAC. Each method of the recipe trains four updates on one
thread. The first warms up; the figures are mean seconds of the others. `rollout` plays episodes,
`algorithm` is what the method does before training (texts of roles, log-probs, values), and `train`
is forward, backward and optimizer steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs" / "results" / "phases.json"
PHASES = ("rollout", "algorithm", "train")
METHODS = (
    "sft", "dpo", "rft", "grpo", "ppo", "archer", "self_ac", "stepagent_implicit",
    "stepagent_inverse", "nlac",
)  # fmt: skip
SETTINGS = (
    "steps=4", "eval.baseline=false", "eval.splits=[val]", "eval.tasks=1", "hardware.threads=1",
)  # fmt: skip


def measured(recipe: str, algo: str, init: str) -> dict[str, float]:
    """Return the mean seconds of each phase of an update, without the first update."""
    with tempfile.TemporaryDirectory() as folder:
        own = [f"recipe={recipe}", f"algo={algo}", f"init={init}", f"runs={folder}", "name=run"]
        subprocess.run(
            [sys.executable, "-m", "agentrl_cli.cli", "train", *own, *SETTINGS],
            cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    updates = [row for row in map(json.loads, lines) if "time/train" in row][1:]
    means = {phase: fmean(row.get(f"time/{phase}", 0.0) for row in updates) for phase in PHASES}
    return {phase: round(mean, 2) for phase, mean in means.items()}


def main() -> None:
    """Measure the methods and store each when it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--init", default="null", help="run to start from")
    parser.add_argument("--only", nargs="+", default=METHODS, choices=METHODS)
    asked = parser.parse_args()
    for algo in asked.only:
        stored = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        found = stored.setdefault(asked.recipe, {})[algo] = measured(asked.recipe, algo, asked.init)
        print(algo, found, flush=True)
        RESULT.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
