"""Compare the algorithms of an environment at equal tuning: `python bench/results.py ENV`.

Every algorithm gets the same:

1. Trials of 12 updates, judged on the split `val`, with a seed that no comparison uses: some
   learning rates, then other sizes of the optimizer step at the best rate. While the best is at the
   edge, the next one is tried as well. Rates of heads and of NLAC's critic keep their ratio to the
   main rate; critics and discriminators of other methods keep their rate. A trial that diverges has
   success 0.
2. A longer run with the best settings. `val` chooses after how many updates to stop: the smallest
   number whose success is within 2 points of the best. If that is before the end, a second run has
   the next lower rate, and the better of both is taken: short trials can choose rates that are too
   high.
3. Runs with these settings and the seeds of the comparison, judged on the split `test`. One that
   diverges has success 0.

Two algorithms differ. The first 20 updates of `archer` train its critic alone, so its trials have
32 updates. It learns only where COMPARISONS names it, because it takes ten times as long as others.
An update of `sft` is a pass over all demonstrations, so its longer run has 24.
Ablations and controls have the settings of their algorithm. Those of NLAC stop after 12 updates,
where NLAC is evaluated, too. A run that is done is not repeated, and one that was
interrupted goes on. With --missing a stored record is enough: its run is not repeated, nor are the
trials of an algorithm if all are stored. The record must be of this commit, or of one that --also
names because its results are the same. So start all runs of a comparison from one commit (`git
worktree`). Each run has one thread. Several processes can share a folder. The trials go to
docs/results/ENV_trials.json, the results to ENV.json, ENV_critic.json and ENV_curves.json, those of
ablations to ENV_ablations.json, those of SmolLM2 to smollm2.json. ENV_base2 takes the settings of
ENV and starts from another initial model. Last, the script prints the settings that the recipe must
have.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parents[1]))

import yaml
from filelock import FileLock
from omegaconf import DictConfig, OmegaConf

from agentrl_cli.cli import reproduce
from agentrl_cli.config.compose import compose
from agentrl_cli.config.renames import PRESETS, preset_overrides
from agentrl_cli.core import files
from agentrl_cli.core.statistics import mean
from agentrl_cli.report.compare import gather, markdown
from agentrl_cli.report.records import PHASES, read_record
from agentrl_cli.rollout.demos import EXPERT_PREFIX
from agentrl_cli.runs.run import Run

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
AGENTRL = [sys.executable, "-m", "agentrl_cli.cli"]
CONTROLS = (
    "shuffled_outcomes", "shuffled_critiques", "empty_critiques", "frozen_critic", "majority",
)  # fmt: skip
OWN_PLAY = "own_play"  # SFT on its own unfiltered episodes, a control that must not improve
# what NLAC and GRPO know alike: NLAC without the hint after a lost game, GRPO with it as reward
EQUAL_INFORMATION = ("plain_farewell", "graded_reward")
# and NLAC without the right answer after a wrong one, GRPO and RFT with NLAC's first forecasts
PLAIN_ANSWER, FORECASTS = "nlac-plain_answer", ("grpo-frozen_forecast", "rft-frozen_forecast")
MEASURED_CONTROLS = {
    "arithmetic": (*CONTROLS, PLAIN_ANSWER, *FORECASTS),
    "twentyq": (*CONTROLS, OWN_PLAY, *EQUAL_INFORMATION, *FORECASTS),
    "tau_mini": ("frozen_critic",), "wiki": ("frozen_critic",),
}  # fmt: skip
ABLATIONS = {
    "arithmetic": (
        "nlql", "self_distillation", "monte_carlo", "nlrl", "on_policy", "k1", "k8",
        "m2", "shared_critic", "guarded",
    ),
    "twentyq": ("shared_critic", "k1"),
}  # fmt: skip
PLAYERS = ("nlac", "self_ac", "grpo", "ppo", "archer", "archer_small", "rft")
STUDENTS = ("sft", "stepagent_implicit", "stepagent_inverse", "dpo")  # of demonstrations
SOURCES = ("nlac_paper", "self_ac_slides")  # as in the paper and the slides
EVERYWHERE = (*STUDENTS, *PLAYERS, *SOURCES)
VAL_EPISODES = 600
GRID = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)  # of main learning rates
SIZES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of an optimizer step, relative to the recipe's
MAIN_RATE = {"stepagent_inverse": "algo.ppo.optimizer.lr"}
OTHER_RATES = {
    "nlac": ("algo.critic_optimizer.lr",), "ppo": ("algo.optimizer.head_lr",),
}  # fmt: skip
STEP_SIZE = {
    "nlac": "algo.advanced.minibatch_tokens", "stepagent_inverse": "algo.ppo.minibatch_tokens",
    "archer": "algo.actor_states",
}  # fmt: skip
TRIAL_STEPS, ARCHER_STEPS = 12, 32
HORIZONS = {"archer": (24, 48), "sft": (3, 6, 12, 24)}
PAUSED = 10
LONG_RUNS = ("long", "long_lower")  # the second with the next lower rate
NEAR_BEST = 0.02  # success on `val`, about the deviation of an evaluation with VAL_EPISODES
HEADLINE = ("nlac", "self_ac", "grpo", "rft", "sft", "stepagent_implicit", "stepagent_inverse")
MAIN = (*HEADLINE, "ppo")  # where the others are not compared, to save time
Rows = list[dict[str, Any]]
Changes = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The tasks, algorithms, trials and seeds of the comparison in an environment."""

    tasks: dict[str, int]  # by split
    names: tuple[str, ...] = tuple(name for name in EVERYWHERE if name != "archer")
    rates: tuple[float, ...] = (3e-5, 1e-4, 3e-4, 1e-3)
    step_sizes: tuple[float, ...] = (0.5, 2.0)
    extended: bool = True  # while the best rate or size is at the edge
    trial_seed: int = 20  # earlier trials of NLAC, Self-AC and PPO had others
    steps: tuple[int, ...] = (6, 12, 24, 48)  # to choose from; none: the recipe's
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)  # of HEADLINE; the others have the first three
    file: str = ""  # of the results; default: that of the environment
    of: str = ""  # the environment whose recipe and trials this one takes, from another base


# Of SmolLM2 a trial takes minutes. All start from one SFT, whose success its recipe has chosen.
SMOLLM2: dict[str, Any] = {
    "names": ("grpo", "rft", "self_ac", "nlac", "stepagent_implicit", "stepagent_inverse"),
    "rates": (3e-5, 1e-4, 3e-4), "extended": False, "step_sizes": (0.5,), "steps": (),
    "trial_seed": 10, "seeds": (0, 1, 2), "file": "smollm2",
}  # fmt: skip
COURIER: dict[str, Any] = SMOLLM2 | {"seeds": (0, 1, 2, 3, 4)}
# From another initial model, to show how far results depend on it. It is trained like the bundled
# one, into the folder of the runs: `python -m tools.tiny_models ENV seed=1 runs=FOLDER
# name=ENV_base2`.
BASE2: dict[str, Any] = {"names": ("nlac", "self_ac", "grpo", "rft"), "seeds": (0, 1, 2)}
TWENTYQ, ARITHMETIC = {"test": 40, "train": 44, "val": 12}, {"test": 200, "train": 1000, "val": 100}
COMPARISONS = {
    "twentyq": Comparison(tasks=TWENTYQ, names=EVERYWHERE),
    "twentyq_base2": Comparison(tasks=TWENTYQ, of="twentyq", **BASE2),
    "tau_mini": Comparison(tasks={"test": 30, "train": 90, "val": 30}, names=MAIN),
    "arithmetic": Comparison(tasks=ARITHMETIC),
    "arithmetic_base2": Comparison(tasks=ARITHMETIC, of="arithmetic", **BASE2),
    "wiki": Comparison(tasks={"test": 80, "train": 240, "val": 40}, names=MAIN),
    "arithmetic_smollm2": Comparison(tasks={"test": 100, "train": 480, "val": 85}, **SMOLLM2),
    "courier_smollm2": Comparison(tasks={"test": 3, "train": 3, "val": 3}, **COURIER),
}
TASKS = {env: comparison.tasks for env, comparison in COMPARISONS.items()}


def horizons(env: str, algo: str) -> tuple[int, ...]:
    """Return the numbers of updates of which `val` chooses one."""
    steps = COMPARISONS[env].steps
    return HORIZONS.get(algo, steps) if steps else ()


def seeds(env: str, what: str) -> tuple[int, ...]:
    """Return the seeds of the runs of an algorithm or ablation."""
    every = COMPARISONS[env].seeds
    return every if what in HEADLINE else every[:3]


class Trainable(Protocol):
    """A run that starts from the initial model or from another run."""

    @property
    def name(self) -> str: ...

    @property
    def start(self) -> Trainable | None: ...

    def settings(self) -> list[str]: ...


@dataclass(frozen=True)
class Plan:
    """A run of a comparison, or a trial. `what` is an algorithm, a preset or ALGO-ABLATION."""

    env: str
    what: str
    seed: int
    trial: str = ""
    changes: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.env}_{self.what}_{self.trial or f's{self.seed}'}"

    @property
    def options(self) -> dict[str, str]:
        """The options that are chosen: recipe, algo and, if it is one, ablation."""
        recipe = COMPARISONS[self.env].of or self.env
        preset = f"{recipe}_{self.what}"
        if preset in PRESETS and not self.what.startswith("archer"):  # that name was archer_small
            return dict(text.split("=") for text in preset_overrides(preset))
        algo, _, ablation = self.what.partition("-")
        return {"recipe": recipe, "algo": algo} | ({"ablation": ablation} if ablation else {})

    @property
    def algo(self) -> str:
        return self.options["algo"]

    @cached_property
    def config(self) -> DictConfig:
        """The configuration without changes."""
        options = [f"{group}={name}" for group, name in self.options.items()]
        return compose([*options, f"seed={self.seed}"])

    @property
    def start(self) -> Plan | None:
        """The run of the same seed that it starts from; None: the initial model."""
        if self.config.init is None:
            return None
        what = Path(self.config.init).name.removeprefix(f"{self.options['recipe']}_")
        what = what.removesuffix(f"_s{self.seed}")
        require_tuned(self.env, what)
        return best_plan(self.env, what, self.seed)

    def settings(self) -> list[str]:
        """The overrides of the run."""
        options = [f"{group}={name}" for group, name in self.options.items()]
        changes = [f"{key}={value:g}" for key, value in self.changes]
        judged = [
            "eval.splits=[val]", f"eval.episodes_per_task={VAL_EPISODES // self._val_tasks}",
            "eval.baseline=false",
        ]  # fmt: skip
        if self.algo == "nlac":
            judged.append("algo.diagnostics.num_states=0")
        greedy = bool(COMPARISONS[self.env].steps) and not self.trial
        always = [f"seed={self.seed}", "hardware.threads=1", f"eval.greedy={greedy}".lower()]
        return [*options, *always, *(judged if self.trial else ()), *changes]

    @property
    def _val_tasks(self) -> int:
        return COMPARISONS[self.env].tasks["val"]


# running


def train(plan: Trainable, folder: Path) -> Path:
    """Return the folder of a run. Train it, and before it the run that it starts from, unless they
    are done. Raises SystemExit if the folder has a run with other settings."""
    run, note = folder / plan.name, folder / f"{plan.name}.settings"
    start = [f"init={train(plan.start, folder)}"] if plan.start else []
    if isinstance(plan, Plan) and COMPARISONS[plan.env].of and not start:
        start = [f"init={second_base(plan.env, folder)}"]
    with FileLock(folder / f"{plan.name}.lock"):
        if run.exists() and not (note.exists() and note.read_text() == fingerprint(plan)):
            raise SystemExit(f"{run} has other settings; remove it to repeat the run")
        note.write_text(fingerprint(plan))
        if not is_done(run):
            if run.exists() and not list(run.glob("checkpoints/*")):
                shutil.rmtree(run)  # it was interrupted before its first checkpoint
            if run.exists():
                require_valid(run)
            (run / "failed-batch.json").unlink(missing_ok=True)
            own = [f"runs={folder}", f"name={plan.name}", *start]
            command = ["resume", str(run)] if run.exists() else ["train", *plan.settings(), *own]
            print(plan.name, flush=True)
            with (folder / f"{plan.name}.log").open("a") as log:
                subprocess.run(
                    [*AGENTRL, *command], check=True, cwd=ROOT, stdout=log, stderr=log
                )  # fmt: skip
    require_valid(run)
    return run


def second_base(env: str, folder: Path) -> Path:
    """Return the run of another initial model. Raises SystemExit if it is not done, or of another
    commit than the comparison."""
    run, of = folder / env, COMPARISONS[env].of
    if not is_done(run):
        command = f"python -m tools.tiny_models {of} seed=1 runs={folder} name={env}"
        raise SystemExit(f"{run} is missing or not done; train it: {command}")
    require_valid(run)
    return run


def require_valid(run: Path) -> None:
    """Raise SystemExit if a run, or a part of it, is of a commit whose results may differ."""
    meta = json.loads((run / "meta.json").read_text())
    for part in (meta, *meta.get("resumed", [])):
        if (made := part["git"]["commit"]) not in valid():
            raise SystemExit(f"{run} is of commit {made}; remove it, or give --also {made}")


def fingerprint(plan: Trainable) -> str:
    """Return a hash of all settings of a run and of the run that it starts from."""
    settings = OmegaConf.to_container(compose(plan.settings()))
    assert isinstance(settings, dict)
    own = {key: value for key, value in settings.items() if key not in ("init", "name", "runs")}
    start = fingerprint(plan.start) if plan.start else None
    return hashlib.sha256(json.dumps([own, start], sort_keys=True).encode()).hexdigest()[:12]


def train_all(work: Sequence[Trainable], folder: Path, jobs: int) -> None:
    """Train runs side by side."""
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda plan: train(plan, folder), work))


def is_done(run: Path) -> bool:
    """Return whether a run has finished."""
    meta = run / "meta.json"
    return meta.exists() and json.loads(meta.read_text())["status"] == "done"


# tuning


def at_rate(plan: Plan, rate: float) -> Changes:
    """Return the changes that give a plan's algorithm a learning rate."""
    main = MAIN_RATE.get(plan.algo, "algo.optimizer.lr")
    own = OmegaConf.select(plan.config, main)
    others = {key: OmegaConf.select(plan.config, key) for key in OTHER_RATES.get(plan.algo, ())}
    scaled = {key: float(f"{v * rate / own:.2g}") for key, v in others.items() if v is not None}
    return {main: rate, **scaled}


def at_size(plan: Plan, factor: float) -> Changes:
    """Return the changes that give a plan's algorithm a larger or smaller optimizer step."""
    key = STEP_SIZE.get(plan.algo, "algo.minibatch_tokens")
    return {key: int(OmegaConf.select(plan.config, key) * factor)}


class Tuning:
    """The trials of an algorithm, which `run` does one after another. Those in `stored` are not
    repeated."""

    def __init__(self, env: str, what: str, folder: Path, stored: Rows) -> None:
        self.env, self.what, self.folder, self.stored = env, what, folder, stored
        self.comparison = COMPARISONS[env]
        self.plan = Plan(env, what, self.comparison.trial_seed)
        self.rows: Rows = []

    @property
    def is_complete(self) -> bool:
        """Whether all trials are stored. Then none is repeated, although the recipe, from which
        the sizes of a step are counted, may have taken their values since."""
        names, steps = {row["trial"] for row in self.stored}, horizons(self.env, self.plan.algo)
        if "long" not in names or any(row["commit"] not in valid() for row in self.stored):
            return False
        at_end = horizon(better_long_run(self.stored, steps)) == max(steps)
        return at_end or "long_lower" in names

    def run(self) -> None:
        """Do the trials and store them."""

        def at(rate: float) -> float:
            return self.judge(f"rate_{rate:g}", at_rate(self.plan, rate))

        rates = self.search({rate: at(rate) for rate in self.comparison.rates}, GRID, at)
        best = max(rates, key=rates.__getitem__)

        def of(size: float) -> float:
            return self.judge(f"size_{size:g}", at_rate(self.plan, best) | at_size(self.plan, size))

        tried = {size: of(size) for size in self.comparison.step_sizes}
        self.search({1.0: rates[best]} | tried, SIZES, of)
        if steps := horizons(self.env, self.plan.algo):
            longest = {"steps": max(steps), "eval_every": min(steps)}
            changes = best_trial(self.rows)["changes"] | longest
            self.judge("long", changes)
            lower = GRID[max(0, GRID.index(best) - 1)]
            if lower < best and horizon(better_long_run(self.rows, steps)) < max(steps):
                self.judge("long_lower", changes | at_rate(self.plan, lower))
        write(f"{self.env}_trials.json", self.rows)  # without those that were not visited

    def search(
        self, success: dict[float, float], grid: Sequence[float], judge: Callable[[float], float]
    ) -> dict[float, float]:
        """Return the success by value of the grid, extended while the best value is at the edge."""
        while self.comparison.extended and (value := next_value(success, grid)):
            success[value] = judge(value)
        return success

    def judge(self, trial: str, changes: Changes) -> float:
        """Run a trial, store it, and return its last success on `val`; 0 if it diverged."""
        if COMPARISONS[self.env].steps:
            steps = ARCHER_STEPS if self.plan.algo == "archer" else TRIAL_STEPS
            changes = {"steps": steps} | changes
        plan = replace(self.plan, trial=trial, changes=tuple(changes.items()))
        common = named(plan) | {"trial": trial, "changes": changes, "settings": fingerprint(plan)}
        rows = [row for row in self.stored if row == row | common and row.get("commit") in valid()]
        if not rows:
            rows = [common | row for row in judged(plan, self.folder)]
        self.rows += rows
        self.stored = [row for row in self.stored if row["trial"] != trial]
        write(f"{self.env}_trials.json", [*self.rows, *self.stored])
        print(plan.name, changes, [round(row["val"], 3) for row in rows], flush=True)
        return rows[-1]["val"]


def judged(plan: Plan, folder: Path) -> Rows:
    """Run a trial and return its evaluations on `val` with its cost."""
    try:
        run = train(plan, folder)
    except subprocess.CalledProcessError:
        run = folder / plan.name
        if not has_diverged(run):
            raise
        lost = {"step": dict(plan.changes).get("steps", 0), "val": 0.0, "failed": True}
        return [*evaluated(run), lost | {"commit": commit()}]
    return evaluated(run)


def has_diverged(run: Path) -> bool:
    """Return whether a run that failed had numbers that were not finite."""
    if (run / "failed-batch.json").exists():
        return True
    meta = run / "meta.json"
    return meta.exists() and "not finite" in (json.loads(meta.read_text()).get("error") or "")


def evaluated(run: Path) -> Rows:
    """Return the evaluations of a trial on `val` with the cost of the trial."""
    meta, rows = json.loads((run / "meta.json").read_text()), metrics(run)
    spent = cost(meta, [row for row in rows if "time/rollout" in row])
    evaluations = [row for row in rows if "eval/val_success" in row]
    return [{"step": r["step"], "val": r["eval/val_success"]} | spent for r in evaluations]


def next_value(success: dict[float, float], grid: Sequence[float]) -> float | None:
    """Return the value of the grid that extends values whose best is the highest or lowest."""
    best = max(success, key=success.__getitem__)
    place = grid.index(best) + (best == max(success)) - (best == min(success))
    return grid[place] if 0 <= place < len(grid) and grid[place] not in success else None


def best_trial(rows: Rows) -> dict[str, Any]:
    """Return the last evaluation of the trial whose success is the highest."""
    last = {row["trial"]: row for row in rows if row["trial"] not in LONG_RUNS}
    return max(last.values(), key=lambda row: row["val"])


def better_long_run(rows: Rows, steps: Sequence[int]) -> Rows:
    """Return the evaluations after `steps` updates of the long run whose success is the highest."""
    runs = [[r for r in rows if r["trial"] == name and r["step"] in steps] for name in LONG_RUNS]
    return max(runs, key=lambda run: max((row["val"] for row in run), default=-1.0))


def trials(env: str, what: str) -> Rows:
    """Return the stored trials of an algorithm."""
    rows, seed = load(f"{COMPARISONS[env].of or env}_trials.json"), COMPARISONS[env].trial_seed
    own = [row for row in rows if row["seed"] == seed]
    return [row for row in own if (row["variant"] or row["algo"]) == what]


def require_tuned(env: str, what: str) -> None:
    """Raise SystemExit if the trials of an algorithm should be complete and are not."""
    if not (COMPARISONS[env].steps and is_tuned(what)):
        return
    if not any(row["trial"] == "long" for row in trials(env, what)):
        raise SystemExit(f"the trials of {what} in {env} are not done; tune it first")


def best_plan(env: str, what: str, seed: int) -> Plan:
    """Return the run with the settings that the trials chose, or with those of the recipe if there
    were none. An ablation or control has the settings of its algorithm, and one of NLAC at most
    TRIAL_STEPS updates. NLAC is evaluated after as many, too."""
    plan = Plan(env, what, seed)
    for name in (what, plan.algo):
        if rows := trials(env, name):
            steps = horizons(env, plan.algo)
            long = better_long_run(rows, steps)
            changes = long[0]["changes"] if long else best_trial(rows)["changes"]
            changes = {key: value for key, value in changes.items() if key != "eval_every"}
            if long:
                most = TRIAL_STEPS if name != what and plan.algo == "nlac" else max(steps)
                changes["steps"] = min(horizon(long), most)
                if what == "nlac" and env in ABLATIONS and changes["steps"] > TRIAL_STEPS:
                    changes["eval_every"] = TRIAL_STEPS
            return Plan(env, what, seed, "", tuple(changes.items()))
    return plan


def horizon(long: Rows) -> int:
    """Return the smallest number of updates whose success is within NEAR_BEST of the best."""
    best = max(row["val"] for row in long)
    return min(row["step"] for row in long if row["val"] >= best - NEAR_BEST)


# records


def metrics(run: Path) -> Rows:
    """Return all rows of a run's metrics; none if it failed before the first."""
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def read(run: Path) -> tuple[dict[str, Any], Rows, Rows]:
    """Return meta.json, the evaluations and the updates of a run."""
    rows = metrics(run)
    evaluations = [row for row in rows if "eval/test_success" in row]
    updates = [row for row in rows if "time/rollout" in row]
    return json.loads((run / "meta.json").read_text()), evaluations, updates


def named(plan: Plan) -> dict[str, Any]:
    """Return what tells the records of a plan from others."""
    variant = plan.what.removeprefix(f"{plan.algo}-") if plan.what != plan.algo else ""
    return {"env": plan.env, "algo": plan.algo, "variant": variant, "seed": plan.seed}


def records(plan: Plan, run: Path) -> Rows:
    """Return one record per split."""
    meta, evaluations, updates = read(run)
    demos = yaml.safe_load((run / "config.yaml").read_text())["data"]["demos"]
    common = named(plan) | {
        "model": "smollm2" if plan.env.endswith("smollm2") else "tiny",
        "init": plan.start.what if plan.start else "base",
        "demos": int(demos.removeprefix(EXPERT_PREFIX)) if demos else "",
        "minutes": round(sum(map(seconds_of, [*updates, *evaluations])) / 60, 1),
        "start_seconds": seconds_before(plan, run),
        "settings": fingerprint(plan),
    }
    rows = by_split(common | cost(meta, updates), evaluations[0], evaluations[-1])
    ends = {"base": 0, "final": evaluations[-1]["step"]}
    rows[0] |= {f"{end}_by_task": by_task(run, step) for end, step in ends.items()}
    if has_diverged(run):
        nothing = " ".join("0" for _ in rows[0]["base_by_task"].split())
        for row in rows:
            row |= {"final": 0.0, "low": 0.0, "high": 0.0, "final_greedy": 0.0, "failed": True}
        rows[0] |= {"final_by_task": nothing}
    if early := [row for row in evaluations[1:-1] if row["step"] == TRIAL_STEPS]:
        for row in rows:
            row["short"] = cost(meta, updates[:TRIAL_STEPS]) | {
                "final": early[0][f"eval/{row['split']}_success"],
                "final_greedy": early[0].get(f"eval/{row['split']}_greedy_success"),
            }
        rows[0]["short"]["final_by_task"] = by_task(run, TRIAL_STEPS)
    return rows


def seconds_before(plan: Plan, run: Path) -> float:
    """Return the seconds of the run that a run starts from; 0 for the initial model."""
    if plan.start is None:
        return 0.0
    before = run.parent / plan.start.name
    meta, _, updates = read(before)
    return cost(meta, updates)["seconds"] + seconds_before(plan.start, before)


def by_task(run: Path, step: int) -> str:
    """Return the success of each task in an evaluation of the first split, in percent and in the
    order of the tasks' names, such as `60 0 100`."""
    outcomes = read_record(Run(run)).outcomes(step) or {}
    return " ".join(f"{100 * mean(row):.3g}" for _, row in sorted(outcomes.items()))


@cache
def commit() -> str:
    """Return the commit of the working tree."""
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout[:-1]


def changed_code() -> str:
    """Return the files of the package and its settings that are not committed. The results of
    `agentrl reproduce`, which this script writes, may differ."""
    written = f":!{reproduce.STORED.relative_to(ROOT)}"
    command = ["git", "status", "--porcelain", "agentrl_cli", "conf", written]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


ALSO: list[str] = []  # other commits that give the same results


def valid() -> list[str]:
    """Return the commits whose records are not repeated."""
    return [commit(), *ALSO]


def cost(meta: dict[str, Any], updates: Rows) -> dict[str, Any]:
    """Return the cost of a run, and the commit that ran."""
    return {
        "episodes": int(sum(row.get("episodes/count", 0) for row in updates)),
        "steps": len(updates),
        "seconds": round(sum(seconds_without_pauses(updates)), 1),
        "commit": meta["git"]["commit"],
    }


def seconds_without_pauses(rows: Rows) -> list[float]:
    """Return the seconds of each update or evaluation. One that took PAUSED times the median counts
    as the median, because its process was stopped for a while."""
    spent = [seconds_of(row) for row in rows]
    usual = median(spent) if spent else 0.0
    return [usual if seconds > PAUSED * usual else seconds for seconds in spent]


def seconds_of(row: dict[str, Any]) -> float:
    """Return the seconds of an update or an evaluation."""
    return sum(row.get(f"time/{phase}", 0.0) for phase in PHASES)


def store_hours(env: str, folder: Path) -> None:
    """Write the hours of one thread that all runs of a comparison in a folder took: trials, final
    runs and what they start from, with their evaluations."""
    with FileLock(RESULTS / ".lock"):
        file = RESULTS / "hours.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        kinds = (lambda row: "time/eval" not in row), (lambda row: "time/eval" in row)
        runs = [metrics(run) for run in folder.iterdir()]
        spent = sum(
            sum(seconds_without_pauses(list(filter(kind, rows)))) for rows in runs for kind in kinds
        )
        text = json.dumps(dict(sorted((known | {env: round(spent / 3600, 2)}).items())), indent=1)
        files.replace_text(file, text + "\n")


def by_split(common: dict[str, Any], base: dict[str, Any], last: dict[str, Any]) -> Rows:
    """Return a record for each split of the first and the last evaluation."""
    return [
        common
        | {
            "split": split,
            "tasks": TASKS[common["env"]][split],
            "base": base[f"eval/{split}_success"],
            "final": last[f"eval/{split}_success"],
            "low": last[f"eval/{split}_success_low"],
            "high": last[f"eval/{split}_success_high"],
            "base_greedy": base.get(f"eval/{split}_greedy_success"),
            "final_greedy": last.get(f"eval/{split}_greedy_success"),
        }
        for split in ("test", "train")
        if f"eval/{split}_success" in last
    ]


def critic_records(plan: Plan, run: Path) -> Rows:
    """Return what each evaluation measured of the critic."""
    found = []
    for row in read(run)[1]:
        measured = {k: v for k, v in row.items() if k.startswith(("nlac/", "critic/", "policy/kl"))}
        if measured:
            found.append(named(plan) | {"step": row["step"]} | measured)
    return found


def curve(plan: Plan, run: Path) -> dict[str, Any]:
    """Return the success of the episodes of each update, with the episodes and seconds before."""
    updates = read(run)[2]
    episodes = accumulate((int(row["episodes/count"]) for row in updates), initial=0)
    seconds = accumulate(seconds_without_pauses(updates), initial=0.0)
    return named(plan) | {
        "success": [round(row["episodes/success"], 4) for row in updates],
        "episodes": list(episodes)[:-1],
        "seconds": [round(spent, 1) for spent in seconds][:-1],
    }


def preset(plan: Plan) -> str | None:
    """Return the name under which `agentrl reproduce` repeats a run."""
    if COMPARISONS[plan.env].of:
        return None
    options = [f"{group}={name}" for group, name in plan.options.items()]
    return next((name for name in PRESETS if preset_overrides(name) == options), None)


def load(name: str) -> Rows:
    """Return stored records; none if the file is missing."""
    file = RESULTS / name
    return json.loads(file.read_text()) if file.exists() else []


def write(name: str, rows: Rows) -> None:
    """Replace the stored records of the same runs; the others stay."""
    known = set(map(run_key, rows))
    with FileLock(RESULTS / ".lock"):
        kept = [row for row in load(name) if run_key(row) not in known]
        everything = sorted([*kept, *rows], key=run_key)
        files.replace_text(RESULTS / name, json.dumps(everything, indent=1) + "\n")
    print(f"{len(rows)} records of {len(everything)} in docs/results/{name}")


def run_key(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values that identify the run of a record in its file."""
    names = [str(record.get(key, "")) for key in ("env", "algo", "variant", "demos")]
    return *names, record["seed"]


def result_name(plan: Plan) -> str:
    """Return the beginning of the names of the files with a plan's results."""
    name = COMPARISONS[plan.env].file or plan.env
    return f"{name}_ablations" if plan.what in ABLATIONS.get(plan.env, ()) else name


def store(plan: Plan, run: Path) -> None:
    """Write the records of a run that is done."""
    name, rows = result_name(plan), records(plan, run)
    write(f"{name}.json", rows)
    for row in rows:
        if row["split"] == "test" and (known := preset(plan)) and plan.what == plan.algo:
            found = reproduce.Result(*(row[key] for key in ("split", "final", "low", "high")))
            with FileLock(RESULTS / ".lock"):
                reproduce.store_result(known, row["seed"], found)
    curves = [curve(plan, run)] if plan.what in PLAYERS else []
    for kind, found in (("critic", critic_records(plan, run)), ("curves", curves)):
        if found:
            write(f"{name}_{kind}.json", found)


def is_tuned(what: str) -> bool:
    """Return whether a name gets trials of its own: all but controls and ablations."""
    return what in {name for comparison in COMPARISONS.values() for name in comparison.names}


def is_stored(plan: Plan) -> bool:
    """Return whether the results have a record of a run with the same settings."""
    common, rows = named(plan) | {"settings": fingerprint(plan)}, load(f"{result_name(plan)}.json")
    return any(row == row | common and row["commit"] in valid() for row in rows)


def tune(env: str, what: str, folder: Path, missing: bool) -> None:
    """Do the trials of an algorithm, or those that have no record."""
    if of := COMPARISONS[env].of:
        if not any(row["trial"] == "long" for row in trials(of, what)):
            raise SystemExit(f"{what} has no complete trials in {of}; run that comparison first")
    elif is_tuned(what):
        tuning = Tuning(env, what, folder, trials(env, what) if missing else [])
        if not tuning.is_complete:
            tuning.run()


def compare(env: str, what: str, folder: Path, missing: bool) -> None:
    """Train an algorithm with its best settings, with each seed or those that have no record."""
    for seed in seeds(env, what):
        plan = best_plan(env, what, seed)
        require_tuned(env, what if is_tuned(what) else plan.algo)
        if missing and is_stored(plan):
            continue
        run = folder / plan.name
        try:
            train(plan, folder)
        except subprocess.CalledProcessError:
            if not has_diverged(run):
                raise
        store(plan, run)


def main() -> None:
    """Run what is not done, and store the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env", choices=COMPARISONS)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="algorithms and ablations to run")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--folder", type=Path, help="of the runs; default: runs/results/ENV")
    parser.add_argument("--missing", action="store_true", help="only what has no record")
    parser.add_argument("--also", nargs="+", default=[], metavar="COMMIT", help="see above")
    parser.add_argument("--trials", action="store_true", help="only the trials")
    asked = parser.parse_args()
    ALSO.extend(asked.also)
    if changed := changed_code():
        raise SystemExit(f"commit first, so that the records name their code:\n{changed}")
    folder = (asked.folder or ROOT / "runs" / "results" / asked.env).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    others = (*MEASURED_CONTROLS.get(asked.env, ()), *ABLATIONS.get(asked.env, ()))
    names = asked.only or (*COMPARISONS[asked.env].names, *others)
    failed: list[str] = []

    def measure(what: str) -> None:
        try:
            tune(asked.env, what, folder, asked.missing)
            if not asked.trials:
                compare(asked.env, what, folder, asked.missing)
        except (Exception, SystemExit) as error:  # the others go on
            failed.append(f"{what}: {error}")
            print(failed[-1], file=sys.stderr, flush=True)

    with ThreadPoolExecutor(asked.jobs) as pool:
        first = [name for name in names if name == "sft"]  # others start from it
        last = [name for name in names if not is_tuned(name)]  # with the settings of others
        rest = [name for name in names if name not in (*first, *last)]
        for group in (first, rest, last):
            list(pool.map(measure, group))
    if failed:
        raise SystemExit("\n".join(failed))
    if asked.trials:
        return
    if not asked.only:
        store_hours(asked.env, folder)
    plans = [best_plan(asked.env, what, s) for what in names for s in seeds(asked.env, what)]
    runs = [str(folder / plan.name) for plan in plans if is_done(folder / plan.name)]
    print(markdown(gather(runs)) if runs else "no run")
    for what in names:
        plan = best_plan(asked.env, what, 0)
        changes = [(key, value) for key, value in plan.changes if key != "eval_every"]
        own = {key: OmegaConf.select(plan.config, key) for key, _ in changes}
        if differing := {key: value for key, value in changes if own[key] != value}:
            print(f"the recipe must have for {what}: {differing}")


if __name__ == "__main__":
    main()
