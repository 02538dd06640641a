"""Measure the critics of the bundled models before training: `python bench/critics.py --env
arithmetic`, once for each environment.

The figures go to docs/results/critics.json; docs/results.md explains them. States come from the
policy's own play of test tasks, which no tuning used. In each state the policy samples actions.
NLAC forecasts each action, and the policy plays each action to the end `--probes` times.

`--drift RUN` takes a run of NLAC and measures how much SFT on the policy's own unfiltered episodes
changes success, in as many steps as the policy took in the run. `--values RUN...` measures V of
finished runs of Self-AC, and `--search RUN` the gain of a tree search with this V.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.diagnostics import (
    auc,
    differ,
    gap,
    lower_bound,
    probe,
    ranked_pairs,
    refined_gain,
    target_gains,
)
from agentrl_cli.algos.nlac.improve import Candidates
from agentrl_cli.algos.samples import TurnRef, all_turns
from agentrl_cli.cli.evaluate import evaluate_command
from agentrl_cli.config.compose import check, compose, load
from agentrl_cli.rollout.collector import PlayCollector
from agentrl_cli.runs.run import Run
from agentrl_cli.training.build import Parts, build_parts
from agentrl_cli.training.evaluate import play_split
from agentrl_cli.training.loop import update

RESULT = Path(__file__).parents[1] / "docs" / "results" / "critics.json"
FORECASTS = 8  # of each action
DRIFT_EPISODES = 4000  # before and after
EPISODES = {"arithmetic": 4, "twentyq": 20, "tau_mini": 25, "wiki": 10}  # of each test task


def measure(env: str, states: int, probes: int, overrides: list[str]) -> dict[str, float]:
    """Return the figures of an initial model by name."""
    settings = [f"env={env}", "algo=nlac", "model=tiny", "hardware.threads=1", *overrides]
    parts = build_parts(check(compose(settings)), None, learns=False)
    played = play_split(parts, "test", EPISODES[env], 1.0)
    greedy = play_split(parts, "test", 1, 0.0)
    turns = all_turns([episode for episode in played if episode.stop == "done"])
    sampled = random.Random(0).sample(turns, min(states, len(turns)))
    sight = action_figures(parts, sampled, probes)
    success = fmean(episode.success for episode in played)
    return {
        "success": success,
        "greedy_gap": fmean(episode.success for episode in greedy) - success,
        "brier_ratio": brier_ratio(parts, random.Random(1).sample(turns, min(600, len(turns)))),
        **sight,
    }


def action_figures(parts: Parts, turns: list[TurnRef], probes: int) -> dict[str, float]:
    """Return how well forecasts, verdicts and training targets rank the actions of a state."""
    algo = nlac_of(parts)
    algo.roles.begin_stream("bench", "actions")
    monitor = replace(
        algo.critic_monitor,
        rollouts=probes,
        selector=replace(algo.selector, num_forecasts=FORECASTS),
    )
    groups = monitor.probed(turns)
    pairs = [pair for group in groups for pair in ranked_pairs(group.drawn, probes)]
    gains = target_gains(groups, monitor.selector)
    return {
        "auc_within": auc(pairs),
        "auc_pairs": float(len(pairs)),
        "auc_ceiling": ceiling(algo, groups, probes),
        "verdict_edge": verdict_edge(groups, probes),
        "target_gain": fmean(gains),
        "target_gain_low": lower_bound(gains),
        "target_share": len(gains) / len(groups),
        "refined_gain": fmean(map(refined_gain, groups)),
    }


def ceiling(algo: NLAC, groups: list[Candidates], probes: int) -> float:
    """Return the AUC of other probes in place of the forecasts."""
    algo.roles.begin_stream("bench", "ceiling")
    rows = [(a.turn, a.action_ids) for group in groups for a in group.drawn]
    again = iter(probe(algo.roles, rows, probes))
    pairs: list[tuple[float, float]] = []
    for group in groups:
        twice = [(next(again), action.success) for action in group.drawn]
        drawn = [(rate, success) for rate, success in twice if rate is not None]
        for i, (a, p) in enumerate(drawn):
            for b, q in drawn[:i]:
                if differ(p, q, probes):
                    pairs.append((a, b) if p < q else (b, a))
    return auc(pairs)


def verdict_edge(groups: list[Candidates], probes: int) -> float:
    """Return the rejection rate of first samples that are two standard errors worse than the
    other samples of their state, minus that of samples that are as much better."""
    judged = [(gap(g, g.first, probes), g.first.is_optimal is False) for g in groups]
    worse = [flagged for edge, flagged in judged if edge < 0]
    better = [flagged for edge, flagged in judged if edge > 0]
    return (fmean(worse) if worse else 0.0) - (fmean(better) if better else 0.0)


def brier_ratio(parts: Parts, turns: list[TurnRef]) -> float:
    """Return the Brier score of the forecasts divided by that of the best constant."""
    algo = nlac_of(parts)
    algo.roles.begin_stream("bench", "brier")
    won = [float(turn.episode.success) for turn in turns]
    monitor = replace(algo.critic_monitor, selector=replace(algo.selector, num_forecasts=FORECASTS))
    return monitor.calibration(turns)["nlac/brier"] / (fmean(won) * (1 - fmean(won)))


def own_play_drift(env: str, run: Run, overrides: list[str]) -> dict[str, float]:
    """Return success after SFT on the policy's own unfiltered episodes minus success before.
    Steps, trained tokens and learning rate are those of the policy in `run`, and the episodes
    per update are about as many."""
    rows = [row for row in run.metrics() if row.get("policy/steps")]
    steps = sum(row["policy/steps"] for row in rows)
    tokens = sum(row["policy/trained_tokens"] for row in rows)
    size, rate = math.ceil(tokens / steps), max(row["policy/lr"] for row in rows)
    settings = [f"algo.minibatch_tokens={size}", f"algo.optimizer.lr={rate}", *overrides]
    base = [f"env={env}", "algo=sft", "model=tiny", "hardware.threads=1"]
    parts = build_parts(check(compose([*base, *settings])), None)
    before, taken = success(parts), 0.0
    played = parts.collector.collect(0, 1)
    acted = sum(len(turn.action_ids) for turn in all_turns(played)) / len(played)
    assert isinstance(parts.collector, PlayCollector)
    parts.collector.episodes_per_step = math.ceil(tokens / len(rows) / acted)
    while taken < steps:
        taken += update(parts)[0]["sft/steps"]
    return {"own_play_drift": success(parts) - before, "drift_steps": taken}


def value_figures(runs: list[Run]) -> dict[str, float]:
    """Return the mean critic metrics of the last evaluations of runs of Self-AC."""
    last = [[row for row in run.metrics() if "critic/auc_same_turn" in row][-1] for run in runs]
    return {
        "self_ac_auc": fmean(row["critic/auc_same_turn"] for row in last),
        "self_ac_brier_ratio": fmean(row["critic/brier_ratio"] for row in last),
    }


def search_figures(run: Run) -> dict[str, float]:
    """Return the gain of tree search over best-of-n with as many tokens, for a run of
    Self-AC."""
    found = evaluate_command(str(run.folder), ["search=tot", "eval.splits=[test]"])
    seed = load(run.config_file, []).seed
    stored = {
        "tot_gain": "search/gain",
        "tot_gain_low": "search/gain_low",
        "tot_gain_high": "search/gain_high",
        "tot_tree_success": "search/tree_success",
        "tot_extra_tokens": "search/tree_extra_tokens",
    }
    return {f"{name}_s{seed}": found[key] for name, key in stored.items()}


def success(parts: Parts) -> float:
    """Return the success of some thousand test episodes."""
    tasks = len(parts.make_env().tasks("test"))
    episodes = play_split(parts, "test", math.ceil(DRIFT_EPISODES / tasks), 1.0)
    return fmean(episode.success for episode in episodes)


def nlac_of(parts: Parts) -> NLAC:
    """Return the algorithm as NLAC."""
    assert isinstance(parts.algo, NLAC)
    return parts.algo


def store(figures: dict[str, float]) -> None:
    """Add figures to docs/results/critics.json."""
    stored = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    rounded = {name: round(value, 4) for name, value in figures.items()}
    RESULT.write_text(json.dumps(dict(sorted((stored | rounded).items())), indent=1) + "\n")


def main() -> None:
    """Measure an environment and store its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", required=True, choices=EPISODES)
    parser.add_argument("--states", type=int, default=300)
    parser.add_argument("--probes", type=int, default=64)
    parser.add_argument("--drift", type=Path, help="A run of NLAC: measure the drift alone.")
    parser.add_argument("--values", type=Path, nargs="+", help="Runs of Self-AC: their V alone.")
    parser.add_argument("--search", type=Path, help="A run of Self-AC: its tree search alone.")
    parser.add_argument("--dry", action="store_true", help="Print, write nothing.")
    parser.add_argument("overrides", nargs="*", help="Settings of the run, like init=FOLDER.")
    args = parser.parse_args()
    if args.drift:
        figures = own_play_drift(args.env, Run(args.drift), args.overrides)
    elif args.values:
        figures = value_figures([Run(run) for run in args.values])
    elif args.search:
        figures = search_figures(Run(args.search))
    else:
        figures = measure(args.env, args.states, args.probes, args.overrides)
    named = {f"{name}_{args.env}": value for name, value in figures.items()}
    print(json.dumps(named, indent=1))
    if not args.dry:
        store(named)


if __name__ == "__main__":
    main()
