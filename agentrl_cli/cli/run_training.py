"""A run at work, from a checked configuration or its last checkpoint: built, given its loggers,
trained. What can be refused without models stands in `train`, which imports this last."""

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
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.ranks import Ranks
from agentrl_cli.core.terminal import echo_err
from agentrl_cli.models.template import template_text
from agentrl_cli.report.summary import final_table
from agentrl_cli.rollout.demos import fingerprint
from agentrl_cli.runs import best, checkpoint_digest
from agentrl_cli.runs.checkpoint_digest import Checkpoint
from agentrl_cli.runs.loggers import Console, WandbLogger
from agentrl_cli.runs.run import NullRun, Run
from agentrl_cli.train import interruptible, train
from agentrl_cli.training.assemble import Parts, assemble
from agentrl_cli.training.endpoint import PATH
from agentrl_cli.training.memory_plan import plan_memory, refuse_too_little_memory
from agentrl_cli.training.ranks import joined, refuse_disagreement, refuse_strategy
from agentrl_cli.training.rollout_actors import start_actors


def train_new_run(cfg: DictConfig, overrides: list[str], *, dry: bool) -> None:
    """Make the run's folder, train, and say how it went; only plan and try where it is `dry`."""
    if cfg.model.path == PATH:
        line = "model=endpoint is a server's, which cannot be trained here"
        raise UserError(f"{line}; evaluate it: agentrl eval model=endpoint model.url=URL ...")
    if cfg.model.get("chat_template"):  # the run keeps the text, whatever becomes of the file
        cfg.model.chat_template = template_text(cfg.model.chat_template)
    if dry:
        dry_run(cfg)
        return
    with joined(cfg) as ranks:
        check_ranks(cfg, ranks)
        run = create_run(cfg, overrides, ranks)
        with delete_unbuilt_run(run, ranks):
            parts = assemble(cfg, run.folder, ranks=ranks)
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
    """Restore a run's checkpoint, put its logs back to there, and train, or do what remains where
    its process died after the last update. Only the process that owns the run knows which."""
    with joined(cfg) as ranks:
        check_ranks(cfg, ranks)
        (folder, *_) = ranks.gather(checkpoint and str(checkpoint.folder), "checkpoint")
        with ranks.together():
            checkpoint = checkpoint or checkpoint_digest.read(Path(folder))
            run = run if ranks.is_main else NullRun(run.folder)
        parts = assemble(cfg, run.folder, restored=True, ranks=ranks)
        with ranks.together():
            refuse_other_template(run, cfg, parts)
            start_actors(cfg, parts)
            parts.restore(checkpoint)
        parts.share_buffer()
        with interruptible(launched=ranks.size > 1) as interrupted:
            run.truncate_logs(checkpoint)
            if ranks.is_main:
                best.forget_later(run, checkpoint.step)
            run.record_resume(cfg, checkpoint.step)
            echo_err(f"run {run.folder}, from step {checkpoint.step}")
            attach_loggers(run, cfg, parts)
            with closing(parts):
                train(cfg, run, parts, interrupted)
        if ranks.is_main:
            print(final_table(run))


def check_ranks(cfg: DictConfig, ranks: Ranks) -> None:
    """Raise UserError where the ranks cannot train this run together, or it needs more memory than
    there is, before anything is written or loaded."""
    if ranks.size > 1:
        remedy = "start all of them by one command, in the same environment"
        refuse_disagreement(ranks, started_with(cfg), remedy)
    with ranks.together():
        algo: Algorithm = build(cfg.algo)
        refuse_strategy(cfg, algo, ranks)
        refuse_too_little_memory(cfg, algo, plan_memory(cfg, algo))


def started_with(cfg: DictConfig) -> dict[str, Any]:
    """What must be the same on all ranks: every key of the configuration, and what computes."""
    versions = {"agentrl": __version__, "torch": torch.__version__}
    versions["transformers"] = transformers.__version__
    return versions | flat(OmegaConf.to_container(cfg, resolve=True))


def flat(node: Any, name: str = "") -> dict[str, Any]:
    """The leaves of nested keys, by dotted names."""
    if not isinstance(node, dict) or not node:
        return {name: node}
    inner = (flat(value, f"{name}.{key}" if name else str(key)) for key, value in node.items())
    return {key: value for part in inner for key, value in part.items()}


def create_run(cfg: DictConfig, overrides: list[str], ranks: Ranks) -> Run:
    """The folder of a new run, which rank 0 makes."""
    run, command = None, " ".join(["agentrl", *sys.argv[1:]])
    with ranks.together():
        if ranks.is_main:
            run = Run.create(cfg, command=command, overrides=overrides)
    (folder, *_) = ranks.gather(run and str(run.folder), "folder")
    return run or NullRun(Path(folder))


def attach_loggers(run: Run, cfg: DictConfig, parts: Parts) -> None:
    """Give the run its loggers: the console, and the chosen one."""
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
    """The policy as `agentrl export` writes it."""
    from agentrl_cli.cli.export import export

    export(str(run.folder), folder)


def write_report(run: Run, folder: Path) -> None:
    """The page as `agentrl report` writes it, with all episodes of the run."""
    from agentrl_cli.report.compare import gather
    from agentrl_cli.report.page import write

    write(gather([str(run.folder)]), folder, pages=True)


def refuse_other_template(run: Run, cfg: DictConfig, parts: Parts) -> None:
    """Raise UserError where a model's chat template is not the one that its run began with."""
    if run.meta.get("chat_template", parts.chat.fingerprint) != parts.chat.fingerprint:
        line = f"the chat template of '{cfg.model.path}' has changed"
        raise UserError(f"{line}; put it back, or start a new run with init={run.quoted_folder}")


@contextmanager
def delete_unbuilt_run(run: Run, ranks: Ranks) -> Iterator[None]:
    """Delete a new run that cannot be built as configured, or that somebody stops before it can
    save anything; record any other error."""
    try:
        yield
    except (UserError, KeyboardInterrupt):
        if ranks.is_main:
            shutil.rmtree(run.folder)
        raise
    except BaseException as error:
        run.set_status("failed", f"{type(error).__name__}: {error}")
        raise
