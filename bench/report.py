"""Measure the cost of a report and of showing one episode; write docs/results/report.json.

The data are synthetic: 40 runs of 500 steps with 400 games in their last evaluation, and an episode
file of 200 MB. Each command runs in a new process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from multiprocessing import Process
from pathlib import Path
from typing import Any

from agentrl_cli.runs import episode_files
from tests.builders.report import episodes, write_run

ROOT = Path(__file__).parent.parent
RUNS, STEPS, SEEDS = 40, 500, 5
TASKS, GAMES = range(40), range(10)
MEGABYTES = 200
TEXT = "Is it something that people keep in a house or a garden? " * 3


def measured(folder: Path, *arguments: str) -> dict[str, float]:
    """Return the wall-clock and CPU seconds and the peak memory of a command."""
    command = [sys.executable, "-m", "agentrl_cli.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL) as child:
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed")
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 2),
        "peak_megabytes": round(used.ru_maxrss * 1024 / 1e6, 1),
    }


def make_runs(folder: Path) -> None:
    """Write eight configurations of five seeds, with 40 tasks of ten games each."""
    for number in range(RUNS):
        group, seed = divmod(number, SEEDS)
        wins = {f"task{t:02d}": [int((t + n + seed) % 8 < group) for n in GAMES] for t in TASKS}
        said = None if group else {"critic": {"forecasts": ["No. Success."] * 8, "verdict": True}}
        write_run(
            folder / f"r{number:02d}", algo=f"algo{group}", seed=seed, steps=STEPS, final=wins,
            text=TEXT, said=said,
        )  # fmt: skip


def make_large(folder: Path) -> None:
    """Write a run whose last evaluation has 200 MB of episodes; `wanted` is one near its
    end."""
    run = write_run(folder / "large")
    sample = episodes({"x": [1] * 10}, TEXT * 40)
    size = len(json.dumps(sample[0].to_json()))
    count = MEGABYTES * 1_000_000 // size
    rows = episodes({f"task{n:05d}": [n % 2] * 10 for n in range(count // 10)}, TEXT * 40)
    episode_files.write(run / "episodes" / "eval-000020.jsonl", rows)
    (folder / "wanted").write_text(rows[-3].id)


def main() -> None:
    """Make the runs, measure, and write the result."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_runs(folder / "runs")
        report = measured(folder, "report", "runs", "--against", "algo0")
        page = (folder / "runs" / "report" / "report.html").stat().st_size
        making = Process(target=make_large, args=(folder,))  # so that its memory is not ours
        making.start()
        making.join()
        large, wanted = folder / "large", (folder / "wanted").read_text()
        file = large / "episodes" / "eval-000020.jsonl"
        found_one = measured(folder, "show", "large", "--episode", wanted)
        size = file.stat().st_size
    found: dict[str, Any] = {
        "machine": {
            "cpus": os.cpu_count(), "python": platform.python_version(),
            "load": round(os.getloadavg()[0], 1),
        },
        "report": {"runs": RUNS, "steps": STEPS, **report, "page_megabytes": round(page / 1e6, 2)},
        "show": {"file_megabytes": round(size / 1e6), "episode": found_one},
    }  # fmt: skip
    (ROOT / "docs" / "results" / "report.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
