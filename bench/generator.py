"""Measure the CPU seconds of one `generate` call of 128 prompts and 8 tokens, on a model of 0.6M
parameters: `python bench/generator.py`.

`next` extends each prompt by a turn of 12 tokens. `roles` adds 3 suffixes of 12 tokens to each
state, with and without the cache of earlier calls. `samples` draws 8 replies for each state.
"""

import dataclasses
import random
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from agentrl_cli.generators.base import Sampling
from agentrl_cli.generators.hf import HFGenerator
from tests.builders.tiny_models import tiny_model, tiny_tokenizer

ROWS, SAMPLING = 128, Sampling(max_tokens=8, temperature=1.0, stop_ids=())


class Weights:
    """A random model."""

    device = torch.device("cpu")

    def __init__(self):
        self.model = tiny_model(tiny_tokenizer(), "qwen2", layers=4, width=128)

    def module(self, name):
        return self.model


def timed(engine: HFGenerator, prompts: list[list[int]], samples: int = 1):
    began = time.process_time()
    sampling = dataclasses.replace(SAMPLING, n=samples)
    answers = engine.generate(prompts, list(range(len(prompts))), sampling)
    return time.process_time() - began, answers


def bench(engine: HFGenerator, length: int) -> dict[str, float]:
    """Return the seconds of each kind of call for prompts of this many tokens, of which 60 are
    shared."""
    rng = random.Random(0)
    head = rng.choices(range(3, 250), k=60)
    prompts = [head + rng.choices(range(3, 250), k=length - 60) for _ in range(ROWS)]
    engine.clear()
    cold, answers = timed(engine, prompts)
    longer = [p + row[0].ids + [4] * 12 for p, row in zip(prompts, answers, strict=True)]
    roles = [p + [9 + k] * 12 for p in longer for k in range(3)]
    found = {"cold": cold, "next": timed(engine, longer)[0], "roles": timed(engine, roles)[0]}
    found["samples"] = timed(engine, longer, 8)[0]
    engine.clear()
    found["next, nothing kept"] = timed(engine, longer)[0]
    engine.clear()
    found["roles, nothing kept"] = timed(engine, roles)[0]
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    engine = HFGenerator(Weights(), max_batch=256, cache_tokens=200_000)
    bench(engine, 80)
    for length in (100, 150, 300):
        rows = bench(engine, length)
        print(length, "  ".join(f"{name} {seconds:.3f}" for name, seconds in rows.items()))
