"""Measure the time that parallel runs of a sweep save: writes docs/results/sweep.json.

Run as `python bench/sweep.py` on an idle machine of two cores. `agentrl sweep` trains four runs of
about a minute: two at a time, and one at a time with one thread and with the default number of
threads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUNS = ["algo=grpo", "env=twentyq", "seed=0,1,2,3", "steps=6", "eval.splits=[test]"]
WAYS = {
    "side_by_side": ["--jobs", "2"],
    "in_turn_one_thread": ["hardware.threads=1"],
    "in_turn": [],
}


def seconds(folder: str, way: str) -> float:
    """Return the seconds of a sweep."""
    command = [sys.executable, "-m", "agentrl_cli.cli", "sweep", *RUNS, *WAYS[way]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    subprocess.run(
        [*command, "--name", way], check=True, cwd=folder, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return round(time.perf_counter() - began, 1)


def main() -> None:
    """Measure each way once, and write the result."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    machine = {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 2)}
    with tempfile.TemporaryDirectory() as folder:
        taken = {way: seconds(folder, way) for way in WAYS}
    found = {
        "machine": machine,
        "runs": RUNS,
        "seconds": taken,
        "ratio": round(taken["side_by_side"] / taken["in_turn"], 3),
        "ratio_one_thread": round(taken["side_by_side"] / taken["in_turn_one_thread"], 3),
    }
    path = ROOT / "docs" / "results" / "sweep.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(path.read_text())


if __name__ == "__main__":
    main()
