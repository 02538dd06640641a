"""Measure the cost of an update of Self-AC against GRPO's, and against a separate critic pass for
each state: writes docs/results/self_ac_cost.json.

Run as `python bench/self_ac_cost.py`. All methods train on the same random episodes of 20 turns and
2,000 tokens: log-probs and values, forward, backward and AdamW. The model has two random layers of
the size of Qwen2.5-0.5B. A narrow model, such as the bundled one with 128 channels, would mostly
measure attention. The vocabulary is small, but only actions need logits, and they are the same for
all methods.

Seconds are CPU seconds of one thread, medians over rounds in which the methods take turns. The
first round warms up. The separate passes take ten times as long, so they are measured once at the
end. The allocator has the settings of a run (training/build.py), because page faults make the
seconds vary.

Memory is the peak that torch allocates beyond the weights and the averages of AdamW, from its
profiler, with one episode per batch.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.algos.base import Phase
from agentrl_cli.algos.losses import clipped_ratio, value_error
from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.algos.self_ac import SelfAC
from agentrl_cli.core.types import Episode, Sample, Task, Turn
from agentrl_cli.models.forward import logprobs_and_values, token_logprobs
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from agentrl_cli.training.build import keep_freed_memory
from agentrl_cli.training.learner import Learner
from tests.algos.test_grpo import grpo
from tests.builders.self_ac import self_ac
from tests.builders.tiny_models import tiny_tokenizer

RESULT = Path(__file__).parents[1] / "docs" / "results" / "self_ac_cost.json"
SEEN, ACTED = 60, 40  # tokens of an observation and of an action
PROMPTS = {"slide_prompt": 19, "one_token_prompt": 1}  # tokens; the slide's example has 19
FULL_SIZES = {"turns": 20, "count": 2, "rounds": 9}
FULL_SHAPE = {"layers": 2, "width": 896}
SLOW = OptimizerSpec(lr=1e-6)
Update = Callable[[list[Episode]], object]


def written(folder: Path, layers: int, width: int) -> Path:
    """Write a random model with its tokenizer to a folder; with width 896 its layers have the
    size of Qwen2.5-0.5B."""
    tokenizer = tiny_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=38 * width // 7,
        num_hidden_layers=layers, num_attention_heads=width // 64, num_key_value_heads=2,
        max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def played(count: int, turns: int) -> list[Episode]:
    """Return a group of episodes of random tokens; every other one is won."""
    draw = random.Random(0)

    def turn(last: bool, won: bool) -> Turn:
        ids = [draw.randrange(3, 250) for _ in range(SEEN + ACTED)]
        return Turn(
            [], "", ids[:SEEN], ids[SEEN:], [0.0] * ACTED, reward=float(last and won), done=last
        )

    return [
        Episode(
            f"e{i}", Task("t", "train", {}), "g", i,
            [turn(k == turns - 1, i % 2 == 0) for k in range(turns)],
        )
        for i in range(count)
    ]  # fmt: skip


def nobody(model: str) -> None:
    """Ignore new weights, because nothing is generated here."""


def grpo_update(folder: Path, budget: int) -> Update:
    """Return an update of GRPO on its own model."""
    algo, models = grpo(folder, optimizer=SLOW)
    learner = Learner(models, algo.models(), microbatch_tokens=budget, seed=0, publish=nobody)
    return lambda episodes: learner.run(algo.update(episodes, ReplayBuffer(None, 1)), 0)


def self_ac_update(folder: Path, budget: int, prompt: int) -> Update:
    """Return an update of Self-AC on its own model, with a critic prompt of this many
    tokens."""
    algo, models = critic_of(folder, prompt)
    learner = Learner(models, algo.models(), microbatch_tokens=budget, seed=0, publish=nobody)
    return lambda episodes: learner.run(algo.update(episodes, ReplayBuffer(None, 1)), 0)


def per_turn_update(folder: Path, budget: int, prompt: int) -> Update:
    """Return an update of the same model with a critic pass for each state, which reads all
    tokens before it."""
    algo, models = critic_of(folder, prompt)
    learner = Learner(models, algo.models(), microbatch_tokens=budget, seed=0, publish=nobody)
    return lambda episodes: learner.run(per_turn(models, algo.critic_prompt_ids, episodes), 0)


def critic_of(folder: Path, prompt: int) -> tuple[SelfAC, ModelSet]:
    """Return Self-AC with a critic prompt of this many tokens."""
    algo, models = self_ac(folder, critic_prompt="{closing}" * prompt, optimizer=SLOW)
    assert len(algo.critic_prompt_ids) == prompt
    return algo, models


def per_turn(models: ModelSet, prompt: list[int], episodes: list[Episode]) -> Iterator[Phase]:
    """Yield an actor phase like GRPO's and a critic phase over single states, after scoring
    both."""
    reader = models.forward("policy")
    actions = [s for e in episodes for s in episode_samples(e, lambda i, turn: {"advantage": 1.0})]
    for sample, logprobs in zip(actions, token_logprobs(reader, actions), strict=True):
        sample.per_token["old_logprob"] = logprobs
    states = [state for episode in episodes for state in states_of(episode, prompt)]
    for sample, (_, values) in zip(states, logprobs_and_values(reader, states), strict=True):
        sample.per_token["old_value"] = values.tolist()
    error = partial(value_error, clip_eps=0.0)
    yield Phase("critic", states, error, units=lambda sample: 1.0)
    yield Phase("policy", actions, lambda out, batch: clipped_ratio(out, batch, 0.2))


def states_of(episode: Episode, prompt: list[int]) -> Iterator[Sample]:
    """Yield each state s_k and the critic prompt, k = 0 ... n; the value is read and trained
    at the end."""
    last = len(episode.turns) - 1
    states = [episode.state_ids(k) for k in range(last + 1)]
    for ids in [*states, states[last] + episode.turns[last].action_ids]:
        row = [0.0] * (len(ids) + len(prompt) - 1)
        per_token = {"value_at": [*row, 1.0], "return": [*row, 1.0]}
        yield Sample(ids + prompt, [0] * (len(row) + 1), per_token)


def medians(updates: dict[str, Update], episodes: list[Episode], rounds: int) -> dict[str, float]:
    """Return the median CPU seconds of each update. The first round does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in updates}
    for _ in range(rounds + 1):
        for name, update in updates.items():
            began = time.process_time()
            update(episodes)
            seconds[name].append(time.process_time() - began)
    return {name: statistics.median(row[1:]) for name, row in seconds.items()}


def peak(update: Update, episodes: list[Episode]) -> int:
    """Return the peak of bytes that torch held during the second update minus those before
    it."""
    update(episodes)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        update(episodes)
    assert watched.profiler is not None and watched.profiler.kineto_results is not None
    events = [e for e in watched.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    changes = [event.nbytes() for event in events]  # pyright: ignore[reportAttributeAccessIssue]
    return max(accumulate(changes))


def measure(folder: Path, turns: int, count: int, rounds: int, budget: int) -> dict[str, float]:
    """Return the figures, rounded to the digits that repeat."""
    episodes, slide = played(count, turns), PROMPTS["slide_prompt"]
    updates = {"grpo": grpo_update(folder, budget)}
    updates |= {name: self_ac_update(folder, budget, size) for name, size in PROMPTS.items()}
    seconds = medians(updates, episodes, rounds)
    seconds |= medians({"per_turn": per_turn_update(folder, budget, slide)}, episodes, 1)
    alone = {"grpo": grpo_update(folder, 1), "self_ac": self_ac_update(folder, 1, slide)}
    bytes_held = {name: peak(update, episodes[:2]) for name, update in alone.items()}
    figures = {f"ratio_{name}": seconds[name] / seconds["grpo"] for name in PROMPTS}
    figures["speedup_over_per_turn"] = seconds["per_turn"] / seconds["slide_prompt"]
    figures["memory_ratio"] = bytes_held["self_ac"] / bytes_held["grpo"]
    figures |= {f"seconds_{name}": value for name, value in seconds.items()}
    figures |= {f"mebibytes_{name}": value / 2**20 for name, value in bytes_held.items()}
    return {name: round(value, 3) for name, value in figures.items()}


def main() -> None:
    """Measure and print; write the result unless `--quick` is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small and only printed")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    keep_freed_memory()
    sizes = {"turns": 4, "count": 2, "rounds": 1} if quick else FULL_SIZES
    shape = {"layers": 2, "width": 128} if quick else FULL_SHAPE
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(written(Path(folder), **shape), **sizes, budget=8192)
    tokens = sizes["turns"] * (SEEN + ACTED)
    facts = {**shape, **sizes, "tokens": tokens, "torch": torch.__version__}
    text = json.dumps(figures | facts, indent=1) + "\n"
    print(text, end="")
    if not quick:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
