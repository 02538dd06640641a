"""Kill small runs with SIGKILL, at random moments and at file operations, resume them, and compare
them with an uninterrupted run.

Run as `python stress/kills.py --runs 100 --algo grpo`. A run that was killed before its first
checkpoint starts again, as its error message says. Each command is a new process, forked from one
that has imported everything. Results are appended to a file, so the same command continues where it
stopped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from agentrl_cli.core import files  # noqa: E402
from agentrl_cli.runs.run import Run  # noqa: E402
from tests.builders.runs import facts, folders, saved, settings  # noqa: E402

ALGORITHMS = ("grpo", "nlac", "self_ac", "stepagent_inverse", "archer")
MORE = {  # the defaults, in place of the builder's settings
    "nlac": (
        "algo.separate_critic=true",
        "algo.policy_target=best_of_n",
        "algo.require_optimal=false",
    )
}
OFTEN = ("save_interval_minutes=1e-9", "save_every=2")
CHANGES = ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate")
PROCESSES = multiprocessing.get_context("forkserver")
PRELOADED = (  # in the process from which the others are forked
    "peft", "transformers.models.qwen2.modeling_qwen2", "agentrl_cli.cli.main",
    "agentrl_cli.cli.train", "agentrl_cli.cli.run_training", "agentrl_cli.generators.hf",
    "agentrl_cli.algos.nlac", "agentrl_cli.algos.self_ac", "agentrl_cli.algos.stepagent",
)  # fmt: skip
PROCESSES.set_forkserver_preload(list(PRELOADED))


class Ended(NamedTuple):
    """The end of a process, and its stderr."""

    returncode: int
    stderr: str


def main(arguments: list[str]) -> int:
    """Do the kills without results. Returns the number of runs that differ after resuming."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="kills of each algorithm")
    parser.add_argument("--algo", choices=ALGORITHMS, action="append")
    parser.add_argument("--folder", type=Path, default=Path("runs/kills"))
    parser.add_argument("--record", type=Path, help="the JSON file that gets the figures")
    options = parser.parse_args(arguments)
    results, outcomes = options.folder / "results.jsonl", []
    for algo in options.algo or ALGORITHMS:
        home = options.folder / algo
        known = known_results(results, algo)
        whole = whole_run(home, algo) if len(known) < options.runs else None
        for number in range(options.runs):
            if whole is not None and number not in known:
                known[number] = kill_and_resume(home, algo, number, whole)
                files.append_jsonl(results, [known[number]])
                print(json.dumps(known[number]), flush=True)
        outcomes += [known[number]["outcome"] for number in range(options.runs)]
    equal = outcomes.count("same")
    if options.record:
        stored = files.read_json(options.record) if options.record.exists() else {}
        files.write_json(options.record, {**stored, "kills": len(outcomes), "kills_equal": equal})
    return len(outcomes) - equal


def known_results(file: Path, algo: str) -> dict[int, dict[str, Any]]:
    """Return the results of earlier calls by number."""
    rows = files.read_jsonl(file) if file.exists() else []
    return {row["number"]: row for row in rows if row["algo"] == algo}


def whole_run(home: Path, algo: str) -> Run:
    """Return the uninterrupted run. Its seconds and number of file operations are in cost.json."""
    if not (home / "whole" / "cost.json").exists():
        shutil.rmtree(home / "whole", ignore_errors=True)
        began = time.monotonic()
        counted = home.parent / f"{algo}.operations"
        done = call(home, train(home, algo, "whole"), count=counted)
        if done.returncode:
            raise SystemExit(done.stderr)
        cost = {"seconds": time.monotonic() - began, "operations": int(counted.read_text())}
        files.write_json(home / "whole" / "cost.json", cost)
    return Run(home / "whole")


def kill_and_resume(home: Path, algo: str, number: int, whole: Run) -> dict[str, Any]:
    """Kill and resume a run. Even numbers are killed after some seconds, odd ones at a file
    operation."""
    cost, draw = files.read_json(whole.folder / "cost.json"), random.Random(f"{algo} {number}")
    name = f"killed-{number}"
    shutil.rmtree(home / name, ignore_errors=True)
    command = train(home, algo, name)
    seconds = operation = None
    if number % 2:
        operation = draw.randint(1, cost["operations"])
        call(home, command, die_at=operation)
    else:
        seconds = round(draw.uniform(0, cost["seconds"]), 2)
        call(home, command, timeout=seconds)
    result = {"algo": algo, "number": number, "seconds": seconds, "operation": operation}
    resumable = (home / name / "meta.json").exists() and bool(Run(home / name).checkpoints())
    if not resumable:
        shutil.rmtree(home / name, ignore_errors=True)
    outcome = ended(home, name, ["resume", str(home / name)] if resumable else command, whole)
    if outcome == "same":
        shutil.rmtree(home / name, ignore_errors=True)
    return result | {"resumed": resumable, "outcome": outcome}


def train(home: Path, algo: str, name: str) -> list[str]:
    """Return the command that trains the run `name`."""
    return ["train", *settings(home, algo, name, *MORE.get(algo, ()), *OFTEN)]


def ended(home: Path, name: str, command: list[str], whole: Run) -> str:
    """Finish a killed run with a command, and return `same` or the difference."""
    if not (home / name / "meta.json").exists() or not Run(home / name).is_done:
        done = call(home, command)
        if done.returncode:
            return f"refused: {done.stderr.strip().splitlines()[-1]}"
    run = Run(home / name)
    ours, theirs = facts(run), facts(whole)
    different = [key for key in theirs if ours[key] != theirs[key]]
    different += ["checkpoints"] if saved(run) != saved(whole) else []
    different += [] if run.is_done else ["status"]
    return f"different: {', '.join(different)}" if different else "same"


def call(
    home: Path,
    command: list[str],
    *,
    die_at: int = 0,
    count: Path | None = None,
    timeout: float | None = None,
) -> Ended:
    """Run `agentrl COMMAND` in a new process, which SIGKILL ends at the given point."""
    home.mkdir(parents=True, exist_ok=True)
    more = ["--config-dir", str(folders(home))] if command[0] == "train" else []
    os.environ["PYTHONPATH"] = str(ROOT)  # for imports in the processes
    with tempfile.NamedTemporaryFile() as said:
        arguments = (die_at, count, str(home), said.name, [*command, *more])
        process = PROCESSES.Process(target=child, args=arguments)
        process.start()
        process.join(timeout)
        process.kill()
        process.join()
        return Ended(process.exitcode or 0, Path(said.name).read_text())


def child(die_at: int, count: Path | None, home: str, said: str, command: list[str]) -> None:
    """Run a command. Die at that change of a file under `home`, or write the number of
    changes."""
    changes = 0

    def on_event(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal changes
        if event in CHANGES and changes_file(event, arguments) and home in str(arguments[0]):
            changes += 1
            if changes == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    os.dup2(os.open(said, os.O_WRONLY), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.chdir(ROOT)
    sys.addaudithook(on_event)
    from agentrl_cli.cli.main import app

    try:
        app(command)
    finally:
        if count:
            count.write_text(str(changes))


def changes_file(event: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether an event of Python's audit changes a file; reading does not."""
    return event != "open" or bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
