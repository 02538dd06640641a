"""Diagnose every algorithm that has a critic, over several seeds: `python bench/diagnostics.py`.

Writes docs/results/diagnostics.json. The measurements of each arm and seed are kept in the folder
`runs/diagnostics`, so an interrupted run goes on where it stopped. Each process has one thread.

The same for the critic of NLAC with a pretrained model, after it has learned the form of the texts:

    python -m tools.tiny_models courier_smollm2
    python bench/diagnostics.py --pretrained RUN

RUN is the run of the first command. Writes docs/results/diagnostics_smollm2.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.config.compose import compose_checked
from agentrl_cli.core.statistics import mean, student
from agentrl_cli.exact_values import Arm, Row, arms, auc_keys, rows_of_critic, run_arm

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
NAMES = (
    "nlac", "self_ac", "ppo", "archer", "archer_small", "stepagent_implicit", "stepagent_inverse",
)  # fmt: skip
ALGOS = {name: [f"algo={name}"] for name in NAMES} | {
    "self_ac_chance": ["algo=self_ac", "env.loss=0.5", "algo.gae_lambda=0.5"]
}
SEEDS = defaultdict(lambda: 3, {"nlac": 5, "self_ac_chance": 5})
TOGETHER = ("self_ac_chance",)  # critic and policy learn from the start
WITH_CONTROLS = ("nlac", "self_ac")
CRITIC_UPDATES, POLICY_UPDATES, EVERY = 12, 12, 4
PRETRAINED = (
    "model=smollm2", "prompts=tiny", "rollout.max_new_tokens=8", "rollout.max_seq_len=512",
)  # fmt: skip
AUC_OF_ARM = {  # names of figures
    "monte carlo": "nlac_monte_carlo_auc", "shuffled outcomes": "nlac_shuffled_outcomes_auc",
    "shuffled next states": "nlac_shuffled_states_auc", "frozen critic": "nlac_frozen_auc",
}  # fmt: skip
Runs = dict[str, list[dict[str, list[Row]]]]  # algorithm -> seeds -> arm -> measurements


def arms_of(algo: str, seed: int, overrides: Sequence[str]) -> list[Arm]:
    """Return the arms of an algorithm with a seed: itself, and its controls."""
    overrides = ["recipe=courier", f"seed={seed}", *overrides]
    base = Arm(algo, overrides, CRITIC_UPDATES, POLICY_UPDATES, EVERY)
    if algo in TOGETHER:
        return [replace(base, critic_updates=0)]
    return arms(compose_checked(overrides), base) if algo in WITH_CONTROLS else [base]


def critic_arms(row: list[Arm]) -> list[Arm]:
    """Return the arms for a large model: no training of the policy, no Monte Carlo, and one update
    of the frozen critic, which changes nothing."""
    return [
        replace(arm, policy_updates=0, critic_updates=1 if "frozen" in arm.name else CRITIC_UPDATES)
        for arm in row
        if arm.name != "monte carlo"
    ]


def run_missing(todo: dict[Path, Arm], workers: int) -> None:
    """Run the arms whose file does not exist, and write their measurements."""
    missing = [file for file in todo if not file.exists()]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        rows_of = pool.map(run_arm, [todo[file] for file in missing])
        for file, rows in zip(missing, rows_of, strict=True):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(rows))
            print(f"{file.stem}: {rows[-1]}", flush=True)


def measured(todo: dict[str, list[list[Arm]]], folder: Path, workers: int) -> Runs:
    """Return the measurements of all arms: algorithm -> seeds -> arms. Run what is missing."""

    def file(algo: str, arm: Arm) -> Path:
        seed = next(text for text in arm.overrides if text.startswith("seed="))[5:]
        return folder / f"{algo}-{arm.name.replace(' ', '_')}-s{seed}.json"

    every = {file(algo, arm): arm for algo, seeds in todo.items() for row in seeds for arm in row}
    run_missing(every, workers)
    return {
        algo: [{arm.name: json.loads(file(algo, arm).read_text()) for arm in row} for row in seeds]
        for algo, seeds in todo.items()
    }


def critic(runs: Runs, algo: str, arm: str, key: str) -> list[float]:
    """Return a score of a critic by seed, at the end of the critic's training."""
    updates = 0 if algo in TOGETHER else CRITIC_UPDATES
    return [rows_of_critic(run[arm], updates)[-1][key] for run in runs[algo]]


def auc(runs: Runs, algo: str, arm: str) -> list[float]:
    """Return the AUC by seed, averaged over the numbers of turns left."""
    rows = [critic(runs, algo, arm, key) for key in auc_keys(runs[algo][0][arm][0])]
    return [mean(row) for row in zip(*rows, strict=True)]


def critic_figures(runs: Runs) -> dict[str, list[float]]:
    """Return the figures of NLAC's critic and its controls by seed."""
    arms_run = runs["nlac"][0]
    return {
        **{
            f"nlac_backup_auc_d{key[4:]}": critic(runs, "nlac", "nlac", key)
            for key in auc_keys(arms_run["nlac"][0])
        },
        **{name: auc(runs, "nlac", arm) for arm, name in AUC_OF_ARM.items() if arm in arms_run},
    }


def at_end(runs: Runs, algo: str, arm: str, key: str) -> list[float]:
    """Return a score by seed, after all updates."""
    return [run[arm][-1][key] for run in runs[algo]]


def state_figures(runs: Runs) -> dict[str, list[float]]:
    """Return the figures of critics of states by seed."""
    keys = {"bias": "v_bias", "r2": "v_r2", "sign": "advantage_sign"}
    return {
        **{
            f"{algo}_{name}": critic(runs, algo, algo, key)
            for algo in ("self_ac", "self_ac_chance", "ppo")
            for key, name in keys.items()
        },
        "turn_number_r2": critic(runs, "self_ac", "self_ac", "r2_turn"),
        "grpo_advantage_sign": critic(runs, "self_ac", "self_ac", "sign_grpo"),
        "grpo_chance_advantage_sign": critic(runs, "self_ac_chance", "self_ac_chance", "sign_grpo"),
        "self_ac_shuffled_v_r2": critic(runs, "self_ac", "shuffled rewards", "r2"),
    }


def figures(runs: Runs) -> dict[str, list[float]]:
    """Return every figure by seed."""

    def gap(arm: str, value: str) -> list[float]:
        estimates, exact = (critic(runs, "nlac", arm, key) for key in ("estimate", value))
        return [abs(one - other) for one, other in zip(estimates, exact, strict=True)]

    held = [at_end(runs, "nlac", "nlac", key) for key in auc_keys(runs["nlac"][0]["nlac"][0])]
    ends = [at_end(runs, "nlac", "nlac", key) for key in ("estimate", "policy_value")]
    gap_at_end = [abs(one - other) for one, other in zip(*ends, strict=True)]
    arms_of_policy = {"": "nlac", "_frozen": "frozen critic", "_shuffled": "shuffled outcomes"}
    return {
        **critic_figures(runs),
        "nlac_backup_auc_end": [min(row) for row in zip(*held, strict=True)],
        "nlac_backup_gap_q_pi": gap("nlac", "policy_value"),
        "nlac_backup_gap_q_pi_end": gap_at_end,
        "nlac_backup_gap_q_mu": gap("nlac", "behaviour_value"),
        "nlac_monte_carlo_gap_q_mu": gap("monte carlo", "behaviour_value"),
        **{
            f"nlac_policy_success{suffix}": at_end(runs, "nlac", arm, "success")
            for suffix, arm in arms_of_policy.items()
        },
        **state_figures(runs),
        **{
            f"{algo}_q_auc": auc(runs, algo, algo)
            for algo in ("archer", "archer_small", "stepagent_implicit", "stepagent_inverse")
        },
        **{
            f"{algo}_policy_success": at_end(runs, algo, algo, "success")
            for algo in ("archer", "archer_small")
        },
    }


def with_interval(name: str, values: list[float]) -> dict[str, float]:
    """Return the mean of the values of all seeds and the ends of its 95 % interval, by Student's
    t."""
    centre, half = mean(values), 0.0
    if len(values) > 1:
        half = student(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    ends = {name: centre, f"{name}_low": centre - half, f"{name}_high": centre + half}
    return {key: round(value, 4) for key, value in ends.items()}


def store(result: str, table: dict[str, list[float]]) -> None:
    """Write the figures with their intervals to a file of docs/results."""
    rows = [with_interval(name, values) for name, values in table.items()]
    found = {key: value for row in rows for key, value in row.items()}
    (RESULTS / result).write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    """Run what is missing and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "diagnostics")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pretrained", metavar="RUN", help="that taught a model the form")
    parser.add_argument("overrides", nargs="*", help="of the pretrained model, as hardware=gpu")
    given = parser.parse_args()
    if given.pretrained:
        overrides = ["algo=nlac", f"init={given.pretrained}", *PRETRAINED, *given.overrides]
        rows = [arms_of("nlac", seed, overrides) for seed in given.seeds or [0, 1]]
        todo = {"nlac": [critic_arms(row) for row in rows]}
        runs = measured(todo, given.folder.with_name("diagnostics_smollm2"), given.workers)
        return store("diagnostics_smollm2.json", critic_figures(runs))
    todo = {
        algo: [arms_of(algo, seed, own) for seed in given.seeds or range(SEEDS[algo])]
        for algo, own in ALGOS.items()
    }
    store("diagnostics.json", figures(measured(todo, given.folder, given.workers)))


if __name__ == "__main__":
    main()
