"""Compare StepAgent with longer SFT in the courier: `python bench/stepagent_courier.py`.

The first message praises the closed road, which the base prefers. All methods go on from one SFT
start with the same demonstrations and train at most as many tokens as three passes of SFT, which
SFT takes (`reference=expert` an eighth more, in its first update). Each method has six trials on
the seed `TUNED_ON`; the one with the highest exact success is run on other seeds. `VARIANTS` change
one setting of it.

The expert takes the closed road with the probability of `EXPERTS`. Writes
docs/results/stepagent_courier.json. Runs are kept in `runs/stepagent_courier`, so an interrupted
benchmark goes on. One process, one thread.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.config.compose import compose_checked
from agentrl_cli.exact_values import Tree, action_scores, auc_by_distance
from agentrl_cli.training.build import Parts, build_parts
from agentrl_cli.training.loop import update

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs" / "results" / "stepagent_courier.json"
EXPERTS = {"careless": 0.1, "perfect": 0.0}
BOTH = ("sft", "stepagent_implicit")
CONDITIONS = {  # expert and number of demonstrations -> methods
    ("careless", 256): BOTH,
    ("careless", 128): (*BOTH, "stepagent_inverse"),
    ("perfect", 128): BOTH,
}
START_DEMOS = 256  # shown in the start, repeatedly if there are fewer
TOKENS_PER_DEMO = 16
PASSES = 3
TUNED_ON = 10
START = ["algo=sft", "algo.minibatch_tokens=100", "algo.optimizer.lr=1e-4"]
Row = dict[str, Any]


def trials() -> dict[str, list[list[str]]]:
    """Return the settings of the trials by method."""
    rates = ("3e-5", "1e-4", "3e-4", "1e-3")
    sft = [["algo=sft", f"algo.optimizer.lr={lr}", "algo.minibatch_tokens=100"] for lr in rates]
    sft += [
        ["algo=sft", f"algo.optimizer.lr={lr}", "algo.minibatch_tokens=400"] for lr in rates[2:]
    ]
    paired = [
        "algo=stepagent_implicit", "algo.minibatch_tokens=100", "algo.epochs=2",
        "algo.reference_epochs=1",
    ]  # fmt: skip
    weights = [(lr, 0.1, 0.1) for lr in rates] + [(lr, 0.3, 0.3) for lr in rates[1:3]]
    implicit = [
        [*paired, f"algo.optimizer.lr={lr}", f"algo.beta={beta}", f"algo.nll_coef={nll}"]
        for lr, beta, nll in weights
    ]
    judged = [
        "algo=stepagent_inverse", "algo.ppo.minibatch_tokens=100",
        "algo.expert_states_per_update=128",
    ]  # fmt: skip
    inverse = [
        [*judged, f"algo.ppo.optimizer.lr={lr}", f"algo.nll_coef={nll}"]
        for lr, nll in [*((lr, 0.1) for lr in rates), *((lr, 0.0) for lr in rates[1:3])]
    ]
    return {"sft": sft, "stepagent_implicit": implicit, "stepagent_inverse": inverse}


VARIANTS = {  # of the best trial; an estimated reference trains one pass more
    "sft": [[]],
    "stepagent_implicit": [[], ["algo.nll_coef=0"], ["algo.reference=expert"]],
    "stepagent_inverse": [[]],
}


def build(overrides: list[str], seed: int, expert: str, demos: int) -> tuple[Parts, Tree]:
    """Return the parts of a run and its tree. A scripted courier gives the demonstrations."""
    fixed = ["recipe=courier", "env.tempting=true", f"data.demos=expert:{demos}", f"seed={seed}"]
    parts = build_parts(compose_checked([*fixed, *overrides]), None)
    tree = Tree(parts)
    drawn = tree.sample(tree.careful_policy(EXPERTS[expert]), demos, seed)
    parts.context.demos[:] = [episode for _, episode in drawn]  # the list that the algorithm reads
    return parts, tree


def start(seed: int, expert: str, demos: int, folder: Path) -> Path:
    """Return the folder with the weights of the SFT from which all methods go on."""
    weights = folder / f"start-{expert}-{demos}-s{seed}"
    if not (weights / "versions.json").exists():
        parts, _ = build(START, seed, expert, demos)
        for _ in range(START_DEMOS // demos):
            update(parts)
        parts.models.save(weights)
    return weights / "policy"


def measured(parts: Parts, tree: Tree) -> Row:
    """Return the exact success, the same if the likeliest action is taken, and the probability of
    valid actions. With a discriminator, also its AUC between actions of a state by turns left."""
    exact = tree.policy_values()
    likeliest = np.eye(len(tree.env.actions))[exact.policy.argmax(1)]
    row: Row = {
        "success": round(exact.success, 4),
        "greedy_success": round(tree.values(likeliest.tolist()).success, 4),
        "valid": round(float(exact.reach @ exact.policy.sum(1) / exact.reach.sum()), 4),
    }
    if "discriminator" in parts.models.names:
        aucs = auc_by_distance(tree, exact, action_scores(parts, tree))
        row["auc"] = {str(left): round(auc, 3) for left, auc in aucs.items()}
    return row


def run(overrides: list[str], seed: int, expert: str, demos: int, folder: Path) -> Row:
    """Return the record of one run, which trains as many updates as the budget holds."""
    name = "-".join(text.removeprefix("algo.").replace("=", "_") for text in overrides)
    file = folder / f"{expert}-{demos}-{name}-s{seed}.json"
    if file.exists():
        return json.loads(file.read_text())
    weights = start(seed, expert, demos, folder)
    parts, tree = build([*overrides, f"init={weights}"], seed, expert, demos)
    row: Row = {"expert": expert, "demos": demos, "seed": seed, "settings": overrides}
    row["start"] = measured(parts, tree)["success"]
    budget = PASSES * TOKENS_PER_DEMO * demos
    trained = spent = 0.0
    while trained + spent <= budget:
        metrics, _ = update(parts)
        names = ("sft", "reference", "dpo", "policy")
        spent = sum(metrics.get(f"{phase}/trained_tokens", 0) for phase in names)
        trained += spent
    row |= {"trained_tokens": int(trained)} | measured(parts, tree)
    file.write_text(json.dumps(row))
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    """Tune, run what is missing and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "stepagent_courier")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Row]] = {"trials": [], "runs": []}
    for (expert, demos), methods in CONDITIONS.items():
        for method in methods:
            settings = trials()[method]
            tried = [run(one, TUNED_ON, expert, demos, folder) for one in settings]
            best = max(tried, key=lambda row: row["success"])["settings"]
            found["trials"] += tried
            for changed in VARIANTS[method]:
                for seed in given.seeds:
                    found["runs"].append(run([*best, *changed], seed, expert, demos, folder))
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
