"""Measures every learning figure of an environment anew: `make results`; with `--ablations` those
of NLAC's ablations on MATH or Twenty Questions, which go to docs/results/ENV_ablations.json.

Every run is a shipped preset; writes docs/results/ENV.json, ENV_critic.json and ENV_curves.json,
where the records of runs that are not in the folder stay, and agentrl_cli/cli/reproduce.json,
against which `agentrl reproduce` holds a later run. Each algorithm and control trains from the
shipped base on the same number of episodes, three seeds, one torch thread a run, `--jobs` runs side
by side. Who learns from demonstrations gets one fixed set of the expert's, SFT from the base,
StepAgent, DPO, PPO and RFT once more from that SFT. A run that is already done is not repeated;
with `--missing` one whose record is stored is left out, too, also where its folder is gone. The
table that it prints last is that of `agentrl report FOLDER --markdown`; `make pictures` and `make
results-page` then draw the curves and write docs/results.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Protocol

import yaml

from agentrl_cli.cli import reproduce
from agentrl_cli.config.compose import compose
from agentrl_cli.report.compare import gather, markdown
from agentrl_cli.report.records import LEARNING_TIMES
from agentrl_cli.rollout.demos import EXPERT_PREFIX
from agentrl_cli.runs.run import Run, step_of

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
AGENTRL = [sys.executable, "-m", "agentrl_cli.cli"]
CONTROLS = (
    "shuffled_outcomes", "shuffled_critiques", "empty_critiques", "frozen_critic", "majority",
)  # fmt: skip
MAJORITY_AGAIN = "empty_critiques"  # teaches what `majority` does, to the bit: one seed shows it
OWN_PLAY = "own_play"  # SFT on its own unfiltered play, the control that must stay flat
TASKS = {
    "twentyq": {"test": 40, "train": 44, "val": 12},
    "tau_mini": {"test": 30, "train": 90, "val": 30},
    "arithmetic": {"test": 200, "train": 1000, "val": 100},
    "wiki": {"test": 80, "train": 240, "val": 40},
}
Rows = list[dict[str, Any]]
PLAYERS = ("nlac", "self_ac", "grpo", "ppo", "archer", "rft")
STUDENTS = ("sft", "stepagent_implicit", "stepagent_inverse", "dpo")  # of demonstrations
FROM_SFT = (*STUDENTS[1:], "ppo_from_sft", "rft_from_sft")  # who starts from that SFT
SOURCES = (("nlac", "nlac_paper"), ("self_ac", "self_ac_slides"))  # to their letter
VARIANTS = {  # of algorithms; each is a preset, as each algorithm is
    "twentyq": (
        ("sft", OWN_PLAY),
        ("ppo", "ppo_from_sft"),
        ("rft", "rft_from_sft"),
        ("nlac", "plain_farewell"),  # told as little of a lost game as the others
        ("grpo", "graded_reward"),  # told as much
    ),
}
ABLATIONS = {  # of NLAC, each a preset: all where they are cheap, elsewhere the most telling
    "arithmetic": (
        "nlql", "self_distillation", "monte_carlo", "nlrl", "on_policy", "k1", "k8", "m2",
        "shared_critic", "guarded",
    ),
    "twentyq": ("shared_critic", "k1"),
}  # fmt: skip


class Plan(NamedTuple):
    """One run."""

    env: str
    algo: str
    variant: str
    seed: int

    @property
    def name(self) -> str:
        """The run's folder: nlac-shuffled_outcomes-s1."""
        return "-".join(filter(None, [self.algo, self.variant, f"s{self.seed}"]))

    @property
    def preset(self) -> str:
        """The shipped preset that says how it is run."""
        return preset(self._asdict())

    @property
    def start(self) -> Plan | None:
        """The run that it starts from; None: the base."""
        is_later = (self.variant or self.algo) in FROM_SFT
        return self._replace(algo="sft", variant="") if is_later else None

    def settings(self) -> list[str]:
        """The overrides of the run."""
        return [f"experiment={self.preset}", f"seed={self.seed}"]


def plans(env: str, seeds: list[int], controls: bool) -> list[Plan]:
    """Everything that is compared, seed by seed."""
    compared = [(algo, "") for algo in (*PLAYERS, *STUDENTS)]
    if controls:
        compared += [("nlac", control) for control in CONTROLS]
        compared += [*SOURCES, *VARIANTS.get(env, ())]
    return [
        Plan(env, algo, variant, seed)
        for seed in seeds for algo, variant in compared
        if variant != MAJORITY_AGAIN or seed == min(seeds)
    ]  # fmt: skip


def ablations(env: str, seeds: list[int]) -> list[Plan]:
    """NLAC without one of its parts, or with more of one."""
    return [Plan(env, "nlac", variant, seed) for variant in ABLATIONS[env] for seed in seeds]


def missing(work: Sequence[Plan], stored: Rows) -> list[Plan]:
    """The plans without a stored record of as many updates, behind the runs that these start
    from. A record of other weights must be deleted by hand."""
    known = {(row["algo"], row["variant"], row["seed"], row["steps"]) for row in stored}
    left = [
        plan for plan in work
        if (plan.algo, plan.variant, plan.seed, compose(plan.settings()).steps) not in known
    ]  # fmt: skip
    starts = [plan.start for plan in left if plan.start is not None]
    return list(dict.fromkeys([*starts, *left]))


class Startable(Protocol):
    """A run that starts from the base or from another run."""

    @property
    def name(self) -> str: ...

    @property
    def start(self) -> Startable | None: ...

    def settings(self) -> list[str]: ...


def train(plan: Startable, folder: Path) -> None:
    """Train one run unless it is done."""
    run = folder / plan.name
    if is_done(run):
        return
    if run.exists():
        raise SystemExit(f"{run} is there but not done; remove it")
    own = [*plan.settings(), f"runs={folder}", f"name={plan.name}"]
    own += [f"init={folder / plan.start.name}"] if plan.start else []
    with (folder / f"{plan.name}.log").open("w") as log:
        subprocess.run([*AGENTRL, "train", *own], check=True, cwd=ROOT, stdout=log, stderr=log)


def train_all(work: Sequence[Startable], folder: Path, jobs: int) -> None:
    """First what starts from the base, then what starts from one of those runs."""
    for later in (False, True):
        with ThreadPoolExecutor(jobs) as pool:
            group = [plan for plan in work if (plan.start is not None) is later]
            list(pool.map(lambda plan: train(plan, folder), group))


def remaining(work: Sequence[Plan], folder: Path, stored: Rows) -> str:
    """How many runs are left, and what playing and training will take them on one thread, by what
    the stored runs of the same kind took, or else all."""
    left = [plan for plan in work if not is_done(folder / plan.name)]
    took: dict[tuple[str, str], list[float]] = {}
    for row in stored:
        if row["split"] == "test":
            took.setdefault((row["algo"], row["variant"]), []).append(row["seconds"])
    known = {kind: fmean(seconds) for kind, seconds in took.items()}
    usual = fmean(known.values()) if known else 0.0
    minutes = sum(known.get((plan.algo, plan.variant), usual) for plan in left) / 60
    guessed = len({(plan.algo, plan.variant) for plan in left} - known.keys())
    time = f"about {minutes // 60:.0f} h {minutes % 60:.0f} min of one thread"
    unsure = f", {guessed} kinds of run guessed" if guessed else ""
    return f"{len(left)} of {len(work)} runs are left, {time}{unsure}"


def refuse_other_plans(work: list[Plan], folder: Path) -> None:
    """SystemExit where a finished run trained for another number of updates than its preset."""
    for plan in work:
        if is_done(folder / plan.name):
            refuse_other_steps(folder / plan.name, compose(plan.settings()).steps)


def refuse_other_steps(run: Path, steps: int) -> None:
    """SystemExit where a finished run trained for another number of updates."""
    found = step_of(Run(run).latest_checkpoint())
    if found != steps:
        raise SystemExit(f"{run} has {found} updates, not {steps}; remove it, or agentrl resume it")


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
    demos = yaml.safe_load((run / "config.yaml").read_text())["data"]["demos"]
    common = named(plan) | {
        "env": plan.env,
        "model": "tiny",
        "init": plan.start.algo if plan.start else "base",
        "demos": int(demos.removeprefix(EXPERT_PREFIX)) if demos else "",
    }
    return by_split(common | cost(meta, updates), base, last)


def named(plan: Plan) -> dict[str, Any]:
    """What tells the records of a plan from others of its environment."""
    return {"algo": plan.algo, "variant": plan.variant, "seed": plan.seed}


def cost(meta: dict[str, Any], updates: Rows) -> dict[str, Any]:
    """What a run took, and the commit that ran."""
    return {
        "episodes": int(sum(row.get("episodes/count", 0) for row in updates)),
        "steps": len(updates),
        "seconds": round(sum(map(seconds_of, updates)), 1),
        "commit": meta["git"]["commit"],
    }


def seconds_of(update: dict[str, Any]) -> float:
    """What an update took, play and training; no evaluation."""
    return sum(update.get(name, 0.0) for name in LEARNING_TIMES)


def by_split(common: dict[str, Any], base: dict[str, Any], last: dict[str, Any]) -> Rows:
    """A record for each split of two evaluations, the first and the last."""
    return [
        common
        | {
            "split": split,
            "tasks": TASKS[common["env"]][split],
            "base": base[f"eval/{split}_success"],
            "final": last[f"eval/{split}_success"],
            "low": last[f"eval/{split}_success_low"],
            "high": last[f"eval/{split}_success_high"],
        }
        for split in ("test", "train")
        if f"eval/{split}_success" in last
    ]


def critic_records(plan: Plan, run: Path) -> Rows:
    """What was measured of the critic at each evaluation."""
    found = []
    for row in read(run)[1]:
        measured = {k: v for k, v in row.items() if k.startswith(("nlac/", "critic/", "policy/kl"))}
        if measured:
            found.append(named(plan) | {"step": row["step"]} | measured)
    return found


def curve(plan: Plan, run: Path) -> dict[str, Any]:
    """Success as it was played for each update, and how many episodes and seconds of play and
    training the run had learnt from by then."""
    updates = read(run)[2]
    episodes = accumulate((int(row["episodes/count"]) for row in updates), initial=0)
    seconds = accumulate(map(seconds_of, updates), initial=0.0)
    return named(plan) | {
        "success": [round(row["episodes/success"], 4) for row in updates],
        "episodes": list(episodes)[:-1],
        "seconds": [round(spent, 1) for spent in seconds][:-1],
    }


def preset(record: dict[str, Any]) -> str:
    """The shipped preset that repeats the run of a record."""
    return f"{record['env']}_{record['variant'] or record['algo']}"


def keep(record: dict[str, Any]) -> None:
    """Store the result on test objects for `agentrl reproduce`."""
    if record["split"] == "test":
        found = reproduce.Result(*(record[key] for key in ("split", "final", "low", "high")))
        reproduce.store_result(preset(record), record["seed"], found)


def write(name: str, rows: Rows) -> None:
    """Put records in the place of those of the same runs; those of other runs stay."""
    file = RESULTS / name
    stored: Rows = json.loads(file.read_text()) if file.exists() else []
    kept = [row for row in stored if run_key(row) not in set(map(run_key, rows))]
    everything = sorted([*kept, *rows], key=run_key)
    file.write_text(json.dumps(everything, indent=1) + "\n")
    print(f"{len(rows)} records of {len(everything)} in docs/results/{name}")


def run_key(record: dict[str, Any]) -> tuple[str, str, str, int]:
    """What tells the run of a record from others of its file."""
    return record["algo"], record["variant"], str(record.get("demos", "")), record["seed"]


def main() -> None:
    """Run all plans and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="twentyq", choices=TASKS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--no-controls", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="algorithms and controls to run")
    parser.add_argument("--ablations", action="store_true", help="NLAC's, and nothing else")
    parser.add_argument("--write-only", action="store_true", help="what is done; train nothing")
    parser.add_argument("--plan", action="store_true", help="print what is left, and nothing else")
    parser.add_argument("--missing", action="store_true", help="what has no stored record")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="of the runs; runs/results/ENV by default")
    asked = parser.parse_args()
    if asked.ablations and asked.env not in ABLATIONS:
        parser.error(f"--ablations are those of --env {' and '.join(ABLATIONS)}")
    name = f"{asked.env}_ablations" if asked.ablations else asked.env
    folder = (asked.folder or ROOT / "runs" / "results" / name).resolve()
    compared = plans(asked.env, asked.seeds, not asked.no_controls)
    work = ablations(asked.env, asked.seeds) if asked.ablations else compared
    chosen = [plan for plan in work if not asked.only or (plan.variant or plan.algo) in asked.only]
    refuse_other_plans(work, folder)
    file = RESULTS / f"{name}.json"
    stored: Rows = json.loads(file.read_text()) if file.exists() else []
    chosen = missing(chosen, stored) if asked.missing else chosen
    print(f"{name}: {remaining(chosen, folder, stored)}", flush=True)
    if asked.plan:
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not asked.write_only:
        train_all(chosen, folder, asked.jobs)
    done = [(plan, folder / plan.name) for plan in work if is_done(folder / plan.name)]
    rows = [row for plan, run in done for row in records(plan, run)]
    write(f"{name}.json", rows)
    for row in rows:
        keep(row)
    print(markdown(gather([str(run) for _, run in done])))
    critics = [row for plan, run in done for row in critic_records(plan, run)]
    write(f"{name}_critic.json", critics)
    played = [(plan, run) for plan, run in done if (plan.variant or plan.algo) in PLAYERS]
    if played:
        write(f"{name}_curves.json", [curve(plan, run) for plan, run in played])


if __name__ == "__main__":
    main()
