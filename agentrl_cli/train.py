"""THE LOOP: collect episodes, let the algorithm update, log, evaluate, save. Names no algorithm."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agentrl_cli import jsonl
from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.assemble import Parts, assemble
from agentrl_cli.config import build
from agentrl_cli.demos import fingerprint
from agentrl_cli.envs.base import train_tasks
from agentrl_cli.errors import UserError
from agentrl_cli.evaluate import evaluate, measure
from agentrl_cli.find import find_run
from agentrl_cli.learner import NonFiniteError
from agentrl_cli.loggers import Console
from agentrl_cli.models.policy import score
from agentrl_cli.rollout import Start
from agentrl_cli.run import Run, read_checkpoint
from agentrl_cli.types import Episode

if TYPE_CHECKING:
    from omegaconf import DictConfig

KEPT = 16  # fresh episodes written at each evaluation
CHECKED = 4  # episodes a step whose log-probs are compared with the trainer's


def train(cfg: DictConfig, run: Run, parts: Parts) -> None:
    """Go on from `parts.step` until `cfg.steps` updates are done or somebody interrupts."""
    with run.track(), kept_batch(run), interruptible() as stop:
        if cfg.eval.baseline and not run.has_metrics:
            run.log(0, timed("eval", lambda: evaluate(parts, run, 0)))
        while parts.step < cfg.steps and not stop:
            metrics, episodes = update(parts)
            run.log(parts.step, metrics)
            if due(parts.step, cfg.eval_every, cfg.steps):
                run.write_episodes("train", parts.step, episodes[:KEPT])
                run.log(parts.step, timed("eval", lambda: evaluate(parts, run, parts.step)))
            if due(parts.step, cfg.save_every, cfg.steps):
                parts.save(run, parts.step)
        if stop and parts.step < cfg.steps:
            parts.save(run, parts.step)
            print(f"saved; go on with: agentrl resume {run.argument}", file=sys.stderr)
            raise KeyboardInterrupt


def update(parts: Parts) -> tuple[dict[str, float], list[Episode]]:
    """One step of the loop: play, learn, count. Returns the step's metrics and fresh episodes."""
    began = time.perf_counter()
    algo, step = parts.algo, parts.step
    parts.context.step = step
    episodes = parts.collector.collect(step, algo.group_size) if algo.plays else []
    gap = logprob_gap(parts, episodes)
    if algo.capacity:
        parts.buffer.add(episodes)
    rollout = time.perf_counter() - began
    metrics = parts.learner.run(algo.update(episodes, parts.buffer), step)
    parts.step += 1
    return summarize(episodes) | gap | {"time/rollout": rollout} | metrics, episodes


def summarize(episodes: list[Episode]) -> dict[str, float]:
    """What this step's fresh episodes were like."""
    if not episodes:
        return {}
    played = {f"episodes/{k}": v for k, v in measure(episodes).items() if "success_" not in k}
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
    sampled = [e for e in episodes[:CHECKED] if any(any(t.logprobs) for t in e.turns)]
    samples = [s for e in sampled for s in episode_samples(e, lambda i, turn: {})]
    if not samples:
        return {}
    scores = score(parts.models.module("policy"), samples)
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
def kept_batch(run: Run) -> Iterator[None]:
    """Write a batch that made training stop to failed-batch.json, where it can be looked at."""
    try:
        yield
    except NonFiniteError as error:
        file = run.folder / "failed-batch.json"
        with jsonl.writing(run.folder):
            about = {"phase": error.phase, "term": error.term, "samples": error.rows}
            jsonl.write_object(file, about)
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


def start(
    overrides: list[str],
    *,
    config_dir: Path | None = None,
    dry: bool = False,
    file: Path | None = None,
) -> None:
    """`agentrl train`: compose, make the run's folder, train, and say how it went."""
    from agentrl_cli.config import check, chosen, compose, load
    from agentrl_cli.report.summary import final_table

    cfg = check(load(file, overrides) if file else compose(overrides, config_dir))
    if chosen(cfg, "search"):
        raise UserError("search needs a trained critic; train without it, then agentrl eval RUN")
    if dry:
        rehearse(cfg)
        return
    run = Run.create(cfg, command=" ".join(["agentrl", *sys.argv[1:]]), overrides=overrides)
    with undone(run):
        parts = assemble(cfg, run.folder)
        print(f"run {run.folder}", file=sys.stderr)
        attach(run, cfg)
    train(cfg, run, parts)
    print(final_table(run))


def resume(ref: str, overrides: list[str] | None = None) -> None:
    """`agentrl resume`: go on from the last checkpoint, with `steps=N` further than was planned.
    UserError where nothing is left to do, anything else is to change, or the run is training."""
    from agentrl_cli.report.summary import final_table

    run = find_run(ref, Path("runs"))
    refuse_other_changes(overrides or [])
    with run.held():
        go_on(run, overrides)
    print(final_table(run))


def go_on(run: Run, overrides: list[str] | None) -> None:
    """Restore a run's last checkpoint, put its logs back to there, and train."""
    from agentrl_cli.config import check, load

    cfg = check(load(run.config_file, overrides or []))
    folder = run.latest_checkpoint()
    step = int(read_checkpoint(folder)["step"])
    if step >= cfg.steps:
        line = f"run '{run.name}' is at step {step} of {cfg.steps}: nothing is left to do"
        raise UserError(f"{line}; agentrl resume {run.argument} steps=N trains it further")
    refuse_other_demos(run, cfg)
    parts = assemble(cfg, run.folder)
    parts.restore(folder, step)
    run.truncate_logs(folder)
    run.go_on(cfg, step)
    print(f"run {run.folder}, from step {step}", file=sys.stderr)
    attach(run, cfg)
    train(cfg, run, parts)


def rehearse(cfg: DictConfig) -> None:
    """`--dry`: build everything, play one episode, print what follows from the configuration."""
    from agentrl_cli.report.summary import dry_table

    parts = assemble(cfg, None)
    task = train_tasks(parts.make_env())[0]
    (episode,) = parts.play([Start(task, "dry", cfg.seed, "dry")], parts.collector.sampling)
    print(dry_table(cfg, parts, episode))


def attach(run: Run, cfg: DictConfig) -> None:
    """Give the run its loggers: the console, and the chosen one."""
    run.note(threads=torch.get_num_threads(), demos=fingerprint(cfg.data.demos))
    run.attach([Console(), build(cfg.logger)], cfg)


def refuse_other_changes(overrides: list[str]) -> None:
    """Raise UserError where a run is to go on with another setting than `steps`."""
    for override in overrides:
        if not override.startswith("steps="):
            remedy = "start a new run from its weights with agentrl train init=RUN"
            raise UserError(f"'{override}' cannot change in a run, only steps can; {remedy}")


def refuse_other_demos(run: Run, cfg: DictConfig) -> None:
    """Raise UserError where a run's demonstrations are not those that it began with."""
    before = run.meta.get("demos")
    if before is not None and fingerprint(cfg.data.demos) != before:
        remedy = "put the file back, or start a new run"
        raise UserError(f"demonstrations '{cfg.data.demos}' have changed; {remedy}")


@contextmanager
def undone(run: Run) -> Iterator[None]:
    """Take back a new run that cannot be built as asked; what else ends it here is recorded."""
    try:
        yield
    except UserError:
        shutil.rmtree(run.folder)
        raise
    except BaseException as error:
        run.set_status("failed", f"{type(error).__name__}: {error}")
        raise
