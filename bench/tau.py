"""Measure how exact the τ-bench environments are, and the cost of an episode: `python bench/tau.py
[FOLDER]`, with a folder of τ-bench's data as JSON, or AGENTRL_DATA.

Writes counts and milliseconds to docs/results/tau_exactness.json. The golden files were made by the
official code. None of their data is written.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from agentrl_cli.envs.tau.data import SPLITS, Domain, load_domain
from agentrl_cli.envs.tau.env import TauBench, ground_truth, reward_checks, won_by_doing_nothing
from agentrl_cli.envs.tau.tools import Database, call_tool

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("AGENTRL_DATA", ROOT.parent / "shared" / "data")) / "taubench"
OFFICIAL = {  # of the loaded databases, from the benchmark itself
    "retail": "5a4b2cb59f4d12de", "airline": "4587e6b48ad2b2c4",
}  # fmt: skip


def run(domain: Domain, actions: list[dict[str, Any]]) -> tuple[Database, list[str]]:
    """Return the database and the observations after calls, up to and including a transfer."""
    database, seen = Database(domain.tables), []
    for action in actions:
        name, arguments = action["name"], action["kwargs"]
        seen.append(call_tool(domain, database, name, arguments))
        if name == domain.terminal_tool:
            break
    return database, seen


def shas(observations: list[str]) -> list[str]:
    """Return the hashes of observations, as golden files store them."""
    return [sha256(text.encode()).hexdigest()[:16] for text in observations]


def kept(domain: Domain, task: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the ground-truth actions without transfers."""
    return [action for action in task["actions"] if action["name"] != domain.terminal_tool]


def golden(domain: Domain, split: str, cases: list[dict[str, Any]]) -> Iterator[dict[str, bool]]:
    """Yield which recorded facts of each ground truth and each mutation are equal. Ground
    truths have a hash of the database, mutations the number of executed calls."""
    for case in cases:
        task = domain.tasks[split][case["task"]]
        right, seen = run(domain, kept(domain, task))
        digest = right.digest()
        yield {
            "observations": shas(seen) == case["gt_obs_sha"],
            "database": digest == case["gt_data_hash"],
            "reward": reward(domain, task, right, task["outputs"]) == case["gt_reward"],
        }
        for variant in case["variants"]:
            database, seen = run(domain, variant["actions"])
            found = reward(domain, task, database, [variant["say"]])
            equal = database.touched() == ground_truth(domain, task).touched()
            yield {
                "observations": shas(seen) == variant["obs_sha"],
                "executed": len(seen) == variant["n_executed"],
                "reward": found == variant["reward"],
                "verdict": equal == (database.digest() == digest),
            }


def golden_figures(cases: list[dict[str, bool]]) -> dict[str, int]:
    """Return the number of cases, and for each fact in how many it was recorded and equal."""
    figures = {"cases": len(cases)}
    for fact in {fact: None for case in cases for fact in case}:
        recorded = [case[fact] for case in cases if fact in case]
        figures |= {f"{fact}_recorded": len(recorded), f"{fact}_equal": sum(recorded)}
    return figures


def reward(domain: Domain, task: dict[str, Any], database: Database, said: list[str]) -> float:
    """Return the reward of a final state."""
    return float(all(reward_checks(domain, task, database, said).values()))


def last_write(domain: Domain, task: dict[str, Any]) -> int | None:
    """Return the position of the last ground-truth action that changes the database."""
    database, found = Database(domain.tables), None
    for i, action in enumerate(kept(domain, task)):
        before = database.touched()
        call_tool(domain, database, action["name"], action["kwargs"])
        found = i if database.touched() != before else found
    return found


def replays(domain: Domain) -> Counter[str]:
    """Return counts over all tasks of a domain: with the ground truth, without its last write,
    and without actions."""
    found: Counter[str] = Counter()
    for split in SPLITS:
        for task in domain.tasks[split]:
            actions, last = kept(domain, task), last_write(domain, task)
            found["tasks"] += 1
            found["ground_truth_wins"] += 1.0 == reward(
                domain, task, run(domain, actions)[0], task["outputs"]
            )
            found[f"do_nothing_{split}"] += won_by_doing_nothing(domain, task)
            if last is not None:
                fewer = run(domain, actions[:last] + actions[last + 1 :])[0]
                found["with_a_write"] += 1
                found["without_last_write_wins"] += 1.0 == reward(
                    domain, task, fewer, task["outputs"]
                )
    return found


def expert_figures(env: TauBench) -> dict[str, float]:
    """Return how often the expert wins with the scripted user, and the environment time of an
    episode."""
    seconds, wins, confirmed, turns = [], 0, 0, 0
    tasks = [task for split in ("train", "test") for task in env.tasks(split)]
    for task in tasks:
        first = time.process_time()
        env.reset(task, 0)
        spent, steps = time.process_time() - first, []
        actions = env.expert(task) or ()
        for action in actions:
            began = time.process_time()
            steps.append(env.step(action))
            spent += time.process_time() - began
        seconds.append(spent)
        wins, turns = wins + (steps[-1].reward == 1.0), turns + len(steps)
        confirmed += not any(step.info["unconfirmed"] for step in steps)
    seconds.sort()
    return {
        "expert_tasks": len(tasks),
        "expert_wins": wins,
        "expert_always_confirmed": confirmed,
        "expert_turns_mean": round(turns / len(tasks), 2),
        "expert_ms_median": round(1000 * seconds[len(seconds) // 2], 2),
        "expert_ms_largest": round(1000 * seconds[-1], 2),
    }


def measure(folder: Path) -> dict[str, float]:
    """Return all figures by name."""
    figures: dict[str, float] = {}
    for name, official in OFFICIAL.items():
        domain = load_domain(name, str(folder))
        began = time.process_time()
        figures[f"{name}_base_hash_equal"] = Database(domain.tables).digest().startswith(official)
        figures[f"{name}_full_hash_ms"] = round(1000 * (time.process_time() - began), 1)
        figures |= {f"{name}_{key}": value for key, value in replays(domain).items()}
        for split in SPLITS:
            file = folder / "golden" / f"{name}_{split}.json"
            if file.is_file():
                cases = golden(domain, split, json.loads(file.read_text()))
                counts = golden_figures(list(cases))
                figures |= {f"{name}_{split}_golden_{key}": n for key, n in counts.items()}
    for name, data, holdout in (("retail", str(folder), 100), ("mini", None, 0)):
        env = TauBench(
            domain=name, data=data, user="scripted", actions="react", max_turns=30, holdout=holdout,  # pyright: ignore[reportArgumentType]
            llm=None,
        )  # fmt: skip
        figures |= {f"{name}_{key}": value for key, value in expert_figures(env).items()}
    return {key: float(value) for key, value in sorted(figures.items())}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", default=DATA, help="what was recorded")
    found = measure(parser.parse_args().data)
    target = ROOT / "docs" / "results" / "tau_exactness.json"
    target.write_text(json.dumps(found, indent=1) + "\n")
    print(target.read_text())
