"""THE LOOP: collect episodes, let the algorithm update, log, evaluate, save. Names no algorithm."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.core import files
from agentrl_cli.core.types import Episode
from agentrl_cli.models.policy import token_logprobs
from agentrl_cli.runs.run import Run
from agentrl_cli.training.assemble import Parts
from agentrl_cli.training.evaluate import episode_metrics, evaluate
from agentrl_cli.training.learner import NonFiniteError

if TYPE_CHECKING:
    from omegaconf import DictConfig

KEPT_EPISODES = 16  # fresh episodes written at each evaluation
LOGPROB_GAP_EPISODES = 4  # episodes a step whose log-probs are compared with the trainer's


def train(cfg: DictConfig, run: Run, parts: Parts) -> None:
    """Go on from `parts.step` until `cfg.steps` updates are done or somebody interrupts."""
    with run.track(), dump_failed_batch(run), interruptible() as stop:
        if cfg.eval.baseline and not run.has_metrics:
            run.log(0, timed("eval", lambda: evaluate(parts, run, 0)))
        while parts.step < cfg.steps and not stop:
            metrics, episodes = update(parts)
            run.log(parts.step, metrics)
            if due(parts.step, cfg.eval_every, cfg.steps):
                run.write_episodes("train", parts.step, episodes[:KEPT_EPISODES])
                run.log(parts.step, timed("eval", lambda: evaluate(parts, run, parts.step)))
            if due(parts.step, cfg.save_every, cfg.steps):
                parts.save(run, parts.step)
        if stop and parts.step < cfg.steps:
            parts.save(run, parts.step)
            print(f"saved; go on with: agentrl resume {run.quoted_folder}", file=sys.stderr)
            raise KeyboardInterrupt


def update(parts: Parts) -> tuple[dict[str, float], list[Episode]]:
    """One step of the loop: play, learn, count. Returns the step's metrics and fresh episodes."""
    began = time.perf_counter()
    algo, step = parts.algo, parts.step
    parts.context.step = step
    episodes = parts.collector.collect(step, algo.group_size) if algo.plays else []
    gap = logprob_gap(parts, episodes)
    if algo.replay_capacity:
        parts.buffer.add(episodes)
    rollout = time.perf_counter() - began
    metrics = parts.learner.run(algo.update(episodes, parts.buffer), step)
    parts.step += 1
    return summarize(episodes) | gap | {"time/rollout": rollout} | metrics, episodes


def summarize(episodes: list[Episode]) -> dict[str, float]:
    """What this step's fresh episodes were like."""
    if not episodes:
        return {}
    played = {
        f"episodes/{k}": v for k, v in episode_metrics(episodes).items() if "success_" not in k
    }
    return {
        "reward/mean": played.pop("episodes/reward"),
        "episodes/count": played.pop("episodes/episodes"),
        **played,
        "episodes/failed": sum(e.error is not None for e in episodes) / len(episodes),
        "episodes/context": sum(e.stop == "context" for e in episodes) / len(episodes),
        "episodes/tokens": float(sum(e.tokens for e in episodes)),
    }


def logprob_gap(parts: Parts, episodes: list[Episode]) -> dict[str, float]:
    """Mean and largest difference of the generator's and the trainer's log-probs, per token."""
    sampled = [e for e in episodes[:LOGPROB_GAP_EPISODES] if any(any(t.logprobs) for t in e.turns)]
    samples = [s for e in sampled for s in episode_samples(e, lambda i, turn: {})]
    if not samples:
        return {}
    scores = token_logprobs(parts.models.module("policy"), samples)
    ours = [
        x
        for row, s in zip(scores, samples, strict=True)
        for x, m in zip(row, s.mask, strict=True)
        if m
    ]
    theirs = [x for e in sampled for turn in e.turns for x in turn.logprobs]
    gaps = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    return {"policy/logprob_gap": sum(gaps) / len(gaps), "policy/logprob_gap_max": max(gaps)}


def due(step: int, every: int, steps: int) -> bool:
    """Whether what happens every `every` steps (0: never) and at the end happens now."""
    return step == steps or bool(every and step % every == 0)


def timed(name: str, work: Any) -> dict[str, float]:
    """The metrics that `work` returns, and the seconds it took as `time/NAME`."""
    began = time.perf_counter()
    metrics: dict[str, float] = work()
    return metrics | {f"time/{name}": time.perf_counter() - began}


@contextmanager
def dump_failed_batch(run: Run) -> Iterator[None]:
    """Write a batch that made training stop to failed-batch.json, where it can be looked at."""
    try:
        yield
    except NonFiniteError as error:
        file = run.folder / "failed-batch.json"
        with files.writing(run.folder):
            about = {"phase": error.phase, "term": error.term, "samples": error.rows}
            files.write_json(file, about)
        error.add_note(f"the batch is in {file}")
        raise


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """A list that Ctrl-C fills, so that the step in work is finished and saved; a second Ctrl-C
    stops at once."""
    pressed: list[int] = []

    def press(number: int, frame: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        print("interrupted: finishing this step, then saving", file=sys.stderr)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
