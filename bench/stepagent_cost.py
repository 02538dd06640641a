"""Measure the cost of an update of inverse StepAgent against GRPO's: writes
docs/results/stepagent_cost.json.

Run as `python bench/stepagent_cost.py`; `--quick` only prints. The bundled model plays the
episodes of one update of Twenty Questions. Both methods train on them: log-probs, values and
rewards, forward, backward and AdamW. The discriminator, its training and its rewards, is also timed
alone, with all turns of an episode in one pass and with one pass per action. Seconds are CPU
seconds of one thread, medians over rounds in which all take turns; the first round warms up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.samples import all_turns
from agentrl_cli.algos.stepagent import StepAgentInverse, labelled_actions, labelled_episodes
from agentrl_cli.config.compose import check, compose
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.training.build import Parts, build_parts

RESULT = Path(__file__).parents[1] / "docs" / "results" / "stepagent_cost.json"
GRPO, STEPAGENT = ("algo=grpo",), ("algo=stepagent_inverse", "ablation=environment")
Work = Callable[[], object]


def parts_of(method: tuple[str, ...], episodes: int) -> Parts:
    """Return the parts of a run of Twenty Questions from the initial model."""
    sizes = ["init=null", f"rollout.episodes_per_step={episodes}"]
    return build_parts(check(compose(["recipe=twentyq", *method, *sizes])), None)


def update(parts: Parts, episodes: list[Episode]) -> Work:
    """Return the training of an update, without play."""
    return lambda: parts.learner.run(parts.algo.update(episodes, parts.buffer), parts.step)


def discriminate(parts: Parts, phase: Phase, judged: list[Sample]) -> Work:
    """Return the training of the discriminator, and its rewards of the `judged` samples."""
    algo = parts.algo
    assert isinstance(algo, StepAgentInverse)

    def work() -> None:
        parts.learner.run(iter([phase]), parts.step)
        algo.rewards(judged)

    return work


def one_by_one(parts: Parts, episodes: list[Episode], label: float) -> list[Sample]:
    """Return one sample per action of the episodes."""
    acts = [(turn.state_ids, turn.action) for turn in all_turns(episodes)]
    return labelled_actions(acts, label, parts.context)


def works(count: int) -> tuple[dict[str, Work], dict[str, int]]:
    """Return what is timed by name, and the sizes of the episodes."""
    grpo, stepagent = parts_of(GRPO, count), parts_of(STEPAGENT, count)
    played = stepagent.collector.collect(0, grpo.algo.group_size)
    half, demos = count // 2, stepagent.context.demos
    sides = ((played[:half], 1.0), (demos[:half], 0.0), (played[half:], 1.0))
    phase = next(iter(stepagent.algo.update(played, stepagent.buffer)))
    packed = [labelled_episodes(row, label, stepagent.context) for row, label in sides]
    alone = [one_by_one(stepagent, row, label) for row, label in sides]
    timed = {"grpo": update(grpo, played), "stepagent": update(stepagent, played)}
    for name, (own, expert, judged) in (("packed", packed), ("per_action", alone)):
        samples = replace(phase, samples=[*own, *expert])
        timed[f"discriminator_{name}"] = discriminate(stepagent, samples, judged)
    turns = sum(len(episode.turns) for episode in played)
    facts = {"count": count, "turns": turns, "tokens": sum(e.tokens for e in played)}
    return timed, facts


def medians(timed: dict[str, Work], rounds: int) -> dict[str, float]:
    """Return the median CPU seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(rounds + 1):
        for name, work in timed.items():
            began = time.process_time()
            work()
            seconds[name].append(time.process_time() - began)
    return {name: statistics.median(row[1:]) for name, row in seconds.items()}


def main() -> None:
    """Measure and print; write the result unless `--quick` is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few episodes and only printed")
    quick = parser.parse_args().quick
    rounds = 1 if quick else 3
    timed, facts = works(8 if quick else 128)
    torch.set_num_threads(1)
    seconds = medians(timed, rounds)
    others = {"stepagent": "ratio"} | {name: f"ratio_{name}" for name in list(timed)[2:]}
    figures = {key: seconds[name] / seconds["grpo"] for name, key in others.items()}
    figures |= {f"seconds_{name}": value for name, value in seconds.items()}
    rounded = {name: round(value, 3) for name, value in figures.items()}
    text = json.dumps(rounded | facts | {"rounds": rounds, "torch": torch.__version__}, indent=1)
    print(text)
    if not quick:
        RESULT.write_text(text + "\n")


if __name__ == "__main__":
    main()
