"""Measures every learning figure of Twenty Questions anew: `make results`.

Writes docs/results/twentyq.json and twentyq_critic.json, and agentrl_cli/reproduce.json, against
which `agentrl reproduce` holds a later run of a preset. Each algorithm and control trains from the
shipped base on the same number of episodes, three seeds, one torch thread a run, `--jobs` runs side
by side. A run that is already done is not repeated. The table that it prints last is that of
`agentrl report FOLDER --markdown`, and README's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agentrl_cli import reproduce
from agentrl_cli.report.command import gather, markdown
from agentrl_cli.run import Run, read_checkpoint

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "docs" / "results"
COMPARED = ("nlac", "self_ac", "archer", "ppo", "grpo", "rft", "sft")
CONTROLS = ("shuffled_outcomes", "shuffled_critiques", "empty_critiques")
Plan = tuple[str, str, int]
Rows = list[dict[str, Any]]


def plans(seeds: list[int], controls: bool) -> list[Plan]:
    """(algo, variant, seed) of everything that is compared, seed by seed."""
    compared = [(algo, "") for algo in COMPARED]
    if controls:
        compared += [("nlac", control) for control in CONTROLS]
    return [(algo, variant, seed) for seed in seeds for algo, variant in compared]


def train(plan: Plan, steps: int, folder: Path) -> Path:
    """Train one run unless it is done; the run's folder."""
    (algo, variant, seed), name = plan, name_of(plan)
    run = folder / name
    if is_done(run):
        refuse_other_steps(run, steps)
        return run
    if run.exists():
        raise SystemExit(f"{run} is there but not done; remove it")
    spoiled = [f"algo.advanced.control={variant}"] if variant else []
    spoiled += ["algo.tokens_per_step=4000"] if algo == "sft" else []  # about as many steps as NLAC
    command = [
        sys.executable, "-m", "agentrl_cli.cli", "train", f"algo={algo}", f"seed={seed}",
        f"runs={folder}", f"name={name}", f"steps={steps}", "hardware.threads=1", *spoiled,
    ]  # fmt: skip
    with (folder / f"{name}.log").open("w") as log:
        subprocess.run(command, check=True, cwd=ROOT, stdout=log, stderr=log)
    return run


def refuse_other_steps(run: Path, steps: int) -> None:
    """SystemExit where a finished run trained for another number of updates."""
    found = int(read_checkpoint(Run(run).latest_checkpoint())["step"])
    if found != steps:
        raise SystemExit(f"{run} has {found} updates, not {steps}; remove it, or agentrl resume it")


def name_of(plan: Plan) -> str:
    """nlac-shuffled_outcomes-s1."""
    algo, variant, seed = plan
    return "-".join(filter(None, [algo, variant, f"s{seed}"]))


def is_done(run: Path) -> bool:
    """Whether a run has finished."""
    meta = run / "meta.json"
    return meta.exists() and json.loads(meta.read_text())["status"] == "done"


def read(run: Path) -> tuple[dict[str, Any], Rows, Rows]:
    """meta.json, the evaluations and the updates of a run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluations = [row for row in rows if "eval/test_success" in row]
    updates = [row for row in rows if "time/rollout" in row]
    return json.loads((run / "meta.json").read_text()), evaluations, updates


def records(plan: Plan, run: Path) -> Rows:
    """One record per split, from the run's own files."""
    meta, evaluations, updates = read(run)
    base, last = evaluations[0], evaluations[-1]
    common = dict(zip(("algo", "variant", "seed"), plan, strict=True)) | {
        "env": "twentyq",
        "model": "tiny",
        "init": "base",
        "demos": "",
    }
    return by_split(common | cost(meta, updates), base, last)


def cost(meta: dict[str, Any], updates: Rows) -> dict[str, Any]:
    """What a run took, and the commit that ran."""
    phases = ("time/rollout", "time/train", "time/algorithm")
    return {
        "episodes": int(sum(row.get("episodes/count", 0) for row in updates)),
        "steps": len(updates),
        "seconds": round(sum(row.get(name, 0.0) for row in updates for name in phases), 1),
        "commit": meta["git"]["commit"],
    }


def by_split(common: dict[str, Any], base: dict[str, Any], last: dict[str, Any]) -> Rows:
    """A record for each split of two evaluations, the first and the last."""
    return [
        common
        | {
            "split": split,
            "tasks": tasks,
            "base": base[f"eval/{split}_success"],
            "final": last[f"eval/{split}_success"],
            "low": last[f"eval/{split}_success_low"],
            "high": last[f"eval/{split}_success_high"],
        }
        for split, tasks in (("test", 40), ("train", 56))
    ]


def critic_records(plan: Plan, run: Path) -> Rows:
    """What was measured of the critic at each evaluation."""
    found = []
    for row in read(run)[1]:
        measured = {k: v for k, v in row.items() if k.startswith(("nlac/", "critic/", "policy/kl"))}
        if measured:
            common = dict(zip(("algo", "variant", "seed"), plan, strict=True))
            found.append(common | {"step": row["step"]} | measured)
    return found


def preset(record: dict[str, Any]) -> str:
    """The shipped preset that repeats the run of a record."""
    played = "own_play" if record["algo"] == "sft" else record["algo"]
    return f"twentyq_{record['variant'] or played}"


def keep(record: dict[str, Any]) -> None:
    """Store the result on test objects for `agentrl reproduce`."""
    if record["split"] == "test":
        found = reproduce.Result(*(record[key] for key in ("split", "final", "low", "high")))
        reproduce.keep(preset(record), record["seed"], found)


def write(name: str, rows: Rows) -> None:
    """Replace a file of records."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / name).write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{len(rows)} records in docs/results/{name}")


def main() -> None:
    """Run all plans and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--no-controls", action="store_true")
    parser.add_argument("--write-only", action="store_true", help="what is done; train nothing")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "results")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    work = plans(options.seeds, not options.no_controls)
    if options.write_only:
        work = [plan for plan in work if is_done(options.folder / name_of(plan))]
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = list(pool.map(lambda plan: train(plan, options.steps, options.folder), work))
    done = list(zip(work, runs, strict=True))
    rows = [row for plan, run in done for row in records(plan, run)]
    write("twentyq.json", rows)
    for row in rows:
        keep(row)
    print(markdown(gather([str(run) for run in runs])))
    write("twentyq_critic.json", [row for plan, run in done for row in critic_records(plan, run)])


if __name__ == "__main__":
    main()
