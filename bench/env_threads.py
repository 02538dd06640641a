"""Measure the seconds of an environment of 50 ms per step, for several values of
`rollout.env_workers`.

Run as `python bench/env_threads.py`, which fails unless 8 workers take less than half the time of
one.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from agentrl_cli.core.types import Step
from agentrl_cli.generators.base import Sampling
from agentrl_cli.rollout.play import EpisodeStart, play
from tests.fakes.echo import CHAT, EchoEnv, script

EPISODES, STEP_SECONDS = 16, 0.05
SAMPLING = Sampling(max_tokens=8, temperature=1.0, stop_ids=CHAT.stop_ids)


class Slow(EchoEnv):
    """An environment that waits, as for a simulated user."""

    def step(self, action: str) -> Step:
        time.sleep(STEP_SECONDS)
        return super().step(action)


def seconds(workers: int) -> float:
    """Return the seconds of episodes of three turns."""
    task = EchoEnv().tasks("train")[0]
    starts = [EpisodeStart(task, "g", i, f"e{i}") for i in range(EPISODES)]
    speaker = script(lambda prompt: "Hello.")
    began = time.perf_counter()
    play(starts, Slow, CHAT, speaker, SAMPLING, max_seq_len=500, workers=workers)
    return time.perf_counter() - began


if __name__ == "__main__":
    found = {workers: seconds(workers) for workers in (1, 2, 8)}
    print("  ".join(f"{workers} workers {taken:.2f} s" for workers, taken in found.items()))
    if 2 * found[8] >= found[1]:
        sys.exit("8 workers take more than half the time of one")
