"""Diagnose every algorithm that has a critic, over several seeds: `python bench/diagnostics.py`.

Writes docs/results/diagnostics.json. The measurements of each arm and seed are kept in the folder
`runs/diagnostics`, so an interrupted run goes on where it stopped. One process, one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.config.compose import compose_checked
from agentrl_cli.core.statistics import mean
from agentrl_cli.diagnose import Arm, Row, arms, auc_keys, last_of_critic, run_arm
from agentrl_cli.report.seeds import STUDENT

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs" / "results" / "diagnostics.json"
ALGOS = ("nlac", "self_ac", "ppo", "archer_small")
WITH_CONTROLS = ("nlac", "self_ac")
CRITIC_UPDATES, POLICY_UPDATES, EVERY = 12, 12, 4
Measured = dict[str, list[Row]]  # by arm


def measured(algo: str, seed: int, folder: Path) -> Measured:
    """Return the measurements of the arms with a seed; run those that are missing."""
    overrides = ["recipe=courier", f"algo={algo}", f"seed={seed}"]
    base = Arm(algo, overrides, CRITIC_UPDATES, POLICY_UPDATES, EVERY)
    found = {}
    todo = arms(compose_checked(overrides), base) if algo in WITH_CONTROLS else [base]
    for arm in todo:
        file = folder / f"{algo}-{arm.name.replace(' ', '_')}-s{seed}.json"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            rows = run_arm(arm)
            file.write_text(json.dumps(rows))
            print(f"{algo}, {arm.name}, seed {seed}: {rows[-1]}", flush=True)
        found[arm.name] = json.loads(file.read_text())
    return found


def figures(seeds: list[int], folder: Path) -> dict[str, float]:
    """Return every figure with its interval over seeds, by Student's t."""
    runs = {algo: [measured(algo, seed, folder) for seed in seeds] for algo in ALGOS}

    def critic(algo: str, arm: str, key: str) -> list[float]:
        found = []
        for run in runs[algo]:
            found.append(mean(row[key] for row in last_of_critic(run[arm], CRITIC_UPDATES)))
        return found

    def auc(algo: str, arm: str) -> list[float]:
        rows = [critic(algo, arm, key) for key in auc_keys(runs[algo][0][arm][0])]
        return [mean(row) for row in zip(*rows, strict=True)]

    def gap(arm: str, value: str) -> list[float]:
        pairs = zip(critic("nlac", arm, "estimate"), critic("nlac", arm, value), strict=True)
        return [abs(estimate - exact) for estimate, exact in pairs]

    def success(arm: str) -> list[float]:
        return [run[arm][-1]["success"] for run in runs["nlac"]]

    table: dict[str, list[float]] = {
        **{
            f"nlac_backup_auc_d{key[4:]}": critic("nlac", "nlac", key)
            for key in auc_keys(runs["nlac"][0]["nlac"][0])
        },
        "nlac_monte_carlo_auc": auc("nlac", "monte carlo"),
        "nlac_shuffled_outcomes_auc": auc("nlac", "shuffled outcomes"),
        "nlac_shuffled_states_auc": auc("nlac", "shuffled next states"),
        "nlac_frozen_auc": auc("nlac", "frozen critic"),
        "nlac_backup_gap_q_pi": gap("nlac", "policy_value"),
        "nlac_backup_gap_q_mu": gap("nlac", "behaviour_value"),
        "nlac_monte_carlo_gap_q_mu": gap("monte carlo", "behaviour_value"),
        "nlac_policy_success": success("nlac"),
        "nlac_policy_success_frozen": success("frozen critic"),
        "nlac_policy_success_shuffled": success("shuffled outcomes"),
        "self_ac_v_r2": critic("self_ac", "self_ac", "r2"),
        "ppo_v_r2": critic("ppo", "ppo", "r2"),
        "turn_number_r2": critic("self_ac", "self_ac", "r2_turn"),
        "self_ac_advantage_sign": critic("self_ac", "self_ac", "sign"),
        "ppo_advantage_sign": critic("ppo", "ppo", "sign"),
        "archer_q_auc": auc("archer_small", "archer_small"),
    }
    found: dict[str, float] = {}
    for name, values in table.items():
        found |= with_interval(name, values)
    return found


def with_interval(name: str, values: list[float]) -> dict[str, float]:
    """Return the mean of the values of all seeds and the ends of its 95 % interval."""
    centre, half = mean(values), 0.0
    if len(values) > 1:
        half = STUDENT[len(values) - 2] * statistics.stdev(values) / len(values) ** 0.5
    ends = {name: centre, f"{name}_low": centre - half, f"{name}_high": centre + half}
    return {key: round(value, 4) for key, value in ends.items()}


def main() -> None:
    """Run what is missing and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "diagnostics")
    given = parser.parse_args()
    RESULT.write_text(json.dumps(figures(given.seeds, given.folder), indent=1) + "\n")


if __name__ == "__main__":
    main()
