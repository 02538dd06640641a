"""Train the bundled model for hours in one process, and see whether memory, open files and threads
grow: `python stress/soak.py --hours 2`. In a round, each algorithm trains, saves and evaluates a
short run. Memory is measured after each round. The first rounds are a warm-up and do not count: at
least one, and a tenth of the time.

`soak_growth` compares the median memory of the last and the first quarter of the other rounds; 0 is
no growth. It is stored with `soak_hours` in docs/results/reliability.json. The program exits with 1
if open files or threads grew."""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from agentrl_cli.cli.train import start  # noqa: E402
from agentrl_cli.core import files  # noqa: E402

RESULT = ROOT / "docs" / "results" / "reliability.json"
ALGORITHMS = ("nlac", "self_ac", "grpo", "archer_small", "ppo")
SMALL = [
    "env=twentyq", "steps=4", "save_every=2", "eval_every=2", "eval.tasks=4",
    "eval.episodes_per_task=2", "rollout.episodes_per_step=16", "hardware.threads=1",
]  # fmt: skip
WARM_UP = 0.1  # of the time
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Sample:
    """A measurement of this process: seconds since the start, resident bytes, open files, and
    threads of Python and of the kernel."""

    seconds: float
    resident: int
    handles: int
    threads: int

    @classmethod
    def take(cls, began: float) -> Sample:
        """Return a measurement of this moment."""
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
        threads = max(threading.active_count(), len(os.listdir("/proc/self/task")))
        return cls(time.monotonic() - began, resident, len(os.listdir("/proc/self/fd")), threads)


def main(arguments: list[str]) -> int:
    """Train, print the result and store the figures. Returns 1 if open files or threads
    grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("settings", nargs="*", help="overrides of every run")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        samples = soak(Path(folder), 3600 * options.hours, options.settings)
    measured = behind_warm_up(samples)
    store(options.result, soak_hours=samples[-1].seconds / 3600, soak_growth=growth(measured))
    found = leaks(measured)
    print("\n".join([f"memory grew by {growth(measured):+.2%} behind the warm-up", *found]))
    return 1 if found else 0


def soak(folder: Path, seconds: float, overrides: list[str]) -> list[Sample]:
    """Return a sample after each round of all algorithms, until the time is over; at least
    six."""
    began, samples = time.monotonic(), []
    while len(samples) < 6 or samples[-1].seconds < seconds:
        for algo in ALGORITHMS:
            train(folder, algo, len(samples), overrides)
        samples.append(Sample.take(began))
        print(samples[-1], flush=True)
    return samples


def train(folder: Path, algo: str, seed: int, overrides: list[str]) -> None:
    """Train a short run and delete it."""
    name = [f"algo={algo}", f"seed={seed}", f"runs={folder}", f"name={algo}"]
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        start([*SMALL, *name, *overrides])
    shutil.rmtree(folder / algo)


def behind_warm_up(samples: list[Sample]) -> list[Sample]:
    """Return the samples without the first round and the rounds that ended in the first tenth
    of the time."""
    begin = WARM_UP * samples[-1].seconds
    return [sample for sample in samples[1:] if sample.seconds >= begin]


def growth(samples: list[Sample]) -> float:
    """Return the median resident memory of the last quarter divided by that of the first
    quarter, minus one."""
    quarter = max(1, len(samples) // 4)
    first, last = samples[:quarter], samples[-quarter:]
    return median(s.resident for s in last) / median(s.resident for s in first) - 1


def leaks(samples: list[Sample]) -> list[str]:
    """Return a sentence for open files and for threads if the last quarter has more of them
    than the first."""
    quarter, found = max(1, len(samples) // 4), []
    for name in ("handles", "threads"):
        first, last = (
            max(getattr(sample, name) for sample in part)
            for part in (samples[:quarter], samples[-quarter:])
        )
        if last > first:
            found.append(f"{name} grew from {first} to {last}")
    return found


def store(file: Path, **figures: float) -> None:
    """Add figures to the file."""
    known = files.read_json(file) if file.exists() else {}
    merged = known | {name: round(value, 4) for name, value in figures.items()}
    file.write_text(json.dumps(dict(sorted(merged.items())), indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
