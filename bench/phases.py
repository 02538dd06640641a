"""Where an update of each method spends its time, and its memory: writes docs/results/phases.json.

Run as `python bench/phases.py twentyq`, and as `python bench/phases.py arithmetic_smollm2 --init
RUN`, where RUN has learned the roles of NLAC. Each method of the recipe trains four updates on one
thread, or with `--gpu` on a GPU. The first warms up; the figures are mean seconds of the others.
`rollout` plays episodes, `algorithm` is what the method does before training (texts of roles,
log-probs, values), and `train` is forward, backward and optimizer steps.

On a CPU, for recipes of SmolLM2 it also writes docs/results/smollm2_cost.json: the largest memory
of each method's process in MiB, and the memory that `--dry` predicts. The recipe itself has the
values of the method that needs most memory, and the minutes of the longest run in smollm2.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.config.compose import build, compose_checked
from agentrl_cli.training.memory_plan import plan_memory

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PHASES = ("rollout", "algorithm", "train")
METHODS = (
    "sft", "dpo", "rft", "grpo", "ppo", "archer", "self_ac", "stepagent_implicit",
    "stepagent_inverse", "nlac",
)  # fmt: skip
SETTINGS = ("steps=4", "eval.baseline=false", "eval.splits=[val]", "eval.tasks=1")


def measured(
    recipe: str, algo: str, init: str, hardware: str
) -> tuple[dict[str, float], dict[str, int]]:
    """Return the mean seconds of each phase of an update, without the first update, and the peak
    memory of the process beside the predicted one, in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        own = [f"recipe={recipe}", f"algo={algo}", f"init={init}", f"runs={folder}", "name=run"]
        own += [*SETTINGS, hardware]
        command = [sys.executable, "-m", "agentrl_cli.cli", "train", *own]
        run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(run.pid, 0)
        if status:
            raise SystemExit(f"{' '.join(command)} failed")
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    updates = [row for row in map(json.loads, lines) if "time/train" in row][1:]
    means = {phase: fmean(row.get(f"time/{phase}", 0.0) for row in updates) for phase in PHASES}
    cfg = compose_checked(own)
    predicted = plan_memory(cfg, build(cfg.algo)).peak
    memory = {"peak_mib": used.ru_maxrss // 1024, "predicted_mib": predicted // 2**20}
    return {phase: round(mean, 2) for phase, mean in means.items()}, memory


def cost_of_recipe(recipe: str, cost: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the memory of the method that takes most, from those of all methods, and the minutes
    of the longest run in `rows`."""
    largest = max(
        (name for name in METHODS if f"peak_mib_{recipe}_{name}" in cost),
        key=lambda name: cost[f"peak_mib_{recipe}_{name}"],
    )
    kinds = ("peak_mib", "predicted_mib")
    found = {f"{kind}_{recipe}": cost[f"{kind}_{recipe}_{largest}"] for kind in kinds}
    minutes = [row["minutes"] for row in rows if row["env"] == recipe and "minutes" in row]
    return found | ({f"minutes_{recipe}": max(minutes)} if minutes else {})


def load(name: str) -> Any:
    """Return a stored record; an empty one if the file is missing."""
    file = RESULTS / name
    return json.loads(file.read_text()) if file.exists() else {}


def write(name: str, record: dict[str, Any]) -> None:
    """Store a record."""
    (RESULTS / name).write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    """Measure the methods and store each when it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--init", default="null", help="run to start from")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--only", nargs="+", default=METHODS, choices=METHODS)
    asked = parser.parse_args()
    for algo in asked.only:
        hardware = "hardware=gpu" if asked.gpu else "hardware.threads=1"
        phases, memory = measured(asked.recipe, algo, asked.init, hardware)
        print(algo, phases, memory, flush=True)
        stored = load("phases.json")
        stored.setdefault(asked.recipe + "_gpu" * asked.gpu, {})[algo] = phases
        write("phases.json", stored)
        if asked.recipe.endswith("smollm2") and not asked.gpu:
            own = {f"{kind}_{asked.recipe}_{algo}": value for kind, value in memory.items()}
            cost = load("smollm2_cost.json") | own
            rows = load("smollm2.json") or []
            write("smollm2_cost.json", cost | cost_of_recipe(asked.recipe, cost, rows))


if __name__ == "__main__":
    main()
