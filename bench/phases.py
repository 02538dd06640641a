"""Where an update spends its time, by method: writes docs/results/phases.json.

Run as `python bench/phases.py twentyq`, or for SmolLM2 as `python bench/phases.py
arithmetic_smollm2 --init RUN`, where RUN has learned the roles of NLAC. Each method of the recipe
trains four updates on one thread. The first warms up, and the figures are mean seconds of the
others. `rollout` plays episodes, `train` is forward, backward and optimizer, and `algorithm` is the
rest: texts of roles, log-probs and values.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.report.records import LEARNING_TIMES

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs" / "results" / "phases.json"
METHODS = (
    "sft", "rft", "grpo", "ppo", "archer", "dpo", "self_ac", "nlac", "stepagent_implicit",
    "stepagent_inverse",
)  # fmt: skip


def phases(recipe: str, algo: str, init: str) -> dict[str, float]:
    """Return the mean seconds of each phase."""
    fixed = [
        "steps=4",
        "eval.baseline=false",
        "eval.splits=[val]",
        "eval.tasks=1",
        "hardware.threads=1",
    ]
    with tempfile.TemporaryDirectory() as folder:
        own = [f"recipe={recipe}", f"algo={algo}", f"init={init}", f"runs={folder}", "name=run"]
        subprocess.run(
            [sys.executable, "-m", "agentrl_cli.cli", "train", *own, *fixed],
            cwd=ROOT, check=True, capture_output=True,
        )  # fmt: skip
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    updates = [row for row in map(json.loads, lines) if "time/train" in row][1:]
    return {
        name.removeprefix("time/"): round(fmean(row.get(name, 0.0) for row in updates), 2)
        for name in LEARNING_TIMES
    }


def main() -> None:
    """Measure every method, and store as they come."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--init", default="null", help="run to start from")
    parser.add_argument("--only", nargs="+", default=METHODS, choices=METHODS)
    asked = parser.parse_args()
    for algo in asked.only:
        stored = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        found = stored.setdefault(asked.recipe, {})[algo] = phases(asked.recipe, algo, asked.init)
        print(algo, found, flush=True)
        RESULT.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
