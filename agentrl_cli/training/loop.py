"""The training loop: play episodes, update, log, evaluate, save. It knows no algorithm."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event, current_thread, main_thread
from typing import TYPE_CHECKING

from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.core import files
from agentrl_cli.core.errors import (
    FAILURE_KINDS,
    DistributedError,
    GeneratorError,
    RunAborted,
)
from agentrl_cli.core.launch import LAUNCH
from agentrl_cli.core.terminal import echo_err
from agentrl_cli.core.types import Episode
from agentrl_cli.models.forward import token_logprobs
from agentrl_cli.rollout.play import abandoned_threads
from agentrl_cli.runs import checkpoints
from agentrl_cli.runs.run import Run, step_of
from agentrl_cli.training.build import Parts
from agentrl_cli.training.distributed import explained_loss
from agentrl_cli.training.evaluate import episode_metrics, evaluate
from agentrl_cli.training.learner import NonFiniteError
from agentrl_cli.training.memory_plan import is_out_of_memory, out_of_memory

if TYPE_CHECKING:
    from omegaconf import DictConfig

KEPT_EPISODES = 16  # training episodes written at each evaluation
LOGPROB_GAP_EPISODES = 4  # episodes per step to compare log-probs of generator and trainer
# called with the run, on_step or on_evaluation, the step and its metrics; False stops the run
Listener = Callable[[Run, str, int, dict[str, float]], bool]


class StopTraining(KeyboardInterrupt):
    """The listener stopped the run."""


def train(
    cfg: DictConfig, run: Run, parts: Parts, interrupted: Event, listener: Listener | None = None
) -> None:
    """Train from `parts.step` to `cfg.steps`, or until `interrupted` is set on any rank.

    The evaluation and checkpoint of a step that was saved before its evaluation ended are made up
    for. After an update, after an evaluation, and before the checkpoint of the step, `listener` is
    called on rank 0. Raises KeyboardInterrupt after an interrupted run is saved, and StopTraining
    after one that the listener stopped.
    """
    ranks, was_stopped = parts.ranks, Event()

    def is_interrupted() -> bool:
        return ranks.any(interrupted.is_set() or was_stopped.is_set(), "a step's end")

    def tell(method: str, metrics: dict[str, float]) -> None:
        if listener is not None:
            with ranks.together():
                if ranks.is_main and not listener(run, method, parts.step, metrics):
                    was_stopped.set()

    def evaluate_now() -> None:
        evaluation = timed_evaluation(parts, run, parts.step)
        run.log(parts.step, evaluation)
        tell("on_evaluation", evaluation)

    with run.track(), save_when_stopped(cfg, run, parts):
        saver = Saver(cfg, run, parts)
        if parts.ranks.size > 1 and ranks.any(ranks.is_main and not run.checkpoints(), "beginning"):
            saver.save(planned=False)  # several processes cannot save after one of them dies
        saver.keep_if_best()  # in case the process died before it did
        if ranks.any(cfg.eval.baseline and not run.has_metrics, "baseline"):
            if not is_interrupted():
                evaluate_now()
                saver.keep_if_best()
        if ranks.any(ranks.is_main and not run.checkpoints(), "first checkpoint"):
            saver.save(planned=False)  # models between two steps cannot be saved
        is_due = parts.step > 0 and due(parts.step, cfg.eval_every, cfg.steps)
        is_due = is_due and (parts.step == cfg.steps or not is_interrupted())
        if is_due and ranks.any(not run.is_evaluated(parts.step), "evaluation"):
            parts.context.step = parts.step - 1  # its value after the update
            evaluate_now()
            saver.save_if_due()
            saver.keep_if_best()
        while parts.step < cfg.steps and not is_interrupted():
            metrics, episodes = update(parts)
            run.log(parts.step, metrics)
            tell("on_step", metrics)
            if is_due := due(parts.step, cfg.eval_every, cfg.steps):
                run.write_episodes("train", parts.step, episodes[:KEPT_EPISODES])
                evaluate_now()
            saver.save_if_due()
            if is_due:
                saver.keep_if_best()
        if parts.step < cfg.steps:
            saver.save(planned=False)
            echo_err(f"saved; go on with: {resume_command(run, parts)}")
            raise StopTraining if ranks.any(was_stopped.is_set(), "listener") else KeyboardInterrupt


class Saver:
    """Writes checkpoints: planned ones every `save_every` steps and at the end, unplanned ones
    `save_interval_minutes` after the last checkpoint."""

    def __init__(self, cfg: DictConfig, run: Run, parts: Parts) -> None:
        self.cfg, self.run, self.parts = cfg, run, parts
        self.saved_step, self.saved_at = -1, time.monotonic()

    def save_if_due(self) -> None:
        """Save if this step is planned or enough time has passed."""
        limit = 60 * self.cfg.save_interval_minutes
        if due(self.parts.step, self.cfg.save_every, self.cfg.steps):
            self.save()
        elif limit and self.parts.ranks.any(time.monotonic() - self.saved_at >= limit, "clock"):
            self.save(planned=False)

    def save(self, *, planned: bool = True) -> None:
        """Save this step unless it was saved before."""
        if self.saved_step != self.parts.step:
            self.parts.activity.begin("save")
            self.parts.save(self.run, planned=planned)
            self.saved_step, self.saved_at = self.parts.step, time.monotonic()

    def keep_if_best(self) -> None:
        """With `save_best=true`, keep the checkpoint of this step if its evaluation is the best on
        the split `val`."""
        ranks = self.parts.ranks
        wins = bool(self.cfg.get("save_best")) and ranks.is_main
        if ranks.any(wins and checkpoints.is_best(self.run, self.parts.step), "best"):
            self.save(planned=False)
            with ranks.together():
                if ranks.is_main:
                    checkpoints.keep_best(self.run, self.parts.step)


def update(parts: Parts) -> tuple[dict[str, float], list[Episode]]:
    """Play episodes and update the models. Return the metrics and the episodes of the step."""
    algo, step = parts.algo, parts.step
    parts.context.step = step
    parts.activity.begin("play")
    began = time.perf_counter()
    parts.generator.clear()  # caches of earlier steps, which a resumed run does not have
    episodes = parts.collector.collect(step, algo.group_size) if parts.plays else []
    gap = logprob_gap(parts, episodes)
    stored = parts.buffer.state() if parts.ranks.is_main else None  # only rank 0 saves it
    if algo.replay_capacity or parts.data.keep_episodes:
        parts.buffer.add(episodes)
    seconds = {"time/rollout": time.perf_counter() - began}
    parts.activity.begin("sampling" if algo.texts(1, 1) else "samples")
    try:
        learned = parts.learner.run(algo.update(episodes, parts.buffer), step)
    except DistributedError:
        raise
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, GeneratorError | RunAborted):
            if stored is not None:
                parts.buffer.load(stored)
            parts.between_steps = True
        raise
    parts.step += 1
    warn_if_nothing_trained(parts, learned)
    engines = parts.collector.actors.metrics() | parts.generator.metrics()
    metrics = rollout_metrics(episodes) | gap | seconds | learned | engines
    if played := sum(number for name, number in learned.items() if name.endswith("/episodes")):
        metrics["episodes/count"] = metrics.get("episodes/count", 0) + played
    return metrics, episodes


def warn_if_nothing_trained(parts: Parts, learned: dict[str, float]) -> None:
    """Print a warning, once, if an update had no phase or all of them were empty."""
    trained = any(key.endswith("/steps") and number for key, number in learned.items())
    if trained or parts.is_warned:
        return
    parts.is_warned = True
    reason = "the algorithm yielded no phase"
    if any(key.endswith("/empty") for key in learned):
        reason = "no episode gave a sample; its metrics say why (docs/metrics.md)"
    if parts.ranks.is_main:
        echo_err(f"warning: update {parts.step} trained nothing, because {reason}")


def rollout_metrics(episodes: list[Episode]) -> dict[str, float]:
    """Return the metrics of the episodes of a step, none without episodes."""
    if not episodes:
        return {}
    found = episode_metrics(episodes)
    metrics = {f"episodes/{key}": v for key, v in found.items() if "success_" not in key}
    kinds = [episode.error_kind for episode in episodes]
    return {
        "reward/mean": metrics.pop("episodes/reward"),
        "episodes/count": metrics.pop("episodes/episodes"),
        "episodes/error_rate": metrics.pop("episodes/failed"),
        **metrics,
        **{f"episodes/failed_{kind}": kinds.count(kind) / len(kinds) for kind in FAILURE_KINDS},
        "episodes/abandoned_threads": float(abandoned_threads()),
        "episodes/context_overflow": sum(e.stop == "context" for e in episodes) / len(episodes),
        "episodes/tokens": float(sum(e.tokens for e in episodes)),
        "episodes/cut_turns": _cut_turns(episodes),
        "time/env": sum(e.env_seconds for e in episodes),
    }


def _cut_turns(episodes: list[Episode]) -> float:
    """Return the share of turns whose reply was cut at `rollout.max_new_tokens`."""
    turns = [turn for episode in episodes for turn in episode.turns]
    return sum(turn.finish_reason == "length" for turn in turns) / max(1, len(turns))


def logprob_gap(parts: Parts, episodes: list[Episode]) -> dict[str, float]:
    """Return the mean and largest difference of the log-probs of generator and trainer, per sampled
    token, or nothing if no token was sampled."""
    sampled = [e for e in episodes[:LOGPROB_GAP_EPISODES] if any(any(t.logprobs) for t in e.turns)]
    samples = [sample for e in sampled for sample in episode_samples(e)]
    if not samples:
        return {}
    rows = token_logprobs(parts.models.forward("policy"), samples)
    by_trainer: list[float] = []
    for row, sample in zip(rows, samples, strict=True):
        by_trainer += [logprob for logprob, m in zip(row, sample.mask, strict=True) if m]
    by_generator = [logprob for e in sampled for turn in e.turns for logprob in turn.logprobs]
    gaps = [abs(ours - theirs) for ours, theirs in zip(by_trainer, by_generator, strict=True)]
    largest = max(gaps, key=lambda gap: math.inf if math.isnan(gap) else gap)
    return {"sampling/logp_diff_mean": sum(gaps) / len(gaps), "sampling/logp_diff_max": largest}


def due(step: int, every: int, steps: int) -> bool:
    """Return whether an action of every `every` steps (0: only at the end) is due."""
    return step == steps or bool(every and step % every == 0)


def timed_evaluation(parts: Parts, run: Run, step: int) -> dict[str, float]:
    """Return the metrics of `evaluate` and its duration."""
    parts.activity.begin("evaluation" if step else "baseline")
    began = time.perf_counter()
    metrics = evaluate(parts, partial(run.write_episodes, "eval", step))
    return metrics | {"time/eval": time.perf_counter() - began}


@contextmanager
def save_when_stopped(cfg: DictConfig, run: Run, parts: Parts) -> Iterator[None]:
    """Save when something outside the run stops it, and add the command that resumes.

    RunAborted is also raised if the generator fails or memory runs out. If that interrupted an
    update, the models are between two steps and the previous checkpoint is used instead. After a
    DistributedError nothing can be saved.
    """
    command = resume_command(run, parts)
    try:
        with explained_loss():
            try:
                with explain_failures(cfg, run, parts):
                    yield
            except DistributedError:
                raise
            except RunAborted as error:
                if parts.ranks.any(parts.between_steps, "stop"):
                    ranks = parts.ranks
                    step = step_of(run.latest_checkpoint()) if ranks.is_main else None
                    kept = f"the checkpoint of step {ranks.gather(step, 'checkpoint')[0]} holds"
                else:
                    parts.save(run, planned=False)
                    kept = "saved"
                line = f"{error}; {kept}; go on with: {command}"
                raise RunAborted(line, code=error.code) from error
    except DistributedError as error:
        line = f"{error}; go on from the last checkpoint with: {command}"
        raise DistributedError(line) from error


def resume_command(run: Run, parts: Parts) -> str:
    """Return the command that resumes the run, with the launcher if several processes train it."""
    started = parts.ranks.size > 1
    return f"{LAUNCH} resume {run.quoted_folder}" if started else run.resume_command


@contextmanager
def explain_failures(cfg: DictConfig, run: Run, parts: Parts) -> Iterator[None]:
    """Raise RunAborted if the generator fails or memory runs out. Write the batch of a
    NonFiniteError to failed-batch.json, on rank 0."""
    try:
        yield
    except GeneratorError as error:
        message = f"{error}; mend what generates before you go on"
        raise RunAborted(message, code="generator") from error
    except NonFiniteError as error:
        file = run.folder / "failed-batch.json"
        if parts.ranks.is_main:
            batch = {"phase": error.phase, "term": error.term, "samples": error.rows}
            with files.explain_write_errors(run.folder):
                files.write_json(file, batch)
        error.args = (f"{error}; its batch is in '{file}', see docs/pitfalls.md",)
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        message = out_of_memory(cfg, parts.algo, parts.step)
    else:
        return
    raise RunAborted(message, code="out-of-memory")  # outside `except`, so that tensors are freed


@contextmanager
def interruptible(*, launched: bool = False) -> Iterator[Event]:
    """Yield an event that Ctrl-C, SIGTERM and SIGHUP set, so that the current step is completed and
    saved. A second Ctrl-C stops at once. An ignored SIGHUP stays ignored, as under nohup. A
    launcher sends a second Ctrl-C itself, and SIGTERM if another process dies. Outside the main
    thread, where Python has no signals, nothing sets the event."""
    interrupted = Event()
    if current_thread() is not main_thread():
        yield interrupted
        return

    def on_signal(number: int, frame: object) -> None:
        if interrupted.is_set():  # other signals can arrive twice: from a shell and from make
            if number == signal.SIGINT and not launched:
                raise KeyboardInterrupt
            return
        interrupted.set()
        if number != signal.SIGTERM or not launched:
            echo_err("interrupted: finishing this step, then saving")

    handled = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        handled.append(signal.SIGHUP)
    previous_handlers = {number: signal.signal(number, on_signal) for number in handled}
    try:
        yield interrupted
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
