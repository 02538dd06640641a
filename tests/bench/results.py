"""Measures every learning figure of Twenty Questions anew and writes docs/results/twentyq.json (`make results`).

Each algorithm and control trains from the shipped base on the same number of episodes, three seeds, one
torch thread a run, `--jobs` runs side by side. A run that is already done is not repeated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "docs" / "results" / "twentyq.json"
EPISODES = 32 * 4  # of every step of every algorithm
CONTROLS = ("shuffled_outcomes", "shuffled_critiques", "empty_critiques")


def plans(steps: int) -> list[tuple[str, str, list[str]]]:
    """(algo, variant, overrides) of everything that is compared."""
    play = ["rollout.tasks_per_step=128"]
    plain = [
        ("nlac", "", play),
        ("grpo", "", []),
        ("rft", "", play),
        ("sft", "", play),
    ]
    spoiled = [("nlac", name, [*play, f"algo.advanced.control={name}"]) for name in CONTROLS]
    return [(a, v, [f"steps={steps}", *more]) for a, v, more in plain + spoiled]


def run_one(algo: str, variant: str, overrides: list[str], seed: int, folder: Path) -> Path:
    """Train one run unless it is done; the run's folder."""
    name = "-".join(filter(None, [algo, variant, f"s{seed}"]))
    run = folder / name
    meta = run / "meta.json"
    if meta.exists() and json.loads(meta.read_text())["status"] == "done":
        return run
    if run.exists():
        raise SystemExit(f"{run} is there but not done; remove it")
    command = [
        sys.executable, "-m", "agentrl_cli.cli", "train", f"algo={algo}", f"seed={seed}",
        f"runs={folder}", f"name={name}", "hardware.threads=1", *overrides,
    ]  # fmt: skip
    with (folder / f"{name}.log").open("w") as log:
        subprocess.run(command, check=True, cwd=ROOT, stdout=log, stderr=log)
    return run


def records(algo: str, variant: str, seed: int, run: Path) -> list[dict[str, Any]]:
    """One record per split, from the run's own files."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evals = [row for row in rows if "eval/test_success" in row]
    steps = [row for row in rows if "time/rollout" in row]
    meta = json.loads((run / "meta.json").read_text())
    phases = ("time/rollout", "time/train", "time/algorithm")
    common = {"algo": algo, "variant": variant, "env": "twentyq", "model": "tiny", "init": "base"}
    found = []
    for split in ("test", "train"):
        base, last = evals[0], evals[-1]
        found.append(
            common
            | {
                "demos": "",
                "split": split,
                "seed": seed,
                "base": base[f"eval/{split}_success"],
                "final": last[f"eval/{split}_success"],
                "low": last[f"eval/{split}_success_low"],
                "high": last[f"eval/{split}_success_high"],
                "tasks": {"test": 40, "train": 56}[split],
                "episodes": int(sum(row["episodes/episodes"] for row in steps)),
                "steps": len(steps),
                "seconds": round(sum(row.get(name, 0.0) for row in steps for name in phases), 1),
                "commit": meta["git"]["commit"],
                "critic": {k: v for k, v in last.items() if k.startswith("nlac/")},
                "critic_base": {k: v for k, v in base.items() if k.startswith("nlac/")},
            }
        )
    return found


def main() -> None:
    """Run all plans and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "results")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    work = [(*plan, seed) for seed in options.seeds for plan in plans(options.steps)]
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = list(pool.map(lambda w: run_one(*w, options.folder), work))
    rows = [
        r for (a, v, _, seed), run in zip(work, runs, strict=True) for r in records(a, v, seed, run)
    ]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{len(rows)} records in {options.out}")


if __name__ == "__main__":
    main()
