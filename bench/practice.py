"""Measure the CPU seconds of actions at expert states: one call with shared prefixes against one
call per state. Writes docs/results/practice.json.

Run as `python bench/practice.py`; `--quick` only prints. The bundled model acts once in each state
of expert episodes of Twenty Questions. `alone` reads each state without a cache, and `alone, kept`
keeps the caches of earlier calls. Figures are medians of several rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from agentrl_cli.algos.stepagent import all_turns
from agentrl_cli.config.compose import as_dataclass, build, check, compose
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.generators.base import Completion, Sampling
from agentrl_cli.generators.hf import HFGenerator
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import ModelSpec
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.rollout.demos import expert_episodes

RESULT = Path(__file__).parent.parent / "docs" / "results" / "practice.json"


@dataclass
class Bench:
    """The states of some expert episodes, and the model that acts in them."""

    generator: HFGenerator
    states: list[list[int]]
    sampling: Sampling

    def together(self) -> list[Completion]:
        """Act in one call."""
        self.generator.clear()
        seeds = list(range(len(self.states)))
        return [row[0] for row in self.generator.generate(self.states, seeds, self.sampling)]

    def alone(self, keep: bool) -> list[Completion]:
        """Act in one call per state; caches of earlier calls are dropped unless `keep` is
        given."""
        found = []
        self.generator.clear()
        for seed, state in enumerate(self.states):
            if not keep:
                self.generator.clear()
            found.append(self.generator.generate([state], [seed], self.sampling)[0][0])
        return found


def prepare(episodes: int) -> Bench:
    """Return the bundled model and the states of this many expert episodes."""
    cfg = check(compose(["env=twentyq", "algo=sft", "hardware.threads=1"]))
    specs = {"policy": ModelSpec(kind="frozen", generates=True)}
    models = ModelSet(as_dataclass(cfg.model, ModelConfig), specs, "cpu", cfg.seed)
    chat, env = Chat(models.tokenizer), build(cfg.env)
    demos = expert_episodes(env, episodes, seed=0)
    for demo in demos:
        chat.encode_turns(demo.turns, env.tools)
    sampling = Sampling(
        max_tokens=cfg.rollout.max_new_tokens, temperature=1.0, stop_ids=chat.stop_ids
    )  # fmt: skip
    generator: HFGenerator = build(cfg.hardware.generator, models=models)
    return Bench(generator, [place.state_ids for place in all_turns(demos)], sampling)


def seconds(work: Callable[[], list[Completion]], rounds: int) -> float:
    """Return the median CPU seconds of some rounds."""
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def main() -> None:
    """Measure, compare the actions, print, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few episodes; write nothing")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    bench = prepare(2 if quick else 64)
    one, every = bench.alone(keep=False), bench.together()  # also warms up
    same = sum(a.ids == b.ids for a, b in zip(one, every, strict=True))
    rounds = 1 if quick else 3
    found = {
        "together": seconds(bench.together, rounds),
        "alone": seconds(lambda: bench.alone(keep=False), rounds),
        "alone, kept": seconds(lambda: bench.alone(keep=True), rounds),
    }
    record = {
        "cpu_seconds": {name: round(value, 3) for name, value in found.items()},
        "faster": round(found["alone"] / found["together"], 1),
        "faster_than_kept": round(found["alone, kept"] / found["together"], 1),
        "fragments": len(bench.states),
        "state_tokens": sum(map(len, bench.states)),
        "sampled_tokens": sum(len(completion.ids) for completion in every),
        "same_actions": same,
        "rounds": rounds,
        "threads": 1,
        "torch": torch.__version__,
    }
    text = json.dumps(record, indent=1) + "\n"
    print(text, end="")
    if not quick:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
