"""Train a run from a checked configuration or from its last checkpoint, or only try it (`--dry`).

A dry run prints what the run needs. It plays episodes if the device of the run is available.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from omegaconf import DictConfig, OmegaConf

from agentrl_cli import __version__
from agentrl_cli.algos.base import Algorithm, Phase
from agentrl_cli.algos.losses import nll
from agentrl_cli.algos.samples import episode_samples
from agentrl_cli.algos.sft import SFT
from agentrl_cli.cli.environment import check_contract
from agentrl_cli.config.compose import build
from agentrl_cli.core import files
from agentrl_cli.core.activity import Display
from agentrl_cli.core.distributed import Ranks
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import echo, echo_err
from agentrl_cli.core.types import Episode
from agentrl_cli.envs.base import Env, train_tasks
from agentrl_cli.models.forward import causal_lm
from agentrl_cli.models.template import template_text
from agentrl_cli.rollout.collector import Collector
from agentrl_cli.rollout.demos import EXPERT_PREFIX, fingerprint
from agentrl_cli.rollout.play import EpisodeStart, check_failures
from agentrl_cli.runs import checkpoints
from agentrl_cli.runs.checkpoints import Checkpoint
from agentrl_cli.runs.loggers import Console, WandbLogger
from agentrl_cli.runs.run import NullRun, Run
from agentrl_cli.training import memory_plan
from agentrl_cli.training.build import (
    Parts,
    build_parts,
    busy_machine,
    pick_device,
    slow_dtype,
    unfiltered_imitation,
)
from agentrl_cli.training.distributed import check_agreement, joined, validate_strategy
from agentrl_cli.training.endpoint import PATH
from agentrl_cli.training.loop import Listener, StopTraining, interruptible, train
from agentrl_cli.training.rollout_actors import start_actors

DRY_EPISODES = 16  # to play at most, each of another task
DRY_DEMOS = 100  # of the environment's expert to try at most


def train_new_run(
    cfg: DictConfig, command: str, overrides: Sequence[str] = (), listener: Listener | None = None
) -> Run:
    """Create the run, train it and return it."""
    prepare_model(cfg)
    with joined(cfg) as ranks:
        check_ranks(cfg, ranks)
        run: Run | None = None
        with ranks.together():
            if ranks.is_main:
                build(cfg.logger).check()
                run = Run.create(cfg, command=command, overrides=list(overrides))
        (folder, *_) = ranks.gather(run and str(run.folder), "folder")
        run = run or NullRun(Path(folder))
        with delete_unbuilt_run(run, ranks):
            parts = build_parts(cfg, run.folder, ranks=ranks)
            start_actors(cfg, parts)
        with interruptible(launched=ranks.size > 1) as interrupted:
            with delete_unbuilt_run(run, ranks):
                echo_err(f"run {run.folder}")
                if (warmup := cfg.algo.get("critic_warmup") or 0) >= cfg.steps > 0:
                    line = f"warning: the policy does not train in the first {warmup} updates"
                    echo_err(f"{line} (algo.critic_warmup); give steps above {warmup}")
                hints = (unfiltered_imitation(cfg), busy_machine(), slow_dtype(cfg))
                for hint in filter(None, hints):
                    echo_err(hint)
                attach_loggers(run, cfg, parts)
            with closing(parts), suppress(StopTraining):
                train(cfg, run, parts, interrupted, listener)
    return run


def resume_run(
    run: Run, cfg: DictConfig, checkpoint: Checkpoint | None, listener: Listener | None = None
) -> None:
    """Restore the checkpoint of a run, truncate its logs to it, and train.

    `checkpoint` is None in all processes but the first, which broadcasts it.
    """
    stored = cfg
    if cfg.model.dtype == "auto" and run.meta.get("dtype") == "float32":
        cfg = cfg.copy()
        cfg.model.dtype = "float32"  # its optimizers have no masters, which bfloat16 would need
    with joined(cfg) as ranks:
        check_ranks(cfg, ranks)
        (folder, *_) = ranks.gather(checkpoint and str(checkpoint.folder), "checkpoint")
        with ranks.together():
            checkpoint = checkpoint or checkpoints.read(Path(folder))
            run = run if ranks.is_main else NullRun(run.folder)
        parts = build_parts(cfg, run.folder, restored=True, ranks=ranks)
        with ranks.together():
            template = parts.chat.fingerprint
            if run.meta.get("chat_template", template) != template:
                line = f"the chat template of '{cfg.model.path}' has changed"
                remedy = f"restore it, or start a new run with init={run.quoted_folder}"
                raise UserError(f"{line}; {remedy}", code="other-template")
            start_actors(cfg, parts)
            parts.restore(checkpoint)
        parts.share_buffer()
        with interruptible(launched=ranks.size > 1) as interrupted:
            repeated = repeated_steps(run, checkpoint) if ranks.is_main else ""
            run.truncate_logs(checkpoint)
            if ranks.is_main:
                checkpoints.forget_later(run, checkpoint.step)
            run.record_resume(stored, checkpoint.step)
            echo_err(f"run {run.folder}, from step {checkpoint.step}{repeated}")
            attach_loggers(run, cfg, parts)
            with closing(parts), suppress(StopTraining):
                train(cfg, run, parts, interrupted, listener)


def repeated_steps(run: Run, checkpoint: Checkpoint) -> str:
    """Return which finished steps are repeated because no checkpoint has them; "" if none is."""
    last = max((row["step"] for row in run.readable_metrics()[0]), default=0)
    first = checkpoint.step + 1
    if last < first:
        return ""
    if last == first:
        return f"; step {last} is repeated, because no checkpoint has it"
    return f"; steps {first} to {last} are repeated, because no checkpoint has them"


def prepare_model(cfg: DictConfig) -> None:
    """Insert the text of the chat template. Raises UserError if the model cannot be trained."""
    if cfg.model.path == PATH:
        line = "model=endpoint is on a server and cannot be trained"
        remedy = "evaluate it with agentrl eval model=endpoint model.url=URL ..."
        raise UserError(f"{line}; {remedy}", code="not-trainable")
    if cfg.model.get("chat_template"):  # the run stores the text, since the file may change
        cfg.model.chat_template = template_text(cfg.model.chat_template)


def check_ranks(cfg: DictConfig, ranks: Ranks) -> None:
    """Raise UserError if the processes differ, cannot share the run, or lack memory."""
    if ranks.size > 1:
        versions = {"agentrl": __version__, "torch": torch.__version__}
        versions["transformers"] = transformers.__version__
        content: Any = OmegaConf.to_container(cfg, resolve=True)
        remedy = "start all processes with one command, in the same environment"
        check_agreement(ranks, versions | files.flatten(content), remedy)
    with ranks.together():
        algo: Algorithm = build(cfg.algo)
        validate_strategy(cfg, algo, ranks)
        memory_plan.validate_memory(cfg, algo, memory_plan.plan_memory(cfg, algo))


def attach_loggers(run: Run, cfg: DictConfig, parts: Parts) -> None:
    """Attach the console and the chosen logger to the run."""

    def write_model(folder: Path) -> None:
        from agentrl_cli.cli.export import export

        export(str(run.folder), folder)

    def write_report(folder: Path) -> None:
        from agentrl_cli.report.compare import gather
        from agentrl_cli.report.page import write

        write(gather([str(run.folder)]), folder, pages=True)

    dtype = str(causal_lm(parts.models.module("policy")).dtype).removeprefix("torch.")
    run.update_meta(
        threads=torch.get_num_threads(), dtype=dtype, end_tokens=parts.chat.ends,
        demos=fingerprint(cfg.data.demos), chat_template=parts.chat.fingerprint,
    )  # fmt: skip
    if not parts.ranks.is_main:
        return
    if parts.ranks.size > 1:
        run.update_meta(processes=parts.ranks.size)
    logger = build(cfg.logger)
    if isinstance(logger, WandbLogger):
        logger.writers = {"model": write_model, "report": write_report}
    run.attach([Console(activity=parts.activity), logger], cfg)


@contextmanager
def delete_unbuilt_run(run: Run, ranks: Ranks) -> Iterator[None]:
    """Delete a new run that is invalid or interrupted before training; record other errors."""
    try:
        yield
    except (UserError, KeyboardInterrupt):
        if ranks.is_main:
            shutil.rmtree(run.folder)
        raise
    except BaseException as error:
        run.set_status("failed", f"{type(error).__name__}: {error}")
        raise


# dry runs


def dry_run(cfg: DictConfig) -> None:
    """Print the plan and play a few episodes.

    Raises UserError if the run would be refused: if it needs too much memory, cannot be built or
    stored, or its logger is not installed.
    """
    prepare_model(cfg)

    def print_row(name: str, value: object) -> None:
        echo(f"{name:<24} {value}")

    Run.new_folder(cfg)
    build(cfg.logger).check()
    algo: Algorithm = build(cfg.algo)
    env: Env = build(cfg.env)
    tasks = train_tasks(env)[:DRY_EPISODES]
    for name, value in plan_rows(cfg, algo):
        print_row(name, value)
    memory_plan.validate_memory(cfg, algo, memory_plan.plan_memory(cfg, algo))
    print_row("environment contract", check_contract(env, expert=False))
    if memory_plan.device_type(cfg) == "cuda" and not torch.cuda.is_available():
        print_row("one episode", "not played: no CUDA device was found")
        return
    pick_device(cfg.hardware.device)
    source = str(cfg.data.demos)
    count = source.removeprefix(EXPERT_PREFIX)
    if source.startswith(EXPERT_PREFIX) and count.isdecimal() and int(count) > DRY_DEMOS:
        print_row("demonstrations", f"{DRY_DEMOS} of {int(count):,} are tried, also in the time")
        cfg = cfg.copy()
        cfg.data.demos = f"{EXPERT_PREFIX}{DRY_DEMOS}"
    parts = build_parts(cfg, None)
    print_row("answers end with", ", ".join(parts.chat.ends))
    starts = [EpisodeStart(task, task.id, cfg.seed, task.id) for task in tasks]
    began = perf_counter()
    parts.activity.begin("play")
    with Display(parts.activity):
        episodes = parts.collector.play(starts, parts.collector.sampling)
    played = perf_counter() - began
    check_failures(episodes, 0.0)
    first, turns = episodes[0], len(episodes[0].turns)
    print_row("one episode", f"{turns} turns, {first.tokens} tokens, reward {first.reward:g}")
    print_row("truncated", _truncated(episodes, parts.collector))
    for name, text in parts.algo.check(episodes):
        print_row(name, text)
    print_row("time of an update", _update_time(parts, episodes, played))


def _update_time(parts: Parts, episodes: list[Episode], played: float) -> str:
    """Return the rough time of an update. These episodes took `played` seconds, and training on
    them once is measured here. A text of the algorithm counts as an action, and a replayed turn as
    a whole episode of training, because each is read twice and has half of its length on average.
    """
    algo, collector = parts.algo, parts.collector
    samples = [sample for episode in episodes for sample in episode_samples(episode)]
    if not samples:
        return "unknown, because no action was played"
    began = perf_counter()
    parts.learner.run(iter([Phase("policy", samples, nll)]), 0)
    trained = (perf_counter() - began) / len(episodes)
    actions = sum(len(episode.turns) for episode in episodes)
    count = collector.count(algo.group_size) if parts.plays else 0
    demos = getattr(algo, "expert_states_per_update", 0) or len(algo.context.demos)
    learned = getattr(algo, "turns_per_update", 0) or count or demos
    learned += getattr(algo, "critic_updates", 0) * getattr(algo, "episodes_per_update", 0)
    texts = algo.texts(max(1, actions // len(episodes)), 1)
    seconds = {
        "playing": played / len(episodes) * count,
        "training": trained * learned * getattr(algo, "epochs", 1),
        "texts of the algorithm": played / actions * sum(text.count for text in texts.values()),
    }
    listed = ", ".join(f"{name} {_duration(n)}" for name, n in seconds.items() if n)
    return f"roughly {_duration(sum(seconds.values()))}: {listed}"


def _duration(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 90 else f"{seconds / 60:.2g} min"


def _truncated(episodes: list[Episode], collector: Collector) -> str:
    """Return how many replies and episodes reached a token limit, and which key to raise."""
    turns = [turn for episode in episodes for turn in episode.turns]
    replies = sum(bool(turn.observation) for turn in turns)  # one may be split into several turns
    cut = sum(turn.finish_reason == "length" for turn in turns)
    ended = sum(episode.stop == "context" for episode in episodes)
    parts = [f"{cut} of {replies} replies", f"{ended} of {len(episodes)} episodes"]
    if cut:
        parts[0] += f" reach rollout.max_new_tokens {collector.max_new_tokens}: raise it"
    if ended:
        parts[1] += f" reach rollout.max_seq_len {collector.max_seq_len}: raise it"
    return "; ".join(parts)


def plan_rows(cfg: DictConfig, algo: Algorithm) -> Iterator[tuple[str, object]]:
    """Yield what is trained, how much an update samples, and the memory of each phase."""
    plan, collector = memory_plan.plan_memory(cfg, algo), build(cfg.rollout)
    specs = algo.models()
    yield "algorithm", cfg.choices.algo
    yield "models", ", ".join(f"{name} ({spec.kind})" for name, spec in specs.items())
    trained, size = plan.adapter or plan.parameters, plan.parameters + plan.adapter
    learning = sum(spec.kind == "trained" for spec in specs.values())
    times = f", in each of {learning} models" if learning > 1 else ""
    yield "parameters", f"{size:,}, of which trained {trained:,}{times}"
    shown = isinstance(algo, SFT) and cfg.data.demos  # which it knows only when it is bound
    plays = algo.plays and not shown and not cfg.data.offline
    episodes = collector.count(algo.group_size) if plays else 0
    turns = cfg.rollout.max_seq_len // cfg.rollout.max_new_tokens
    yield "episodes per step", episodes
    yield "episodes in total", episodes * cfg.steps
    if episodes:
        tokens = episodes * cfg.rollout.max_seq_len
        yield "  rollout", f"up to {episodes * turns:,} texts, {tokens:,} tokens per update"
    for role, texts in algo.texts(turns, cfg.rollout.max_new_tokens).items():
        tokens = texts.count * texts.longest
        yield f"  {role}", f"up to {texts.count:,} texts, {tokens:,} tokens per update"
    limit = memory_plan.available_bytes(cfg)
    of = "" if limit is None else f" of {memory_plan.in_gib(limit)}"
    yield "predicted peak memory", f"{memory_plan.in_gib(plan.peak)}{of}, in {plan.largest_phase}"
    for name, number in plan.kept.items():
        if number:
            yield f"  {name}", memory_plan.in_gib(number)
    for phase, parts in plan.phases.items():
        listed = ", ".join(f"{name} {memory_plan.in_gib(n)}" for name, n in parts.items() if n)
        yield f"  in {phase}", f"{memory_plan.in_gib(sum(parts.values()))}: {listed}"
    for saver in memory_plan.memory_savers(cfg, algo)[: memory_plan.NAMED]:
        if saver.saves > 0:
            yield "to save memory", f"{saver} saves {memory_plan.in_gib(saver.saves)}"
