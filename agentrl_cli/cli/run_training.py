"""Train a run from a checked configuration or from its last checkpoint."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from omegaconf import DictConfig, OmegaConf

from agentrl_cli import __version__
from agentrl_cli.algos.base import Algorithm
from agentrl_cli.cli.dry import dry_run
from agentrl_cli.config.compose import build
from agentrl_cli.core import files
from agentrl_cli.core.distributed import Ranks
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import echo_err
from agentrl_cli.models.template import template_text
from agentrl_cli.report.summary import final_table
from agentrl_cli.rollout.demos import fingerprint
from agentrl_cli.runs import checkpoints
from agentrl_cli.runs.checkpoints import Checkpoint
from agentrl_cli.runs.loggers import Console, WandbLogger
from agentrl_cli.runs.run import NullRun, Run
from agentrl_cli.train import interruptible, train
from agentrl_cli.training.build import Parts, build_parts
from agentrl_cli.training.distributed import check_agreement, joined, validate_strategy
from agentrl_cli.training.endpoint import PATH
from agentrl_cli.training.memory_plan import plan_memory, validate_memory
from agentrl_cli.training.rollout_actors import start_actors


def train_new_run(cfg: DictConfig, overrides: list[str], *, dry: bool) -> None:
    """Create the run, train it and print its result; with `dry` only plan and try it."""
    if cfg.model.path == PATH:
        line = "model=endpoint is on a server and cannot be trained"
        remedy = "evaluate it with agentrl eval model=endpoint model.url=URL ..."
        raise UserError(f"{line}; {remedy}", code="not-trainable")
    if cfg.model.get("chat_template"):  # the run stores the text, since the file may change
        cfg.model.chat_template = template_text(cfg.model.chat_template)
    if dry:
        dry_run(cfg)
        return
    with joined(cfg) as ranks:
        check_ranks(cfg, ranks)
        run: Run | None = None
        with ranks.together():
            if ranks.is_main:
                command = " ".join(["agentrl", *sys.argv[1:]])
                run = Run.create(cfg, command=command, overrides=overrides)
        (folder, *_) = ranks.gather(run and str(run.folder), "folder")
        run = run or NullRun(Path(folder))
        with delete_unbuilt_run(run, ranks):
            parts = build_parts(cfg, run.folder, ranks=ranks)
            start_actors(cfg, parts)
        with interruptible(launched=ranks.size > 1) as interrupted:
            with delete_unbuilt_run(run, ranks):
                echo_err(f"run {run.folder}")
                attach_loggers(run, cfg, parts)
            with closing(parts):
                train(cfg, run, parts, interrupted)
        if ranks.is_main:
            print(final_table(run))


def resume_run(run: Run, cfg: DictConfig, checkpoint: Checkpoint | None) -> None:
    """Restore the checkpoint of a run, truncate its logs to it, and train.

    `checkpoint` is None in all processes but the first, which broadcasts it.
    """
    with joined(cfg) as ranks:
        check_ranks(cfg, ranks)
        (folder, *_) = ranks.gather(checkpoint and str(checkpoint.folder), "checkpoint")
        with ranks.together():
            checkpoint = checkpoint or checkpoints.read(Path(folder))
            run = run if ranks.is_main else NullRun(run.folder)
        parts = build_parts(cfg, run.folder, restored=True, ranks=ranks)
        with ranks.together():
            validate_template(run, cfg, parts)
            start_actors(cfg, parts)
            parts.restore(checkpoint)
        parts.share_buffer()
        with interruptible(launched=ranks.size > 1) as interrupted:
            run.truncate_logs(checkpoint)
            if ranks.is_main:
                checkpoints.forget_later(run, checkpoint.step)
            run.record_resume(cfg, checkpoint.step)
            echo_err(f"run {run.folder}, from step {checkpoint.step}")
            attach_loggers(run, cfg, parts)
            with closing(parts):
                train(cfg, run, parts, interrupted)
        if ranks.is_main:
            print(final_table(run))


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
        validate_memory(cfg, algo, plan_memory(cfg, algo))


def attach_loggers(run: Run, cfg: DictConfig, parts: Parts) -> None:
    """Attach the console and the chosen logger to the run."""
    read = {"demos": fingerprint(cfg.data.demos), "chat_template": parts.chat.fingerprint}
    run.update_meta(threads=torch.get_num_threads(), **read)
    if not parts.ranks.is_main:
        return
    if parts.ranks.size > 1:
        run.update_meta(processes=parts.ranks.size)
    logger = build(cfg.logger)
    if isinstance(logger, WandbLogger):
        logger.writers = {"model": partial(write_model, run), "report": partial(write_report, run)}
    run.attach([Console(activity=parts.activity), logger], cfg)


def write_model(run: Run, folder: Path) -> None:
    """Write the policy as `agentrl export` does."""
    from agentrl_cli.cli.export import export

    export(str(run.folder), folder)


def write_report(run: Run, folder: Path) -> None:
    """Write the page of `agentrl report` with all episodes of the run."""
    from agentrl_cli.report.compare import gather
    from agentrl_cli.report.page import write

    write(gather([str(run.folder)]), folder, pages=True)


def validate_template(run: Run, cfg: DictConfig, parts: Parts) -> None:
    """Raise UserError if the chat template of the model has changed since the run began."""
    if run.meta.get("chat_template", parts.chat.fingerprint) != parts.chat.fingerprint:
        line = f"the chat template of '{cfg.model.path}' has changed"
        remedy = f"restore it, or start a new run with init={run.quoted_folder}"
        raise UserError(f"{line}; {remedy}", code="other-template")


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
